"""The table of routes: every one declared, guarded, and sane about methods; pages and JSON are the same object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from typing import get_args

import httpx
import pytest

from doing import impatient
from echod.errors import Refused
from echod.gateway.app import TABLE, Entry
from echod.gateway.guard import SECURITY_HEADERS, Right
from echod.gateway.plans import lines
from echod.model.ids import VersionId
from echod.model.job import Error
from echod.policy.plan import Deployed, Gone, Moved, Option, Plan, Schedule
from server import PATIENCE_S
from unit.gateway.kit import ERRORS, FUNCTIONS, Rig, Valkey, function, publish, serving

OPEN = {"/healthz", "/readyz", "/login", "/logout"}
STREAMS = {"/events", "/jobs/{id:name}/logs"}
HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def address(entry: Entry) -> str:
    return (
        entry.path.replace("{name:name}", "hello.any")
        .replace("{id:names}", "tick.beat/20s")
        .replace("{id:name}", "JOB0KHTOWnGLuC")
    )


async def ask(http: httpx.AsyncClient, entry: Entry, **headers: str) -> int:
    async with http.stream(entry.method, address(entry), headers=headers) as answer:
        return answer.status_code


def test_every_route_says_which_right_it_needs() -> None:
    assert len({(entry.method, entry.path) for entry in TABLE}) == len(TABLE)
    for entry in TABLE:
        assert (entry.right is None) == (entry.path in OPEN), entry
        rights = entry.right if isinstance(entry.right, tuple) else (entry.right,)
        assert entry.right is None or {*rights} <= {*get_args(Right)}
        if "read" in rights:
            assert entry.method == "GET", entry
        elif entry.right is not None and entry.path != "/tokens":  # who has which token is for operators
            assert entry.method in {"POST", "DELETE"}, entry


def test_every_call_of_the_contract_is_in_the_table() -> None:
    here = {(entry.method, entry.path.replace(":names", "").replace(":name", "")) for entry in TABLE}
    assert here >= {
        ("POST", "/functions/{name}"),
        ("GET", "/jobs/{id}"),
        ("GET", "/jobs/{id}/logs"),
        ("POST", "/jobs/{id}/cancel"),
        ("POST", "/jobs/{id}/redrive"),
        *(("GET", path) for path in ("/functions", "/functions/{name}", "/jobs", "/schedules", "/lanes", "/morgue")),
        *(("GET", path) for path in ("/versions", "/nodes", "/bus", "/lanes", "/healthz", "/readyz", "/metrics")),
        *(("POST", f"/schedules/{{id}}/{verb}") for verb in ("run", "pause", "resume")),
        *(("POST", f"/functions/{{name}}/{verb}") for verb in ("pause", "resume")),
        ("POST", "/deploy"),
        ("POST", "/versions/{id}/activate"),
    }


async def test_every_route_asks_for_the_token_unless_it_is_open(server: Valkey) -> None:
    async with serving(server, token="s3cret") as rig:
        for entry in TABLE:
            refused = entry.right is not None or (entry.method, entry.path) == (
                "POST",
                "/login",
            )  # no token in its form
            assert (await ask(rig.http, entry) == 401) == refused, entry
            if entry.right is not None:
                assert await ask(rig.http, entry, Authorization="Bearer s3cret") != 401, entry
        assert (await rig.http.get("/nothing/here")).status_code == 401
        assert (await rig.http.get("/nothing/here", headers={"Authorization": "Bearer s3cret"})).status_code == 404


async def test_every_route_refuses_a_foreign_origin_and_host_but_health(rig: Rig) -> None:
    for entry in TABLE:
        health = entry.path in {"/healthz", "/readyz"}
        for headers in ({"Origin": "null"}, {"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            assert (await ask(rig.http, entry, **headers) == 403) != health, entry


async def test_no_route_fails_and_each_answer_is_typed_and_secured(rig: Rig) -> None:
    for entry in TABLE:
        for accept in ("*/*", "application/json", HTML["Accept"]):
            async with rig.http.stream(entry.method, address(entry), headers={"Accept": accept}) as answer:
                assert answer.status_code < 500, (entry, answer.status_code)
                if entry.path not in STREAMS and answer.status_code not in {204, 303}:
                    await answer.aread()
                    assert answer.headers["Content-Type"], entry
                for name in SECURITY_HEADERS:
                    assert name in answer.headers, (entry, name)


async def test_another_method_is_405_and_says_which_are_allowed(rig: Rig) -> None:
    answer = await rig.http.put("/functions/hello.any")
    assert answer.status_code == 405
    assert answer.headers["Allow"] == "GET, HEAD, OPTIONS, POST"
    assert answer.headers["Content-Type"] == "application/problem+json"
    for method in ("DELETE", "PATCH", "TRACE"):
        assert (await rig.http.request(method, "/jobs")).status_code == 405
    assert (await rig.http.get("/deploy")).headers["Allow"] == "OPTIONS, POST"


async def test_options_and_head_are_answered_for_every_path(rig: Rig) -> None:
    for path in sorted({address(entry) for entry in TABLE}):
        answer = await rig.http.options(path)
        assert answer.status_code == 204, path
        methods = {entry.method for entry in TABLE if address(entry) == path}
        assert methods < set(answer.headers["Allow"].split(", "))
        if "GET" in methods:
            head = await rig.http.head(path)
            assert head.status_code < 500, path
            assert head.content == b""


async def test_head_says_what_get_would(rig: Rig) -> None:
    head, get = await rig.http.head("/functions"), await rig.http.get("/functions")
    assert head.headers["Content-Type"] == get.headers["Content-Type"]
    assert head.headers["Content-Length"] == get.headers["Content-Length"]


async def test_an_unknown_path_is_a_404_problem(rig: Rig) -> None:
    beyond = "/functions/%2e%2e/%2e%2e/etc/passwd"
    for path in ("/nothing", "/functions/", "/functions/a/b", "/jobs//logs", "/%FF", beyond, "/" + "x" * 20_000):
        answer = await rig.http.get(path)
        assert answer.status_code == 404, path
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert len(answer.content) < 1000


async def test_nothing_but_static_files_is_served_as_one(rig: Rig) -> None:
    for path in ("../app.py", "%2e%2e/app.py", "..%2fapp.py", "/etc/passwd", "nothing.js", "", "fonts"):
        answer = await rig.http.get(f"/static/{path}")
        assert answer.status_code == 404, path
        assert "create_app" not in answer.text


# ---- pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/functions",
        "/functions/shop.pack",
        "/functions/report.weekly",
        "/jobs",
        "/jobs?state=dead",
        "/morgue",
        "/schedules",
        "/versions",
        "/nodes",
        "/bus",
    ],
)
async def test_a_browser_gets_a_page_and_a_program_the_object_it_is_made_of(server: Valkey, path: str) -> None:
    async with serving(server, errors=ERRORS) as rig:
        rig.status |= {
            "mode": "dev",
            "degraded": ["no Landlock here"],
            "workers": {"shop.pack": {"count": 2, "busy": 1}},
        }
        await rig.recur("report.weekly")
        await rig.mint("shop.pack", {"customer": {"id": "<b>&amp;"}}, Echo_Lane="<script>")
        await rig.fail("shop.pack", Error("ValueError", "<img src=x>", "Traceback …"))
        page = await rig.http.get(path, headers=HTML)
        assert page.status_code == 200
        assert page.headers["Content-Type"] == "text/html; charset=utf-8"
        assert page.text.lstrip().lower().startswith("<!doctype html>")
        for raw in ("<script>alert", "<img src=x>", "<b>&amp;"):
            assert raw not in page.text
        assert "unsafe-inline" not in page.headers["Content-Security-Policy"]
        plain = await rig.http.get(path)
        assert plain.headers["Content-Type"] == "application/json"
        assert isinstance(plain.json(), dict)
        assert page.headers["Vary"] == plain.headers["Vary"] == "Accept"


async def test_a_jobs_page_shows_its_log_and_payload_escaped(rig: Rig) -> None:
    from echod.bus.answers import LogLine

    id = await rig.mint("hello.any", {"x": "</script><script>alert(1)</script>"})
    await rig.bus.log(
        "hello.any", id, [LogLine(1_774_746_000_000, 1, "stdout", "info", "", "<img src=x onerror=alert(1)>")]
    )
    await rig.fail("hello.any", Error("ValueError", "<b>no</b>", "Traceback <i>"))
    page = await rig.http.get(f"/jobs/{id}", headers=HTML)
    assert page.status_code == 200
    for raw in ("<script>alert", "<img src=x", "<b>no", "<i>"):
        assert raw not in page.text
    assert "&lt;img src=x" in page.text


async def test_a_fault_is_a_page_to_a_browser_with_the_same_code(rig: Rig) -> None:
    page = await rig.http.get("/functions/hello.gret", headers=HTML)
    assert (page.status_code, page.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    assert "hello.greet" in page.text
    assert (await rig.http.get("/nothing", headers=HTML)).status_code == 404


async def test_what_pages_name_is_served_and_kept(rig: Rig) -> None:
    page = (await rig.http.get("/", headers=HTML)).text
    named = {part.split('"')[0] for part in page.split('="/static/')[1:]}
    assert named
    for name in named:
        answer = await rig.http.get(f"/static/{name}")
        assert answer.status_code == 200, name
        assert "immutable" in answer.headers["Cache-Control"]


# ---- sessions -----------------------------------------------------------------------------------------------------


async def test_a_browser_without_a_session_is_shown_the_way_in(server: Valkey) -> None:
    async with serving(server, token="s3cret") as rig:
        page = await rig.http.get("/jobs?state=dead", headers=HTML)
        assert page.status_code == 401
        assert "WWW-Authenticate" in page.headers
        assert 'name="token"' in page.text
        assert "/jobs?state=dead" in page.text


async def test_the_token_is_swapped_for_a_strict_cookie_and_taken_back(server: Valkey) -> None:
    async with serving(server, token="s3cret") as rig:
        wrong = await rig.http.post("/login", data={"token": "guess", "next": "/jobs"})
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
        right = await rig.http.post("/login", data={"token": "s3cret", "next": "/jobs?state=dead"})
        assert (right.status_code, right.headers["Location"]) == (303, "/jobs?state=dead")
        cookie = right.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "s3cret" not in cookie
        assert (await rig.http.get("/jobs")).status_code == 200
        foreign = await rig.http.post("/functions/hello.any", headers={"Origin": "https://evil.example"})
        assert foreign.status_code == 403
        await rig.http.post("/logout", headers={"Origin": str(rig.http.base_url).rstrip("/")})
        assert (await rig.http.get("/jobs")).status_code == 401


@pytest.mark.parametrize(
    "place", ["//evil.example", "/\\evil.example", "https://evil.example", "javascript:alert(1)", "", "/\nx"]
)
async def test_login_leads_nowhere_else(server: Valkey, place: str) -> None:
    async with serving(server, token="s3cret") as rig:
        assert (await rig.http.post("/login", data={"token": "s3cret", "next": place})).headers["Location"] == "/"


# ---- deploy -------------------------------------------------------------------------------------------------------


async def test_a_node_that_takes_no_deploys_says_why(rig: Rig) -> None:
    answer = await rig.http.post("/deploy", content=b"x")
    assert (answer.status_code, answer.json()["detail"]) == (409, "the folder is the truth: edit it")


class Node:
    """What a node does with versions, at its barest: `done`, or the error of it."""

    def __init__(self, done: Deployed | Exception) -> None:
        self.done = done
        self.asked: list[tuple[object, bool]] = []

    async def deployed(self, body: AsyncIterable[bytes], *, only_plan: bool = False) -> Deployed:
        return self._answer(b"".join([part async for part in body]), only_plan)

    async def activated(self, version: VersionId, *, only_plan: bool = False) -> Deployed:
        return self._answer(version, only_plan)

    def _answer(self, asked: object, only_plan: bool) -> Deployed:
        self.asked.append((asked, only_plan))
        if isinstance(self.done, Exception):
            raise self.done
        return self.done


DONE = Deployed(
    VersionId("DEP00000000002"),
    7,
    ("shop.pack",),
    Plan(
        gone=(Gone("shop.old", 3),),
        change=(
            Moved(
                Schedule("shop.pack/1", "0 6 * * *", "UTC", None), Schedule("shop.pack/1", "@daily", "UTC", 86_400_000)
            ),
        ),
        limits=(Option("shop.pack", "timeout_ms", 60_000, 30_000),),
    ),
)


async def test_more_than_four_deploys_at_once_are_told_to_come_again(server: Valkey) -> None:
    node = Node(DONE)
    async with serving(server, deploys=node) as rig:
        rest = asyncio.Event()
        begun: asyncio.Queue[None] = asyncio.Queue()

        async def archive() -> AsyncIterator[bytes]:
            yield b"begun, "
            await rest.wait()
            yield b"whole"

        async def deployed(body: AsyncIterable[bytes], *, only_plan: bool = False) -> Deployed:
            begun.put_nowait(None)
            return await Node.deployed(node, body, only_plan=only_plan)

        node.deployed = deployed
        under_way = [asyncio.create_task(rig.http.post("/deploy", content=archive())) for _ in range(4)]
        for _ in under_way:
            await begun.get()
        refused = await rig.http.post("/deploy", content=b"x")
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        rest.set()
        assert [answer.status_code for answer in await asyncio.gather(*under_way)] == [200] * 4
        assert node.asked == [(b"begun, whole", False)] * 4
        assert (await rig.http.post("/deploy", content=b"x")).status_code == 200


async def test_a_deploy_whose_caller_hangs_up_is_given_up(server: Valkey) -> None:
    node = Node(DONE)
    async with serving(server, deploys=node) as rig:
        begun, given_up = asyncio.Event(), asyncio.Event()

        async def deployed(body: AsyncIterable[bytes], *, only_plan: bool = False) -> Deployed:
            assert b"".join([part async for part in body]) == b"whole"
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                given_up.set()
            raise AssertionError(only_plan)

        node.deployed = deployed
        asking = asyncio.create_task(rig.http.post("/deploy", content=b"whole"))
        await begun.wait()
        asking.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await given_up.wait()
        node.deployed = Node(DONE).deployed
        assert (await rig.http.post("/deploy", content=b"x")).status_code == 200


async def test_a_deploy_gets_the_whole_archive_and_its_answer_is_sent(server: Valkey) -> None:
    node = Node(DONE)
    async with serving(server, deploys=node) as rig:
        archive = bytes(3 * 1024 * 1024)
        answer = await rig.http.post("/deploy", content=archive)
        assert (answer.status_code, node.asked) == (200, [(archive, False)])
        assert answer.json() == {
            "version": "DEP00000000002",
            "generation": 7,
            "functions": ["shop.pack"],
            "errors": [],
            "plan": {
                "functions": {"new": [], "changed": [], "gone": [{"name": "shop.old", "waiting": 3}]},
                "schedules": {
                    "start": [],
                    "change": [
                        {
                            "id": "shop.pack/1",
                            "rule": "@daily",
                            "tz": "UTC",
                            "next": "1970-01-02T00:00:00.000Z",
                            "paused": False,
                            "was": {
                                "id": "shop.pack/1",
                                "rule": "0 6 * * *",
                                "tz": "UTC",
                                "next": None,
                                "paused": False,
                            },
                        }
                    ],
                    "end": [],
                    "options": [],
                },
                "limits": [
                    {
                        "function": "shop.pack",
                        "option": "timeout_ms",
                        "was": 60_000,
                        "now": 30_000,
                    }
                ],
                "walls": [],
                "lines": [
                    {"mark": "-", "text": "function shop.old: 3 waiting jobs stay until a version has it again"},
                    {"mark": "~", "text": "schedule shop.pack/1: 0 6 * * * → @daily, is due 1970-01-02T00:00:00.000Z"},
                    {"mark": "~", "text": "limit of shop.pack: timeout 1m → 30s"},
                ],
            },
        }
        assert (await rig.http.post("/deploy")).status_code == 400
        assert (await rig.http.post("/deploy", content=bytes(26 * 1024 * 1024))).status_code == 413


async def test_answers_name_the_version_that_serves_to_whoever_has_a_right(server: Valkey) -> None:
    known = {"Authorization": "Bearer s3cret"}
    async with serving(server, token="s3cret") as rig:
        assert (await rig.http.get("/functions", headers=known)).headers["Echo-Version"] == "DEP00000000001"
        for method, path, status in (
            ("GET", "/jobs/JOB00000000000", 404),
            ("GET", "/nothing/here", 404),
            ("PATCH", "/functions", 405),
            ("GET", "/jobs?limit=x", 422),
        ):
            problem = await rig.http.request(method, path, headers=known)
            assert (problem.status_code, problem.headers["Echo-Version"]) == (status, "DEP00000000001")
            assert "Echo-Version" not in (await rig.http.request(method, path)).headers
        assert "Echo-Version" not in (await rig.http.get("/healthz")).headers
        answered, _ = await asyncio.gather(
            rig.http.post("/functions/hello.any", json=1, headers={**known, "Prefer": "wait=10"}), rig.run("hello.any")
        )
        await publish(rig.bus, FUNCTIONS, version=VersionId("DEP00000000002"))
        await rig.registry.refresh()
        assert answered.headers["Echo-Version"] == "DEP00000000001"
        assert (await rig.http.get("/functions", headers=known)).headers["Echo-Version"] == "DEP00000000002"


def test_a_plan_says_of_a_schedule_that_it_is_paused() -> None:
    was, now = (Schedule("m.f/1", rule, "UTC", None, paused=True) for rule in ("@daily", "@hourly"))
    assert lines(Plan(start=(was,), change=(Moved(was, now),), end=(was,))) == [
        ("+", "schedule m.f/1: @daily, paused"),
        ("~", "schedule m.f/1: @daily → @hourly, paused"),
        ("-", "schedule m.f/1: @daily, paused"),
    ]


async def test_a_plan_is_asked_for_with_the_same_call(server: Valkey) -> None:
    node = Node(DONE)
    async with serving(server, deploys=node) as rig:
        assert (await rig.http.post("/deploy?plan=1", content=b"x")).status_code == 200
        assert (await rig.http.post("/versions/DEP00000000001/activate?plan=1")).status_code == 200
        assert (await rig.http.post("/versions/DEP00000000001/activate")).status_code == 200
        assert node.asked == [(b"x", True), ("DEP00000000001", True), ("DEP00000000001", False)]
        assert (await rig.http.post("/deploy?plan=yes", content=b"x")).status_code == 422
        for path in ("/deploy?paln=1", "/versions/DEP00000000001/activate?plan=1&force=1"):
            slip = await rig.http.post(path, content=b"x")
            assert (slip.status_code, "expected plan=0 or plan=1 alone" in slip.json()["detail"]) == (422, True)
        assert len(node.asked) == 3


async def test_a_folder_that_is_the_truth_is_not_rolled_back_either(rig: Rig) -> None:
    answer = await rig.http.post("/versions/DEP00000000001/activate")
    assert (answer.status_code, answer.json()["detail"]) == (409, "the folder is the truth: edit it")


async def test_versions_are_listed_with_what_each_changed(rig: Rig) -> None:
    await publish(rig.bus, (*FUNCTIONS[:-1], function("shop.fresh")), version=VersionId("DEP00000000002"))
    await rig.registry.refresh()
    newest, first = (await rig.http.get("/versions")).json()["versions"]
    assert (newest["id"], newest["active"], first["active"], first["changes"]) == ("DEP00000000002", True, False, None)
    assert newest["changes"]["functions"]["new"] == ["shop.fresh"]
    assert newest["changes"]["functions"]["gone"] == [{"name": "report.weekly", "waiting": 0}]
    assert [each["rule"] for each in newest["changes"]["schedules"]["end"]] == ["0 6 * * mon"]


async def test_a_refused_deploy_names_file_and_line(server: Valkey) -> None:
    async with serving(server, deploys=Node(Refused("shop.py:12: expected a zone, got 'Mars/Base'"))) as rig:
        answer = await rig.http.post("/deploy", content=b"x")
        assert (answer.status_code, answer.json()["detail"]) == (422, "shop.py:12: expected a zone, got 'Mars/Base'")


async def test_an_unexpected_error_is_a_500_that_tells_a_stranger_nothing(server: Valkey) -> None:
    async with serving(server, deploys=Node(RuntimeError("the password is hunter2"))) as rig:
        answer = await rig.http.post("/deploy", content=b"x")
        assert (answer.status_code, answer.json()["type"]) == (500, "urn:echod:problem:internal")
        assert "hunter2" not in answer.text
        assert "Content-Security-Policy" in answer.headers
        assert (await rig.http.get("/healthz")).status_code == 200


def exceptions(policy: str) -> list[str]:
    """What a policy allows beyond this server itself. https://www.w3.org/TR/CSP3/"""
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";") if rule.strip())
    found = [name for name in ("default-src", "frame-ancestors", "base-uri", "form-action") if name not in rules]
    return found + [
        source for sources in rules.values() for source in sources.split() if source not in ("'self'", "'none'")
    ]


async def test_no_answer_of_any_kind_has_an_exception_in_its_policy(server: Valkey) -> None:
    """Pages, objects, refusals: of the application, of the guard, of the connection itself."""
    known = {"Authorization": "Bearer s3cret"}
    async with serving(server, deploys=Node(RuntimeError("unexpected")), token="s3cret", request_limit="60/h") as rig:
        answers: list[httpx.Response] = []
        for accept in (HTML, {"Accept": "application/json"}):
            for entry in TABLE:
                if entry.method == "GET" and entry.path not in STREAMS:
                    answers.append(await rig.http.get(address(entry), headers=accept | known))
                    answers.append(await rig.http.get(address(entry), headers=accept))
            for method, path, headers in (
                ("GET", "/nowhere", known),
                ("PUT", "/jobs", known),
                ("GET", "/jobs", {"Host": "evil.example"}),
                ("POST", "/login", {"Origin": "null"}),
                ("POST", "/functions/hello.any", known),
                ("POST", "/deploy", known),
                ("GET", "/static/echod.js", {}),
                ("GET", "/static/none", {}),
            ):
                body = b"x" if path == "/deploy" else None
                answers.append(await rig.http.request(method, path, content=body, headers=accept | headers))
            answers.append(
                await rig.http.post("/functions/hello.any", content=b"x" * 2_000_000, headers=accept | known)
            )
            with impatient(rig.bus), server.paused():
                answers.append(await rig.http.get("/jobs", headers=accept | known))
        answers += [await rig.http.get("/morgue") for _ in range(70)]
        statuses = {answer.status_code for answer in answers}
        assert statuses >= {200, 401, 403, 404, 405, 413, 429, 500, 503}, statuses
        for answer in answers:
            policy = answer.headers["Content-Security-Policy"]
            assert exceptions(policy) == [], (answer.request.url, answer.status_code, policy)
        reader, writer = await asyncio.open_connection(*rig.server.address)
        writer.write(b"rubbish\r\n\r\n")
        head = (await reader.read()).decode("latin-1")
        writer.close()
        [policy] = [line for line in head.split("\r\n") if line.startswith("content-security-policy: ")]
        assert head.startswith("HTTP/1.1 400")
        assert exceptions(policy.partition(": ")[2]) == []
