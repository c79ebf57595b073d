"""Webhooks over real HTTP: every row of the table, every kind of body, replays, and what is refused.

Kinds of field reports, and where each is tried:

    K1 K2  a body verified over something else than its bytes   test_a_body_is_verified_and_kept_byte_by_byte
    K2     gzip and the like                                    test_an_encoded_body_is_refused_for_what_it_is
    K3     chunks read as empty; two ways to read a length      test_one_byte_chunks_…, tests/system/test_wire.py
    K4 K5  multipart and forms, kept raw                        BODIES
    K6     one delivery at once, and again later                test_fifty_at_once_…, test_a_delivery_that_comes_again_…
    K8     a new version in the middle of a run                 tests/system/test_webhooks.py, test_a_new_version_in_…
    K9     the bus away, or at its limit                        test_a_bus_that_is_away_…, test_a_bus_at_its_…
    J4-J7  names with slashes, emoji, control characters        test_a_name_in_the_path_…, ODD
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

from doing import impatient
from echod.gateway.limits import Bodies
from echod.model.ids import VersionId
from echofn.manifest import CronTrigger, Hmac, QueueTrigger, Verify, WebhookTrigger
from server import PATIENCE_S
from unit.gateway.kit import VERSION, Rig, Valkey, function, publish, serving, until

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "data/webhooks.json").read_text())
SECRET = "It's a Secret to Everybody"
PLANTED = {"GH": SECRET, "HMAC": "hmac-secret", "TOKEN": "t0ken", "BASIC": "ada:pass", "OLD": "old", "NEW": "new"}
DAY_MS = 86_400_000


def hook(name: str, path: str, verify: Verify, *secrets: str, **options: Any) -> Any:
    return function(name, WebhookTrigger(path, verify, secrets, **options), max_pending=options.pop("most", None))


HOOKS = (
    hook("gh.push", "/hooks/gh", "github", "GH"),
    hook("gh.sorted", "/hooks/sorted/{tenant}", None, lane="json.who", unique="query.id"),
    hook("gh.headed", "/hooks/headed", None, lane="headers.x-team", unique=True, until=60_000),
    hook("gh.param", "/hooks/param/{tenant}", None, lane="params.tenant", unique="json.id", until="done"),
    hook("gh.credential", "/hooks/credential", None, lane="headers.authorization"),
    hook("gh.rotated", "/hooks/rotated", "github", "NEW", "OLD"),
    hook("gh.lost", "/hooks/lost", "github", "NOT_SET", "NEITHER"),
    hook("gh.spoiled", "/hooks/spoiled", "standard-webhooks", "GH"),
    hook("my.hmac", "/hooks/hmac", Hmac("x-sig", "sha256", "base64", "v1="), "HMAC"),
    hook("my.bearer", "/hooks/bearer", "bearer", "TOKEN"),
    hook("my.basic", "/hooks/basic", "basic", "BASIC"),
    function("both.ways", WebhookTrigger("/hooks/both", None), QueueTrigger(), lane="tenant"),
    function("small.one", WebhookTrigger("/hooks/small", None), max_pending=1),
    function("timed.one", WebhookTrigger("/hooks/timed", None), CronTrigger("daily UTC", "0 6 * * *", "UTC")),
)


@pytest.fixture
async def rig(server: Valkey, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """A gateway with a token, which no sender has; its environment has the secrets."""
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    async with serving(server, token="the-gateways-own") as rig:
        await publish(rig.bus, HOOKS)
        await rig.registry.refresh()
        yield rig


def github(body: bytes, secret: str = SECRET, **headers: str) -> dict[str, str]:
    signature = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {"X-Hub-Signature-256": signature, **{name.replace("_", "-"): value for name, value in headers.items()}}


async def post(rig: Rig, path: str, body: bytes = b"", headers: Any = None) -> httpx.Response:
    return await rig.http.post(path, content=body, headers=headers)


async def taken(rig: Rig, path: str, body: bytes = b"", headers: Any = None) -> str:
    answer = await post(rig, path, body, headers)
    assert answer.status_code == 202, answer.text
    assert answer.headers["Location"] == f"/jobs/{answer.json()['id']}"
    return str(answer.json()["id"])


async def minted(rig: Rig, name: str) -> dict[str, Any]:
    """The raw request of the newest job."""
    job = await rig.bus.job((await rig.bus.jobs(name))[0][0].id, queue=name)
    assert job is not None
    return dict(msgspec.msgpack.decode(job.payload))


async def pending(rig: Rig, name: str) -> int:
    return (await rig.bus.stats([name]))[name].pending


async def test_a_sender_who_verifies_is_told_the_version_and_strangers_are_not(rig: Rig) -> None:
    verified = await post(rig, "/hooks/gh", b"{}", github(b"{}"))
    assert (verified.status_code, verified.headers["Echo-Version"]) == (202, VERSION)
    for path in ("/hooks/gh", "/hooks/headed", "/hooks/nowhere"):
        assert "Echo-Version" not in (await post(rig, path, b"{}")).headers
    own = await post(rig, "/hooks/headed", b"{}", {"Authorization": "Bearer the-gateways-own"})
    assert (own.status_code, own.headers["Echo-Version"]) == (202, VERSION)


# ---- the table ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['verify']}: {row['why']}" for row in ROWS])
async def test_a_row_of_the_table_over_http(row: dict[str, Any], rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"ROW_{index}" for index in range(len(row["secrets"]))]
    for name, value in zip(names, row["secrets"], strict=True):
        monkeypatch.setenv(name, value)
    await publish(rig.bus, (hook("row.one", "/hooks/row", row["verify"], *names),), version=VersionId("DEP00000000002"))
    await rig.registry.refresh()
    if "now" in row:  # the bus's clock decides
        rig.valkey.clock.set(row["now"] * 1000)
        await rig.bus.tick("row.one")
    headers = [(name.encode(), value.encode()) for name, value in row["headers"].items()]
    answer = await post(rig, "/hooks/row", row["body"].encode(), headers)
    assert answer.status_code == (202 if row["ok"] else 401), answer.text
    assert await pending(rig, "row.one") == int(row["ok"])
    if row["ok"]:
        assert (await minted(rig, "row.one"))["body"] == row["body"].encode()


# ---- bodies (field reports, K) ------------------------------------------------------------------------------------

BODIES = {
    "escapes, spaces, key order": b'{"z" : "\\u001B[0m\\/", "a":1.0 ,"a": 2}',
    "a trailing newline": b'{"a": 1}\n',
    "CRLF and tabs": b'{\r\n\t"a": 1\r\n}\r\n',
    "emoji": '{"msg": "café 😀"}'.encode(),
    "latin-1": '{"msg": "café"}'.encode("latin-1"),
    "UTF-16": '{"msg": "😀"}'.encode("utf-16"),
    "a BOM": b'\xef\xbb\xbf{"a": 1}',
    "invalid UTF-8": b'{"a": "\xff\xfe"}',
    "a lone surrogate": b'{"a": "\\ud83d", "who": "\\ud83d"}',
    "form-encoded": b"payload=%7B%22a%22%3A1%7D&text=&x=%FF",
    "multipart": b'--b\r\nContent-Disposition: form-data; name="f"; filename="x"\r\n\r\n\x00\xff\r\n--b--\r\n',
    "gzip as such": gzip.compress(b'{"a": 1}'),
    "nothing": b"",
    "a NUL": b"\x00",
    "no JSON": b"Hello, World!",
    "deep": b"[" * 200_000,
    "long digits": b"1" * 10_000,
    "a mebibyte": b"x" * 1024 * 1024,
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "multipart/form-data; boundary=b", None])
async def test_a_body_is_verified_and_kept_byte_by_byte(body: bytes, content_type: str | None, rig: Rig) -> None:
    headers = github(body) | ({"Content-Type": content_type} if content_type else {})
    await taken(rig, "/hooks/gh", body, headers)
    assert (await minted(rig, "gh.push"))["body"] == body
    if body:
        assert (await post(rig, "/hooks/gh", body[:-1] + b"~", headers)).status_code == 401
        assert await pending(rig, "gh.push") == 1


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize(
    "content_type", ["application/json", "application/x-www-form-urlencoded", "text/plain; charset=x"]
)
async def test_no_body_stops_a_function_that_looks_into_it_for_its_lane(
    body: bytes, content_type: str, rig: Rig
) -> None:
    await taken(rig, "/hooks/sorted/acme", body, {"Content-Type": content_type})
    assert (await minted(rig, "gh.sorted"))["body"] == body


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "identity, gzip", "nonsense"])
async def test_an_encoded_body_is_refused_for_what_it_is(encoding: str, rig: Rig) -> None:
    body = gzip.compress(b"{}")
    answer = await post(rig, "/hooks/gh", body, github(body, Content_Encoding=encoding))
    assert (answer.status_code, answer.json()["type"]) == (415, "urn:echod:problem:unsupported-media-type")


async def test_one_byte_chunks_without_a_length_are_one_body(rig: Rig) -> None:
    body = '{"msg": "café 😀"}\n'.encode()

    async def chunks() -> AsyncIterator[bytes]:
        for byte in body:
            yield bytes([byte])

    answer = await rig.http.post("/hooks/gh", content=chunks(), headers=github(body))
    assert answer.status_code == 202, answer.text
    assert (await minted(rig, "gh.push"))["body"] == body


@pytest.mark.parametrize(("second", "status"), [("gzip", 415), ("identity", 202)])
async def test_codings_are_one_list_however_many_headers_have_them(second: str, status: int, rig: Rig) -> None:
    headers = [*github(b"{}").items(), ("Content-Encoding", "identity"), ("Content-Encoding", second)]
    assert (await post(rig, "/hooks/gh", b"{}", headers)).status_code == status


async def test_a_delivery_that_offers_http_2_is_verified_over_its_whole_body(rig: Rig) -> None:
    """As `curl --http2` sends it."""
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}
    body = b'{"a": 1}'
    await taken(rig, "/hooks/gh", body, {**github(body), **offer})
    assert (await minted(rig, "gh.push"))["body"] == body


async def test_more_than_a_mebibyte_is_413_with_and_without_a_length(rig: Rig) -> None:
    body = b"x" * (1024 * 1024 + 1)

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 65_536):
            yield body[start : start + 65_536]

    assert (await post(rig, "/hooks/gh", body, github(body))).status_code == 413
    assert (await rig.http.post("/hooks/gh", content=chunks(), headers=github(body))).status_code == 413
    assert await pending(rig, "gh.push") == 0


# ---- what is kept -------------------------------------------------------------------------------------------------


async def half_sent(rig: Rig, path: str, *headers: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that stops 1,000 bytes before the end of 10,000."""
    reader, writer = await asyncio.open_connection(*rig.server.address)
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Length: 10000", *headers, "", ""]
    writer.write("\r\n".join(lines).encode() + b"x" * 9000)
    return reader, writer


async def test_strangers_bodies_are_bounded_together_and_keep_no_caller_out(rig: Rig) -> None:
    intake = rig.desk.intake
    intake.strangers = Bodies(10_000, quiet_s=600)
    _, held = await half_sent(rig, "/hooks/gh")
    await until(lambda: intake.strangers.size == 9000)
    reader, refused = await half_sent(rig, "/hooks/gh")
    async with asyncio.timeout(PATIENCE_S):
        assert (await reader.readline()).startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1\r\n" in (await reader.readuntil(b"\r\n\r\n")).lower()
    assert rig.desk.counts.deliveries["gh.push", "busy"] == 1
    _, called = await half_sent(rig, "/functions/both.ways", "Authorization: Bearer the-gateways-own")
    await until(lambda: intake.callers.size == 9000)
    await taken(rig, "/hooks/gh", b"{}", github(b"{}"))  # what comes at a stroke waits for nobody
    assert intake.strangers.size == 9000
    for writer in (held, refused, called):
        writer.close()
    await until(lambda: intake.strangers.size == intake.callers.size == 0)


async def test_the_request_is_kept_raw_but_for_credentials(rig: Rig) -> None:
    body = b'{"a": 1}'
    headers = [
        *github(body, Authorization="Basic c2VjcmV0", Cookie="session=s3cret", X_GitHub_Event="push").items(),
        ("X-Hub-Signature", "sha1=0"),
        ("X-Twice", "one"),
        ("x-twice", "two"),
        (b"X-Odd", b"caf\xe9"),
    ]
    await taken(rig, "/hooks/gh?a=1&b=2&b=%C3%A9&empty=", body, headers)
    kept = await minted(rig, "gh.push")
    assert set(kept) == {"method", "path", "params", "query", "headers", "body"}
    assert (kept["method"], kept["path"], kept["params"], kept["body"]) == ("POST", "/hooks/gh", {}, body)
    assert kept["query"] == {"a": "1", "b": ["2", "é"], "empty": ""}
    assert (kept["headers"]["x-github-event"], kept["headers"]["x-twice"]) == ("push", "one, two")
    assert kept["headers"]["x-odd"] == "café"
    assert not {"authorization", "cookie", "x-hub-signature", "x-hub-signature-256"} & kept["headers"].keys()


async def test_no_secret_reaches_the_bus_or_an_answer(rig: Rig) -> None:
    basic = base64.b64encode(PLANTED["BASIC"].encode()).decode()
    await taken(rig, "/hooks/basic", b"{}", {"Authorization": f"Basic {basic}"})
    await taken(rig, "/hooks/bearer", b"{}", {"Authorization": f"Bearer {PLANTED['TOKEN']}"})
    await taken(rig, "/hooks/gh", b"{}", github(b"{}"))
    said = [
        (await post(rig, path, b"{}", {"X-Hub-Signature-256": "sha256=00"})).text
        for path in ("/hooks/gh", "/hooks/lost")
    ]
    pages = [
        (await rig.http.get(path, headers={"Authorization": "Bearer the-gateways-own"})).text
        for path in ("/functions", "/jobs", "/functions/gh.push", "/metrics")
    ]
    rig.valkey.command("CONFIG", "SET", "rdbcompression", "no")  # what is packed cannot be searched
    names = rig.valkey.command("KEYS", "*")
    assert isinstance(names, list)
    values = [rig.valkey.command("DUMP", name) for name in names]
    rig.valkey.command("CONFIG", "SET", "rdbcompression", "yes")
    whole = b"".join(value for value in values if isinstance(value, bytes)) + "".join(said + pages).encode()
    assert b"/hooks/bearer" in whole
    for secret in (*PLANTED.values(), basic):
        assert secret in ("old", "new") or secret.encode() not in whole, secret


@pytest.mark.parametrize(
    ("path", "lane"),
    [
        ("/hooks/param/acme", "acme"),
        ("/hooks/param/a%2Fb", "a/b"),
        ("/hooks/param/%F0%9F%A6%8A", "🦊"),
        ("/hooks/param/%00", "\0"),
    ],
)
async def test_a_name_in_the_path_is_one_decoded_segment(path: str, lane: str, rig: Rig) -> None:
    await taken(rig, path)
    assert (await rig.bus.jobs("gh.param"))[0][0].lane == lane
    assert (await minted(rig, "gh.param"))["params"] == {"tenant": lane}


@pytest.mark.parametrize(
    "path", ["/hooks/param/", "/hooks/param", "/hooks/param/a/b", "/hooks/param/%FF", "/hooks/gh/", "/hooks"]
)
async def test_other_paths_are_nobodys(path: str, rig: Rig) -> None:
    assert (await post(rig, path)).status_code == 401
    assert (await post(rig, path, headers={"Authorization": "Bearer the-gateways-own"})).status_code == 404


# ---- lanes and keys -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "content_type", "lane"),
    [
        (b'{"who": "acme"}', "application/json", "acme"),
        (b'{"who": 7}', "application/json", "7"),
        (b'{"who": null}', "application/json", "-"),
        (b'{"who": ""}', "application/json", "-"),
        (b"{}", "application/json", "-"),
        (b"who=acme&x=1", "application/x-www-form-urlencoded", "acme"),
        (b'{"who": "\\ud83d"}', "application/json", "\\ud83d"),
        (b"not JSON", "application/json", "-"),
        (b'{"who": "' + b"x" * 50_000 + b'"}', "application/json", "x" * 50_000),
    ],
)
async def test_the_lane_comes_from_the_body(body: bytes, content_type: str, lane: str, rig: Rig) -> None:
    id = await taken(rig, "/hooks/sorted/t", body, {"Content-Type": content_type})
    job = await rig.bus.job(id, queue="gh.sorted")
    assert job is not None
    assert job.lane == lane


@pytest.mark.parametrize("body", [b'{"who": {"id": 1}}', b'{"who": ["a"]}'])
async def test_an_object_for_a_lane_is_no_reason_to_lose_a_webhook_and_is_counted(body: bytes, rig: Rig) -> None:
    await taken(rig, "/hooks/sorted/t", body, {"Content-Type": "application/json"})
    assert (await rig.bus.jobs("gh.sorted"))[0][0].lane == "-"
    metrics = await rig.http.get("/metrics", headers={"Authorization": "Bearer the-gateways-own"})
    assert 'echod_webhook_values_unfit_total{function="gh.sorted",option="lane"} 1.0' in metrics.text


async def test_lanes_come_from_headers_and_never_from_a_credential(rig: Rig) -> None:
    await taken(rig, "/hooks/headed", b"1", {"X-Team": "blue"})
    assert (await rig.bus.jobs("gh.headed"))[0][0].lane == "blue"
    await taken(rig, "/hooks/credential", b"1", {"Authorization": "Bearer s3cret"})
    assert (await rig.bus.jobs("gh.credential"))[0][0].lane == "-"


async def test_a_delivery_that_comes_again_is_the_first_job_for_24_hours(rig: Rig) -> None:
    headers = github(b"{}", X_GitHub_Delivery="72d3162e-cc78-11e3")
    first = await taken(rig, "/hooks/gh", b"{}", headers)
    assert await taken(rig, "/hooks/gh", b"{}", headers) == first
    await rig.run("gh.push")
    assert await taken(rig, "/hooks/gh", b"{}", headers) == first
    assert await taken(rig, "/hooks/gh", b"{}", github(b"{}", X_GitHub_Delivery="another")) != first
    rig.valkey.clock.advance(DAY_MS - 60_000)
    assert await taken(rig, "/hooks/gh", b"{}", headers) == first
    rig.valkey.clock.advance(61_000)
    assert await taken(rig, "/hooks/gh", b"{}", headers) != first


async def test_a_delivery_that_is_not_verified_leaves_no_trace_of_its_id(rig: Rig) -> None:
    bad = github(b"{}", secret="guess", X_GitHub_Delivery="d1")
    assert (await post(rig, "/hooks/gh", b"{}", bad)).status_code == 401
    await taken(rig, "/hooks/gh", b"{}", github(b"{}", X_GitHub_Delivery="d1"))
    await rig.run("gh.push")


async def test_fifty_at_once_are_one_job(rig: Rig) -> None:
    headers = github(b"{}", X_GitHub_Delivery="d1")
    ids = await asyncio.gather(*(taken(rig, "/hooks/gh", b"{}", headers) for _ in range(50)))
    assert len(set(ids)) == 1
    assert await pending(rig, "gh.push") == 1


async def test_a_functions_own_key_goes_before_the_senders(rig: Rig) -> None:
    first = await taken(rig, "/hooks/sorted/t?id=7", b"a")
    assert await taken(rig, "/hooks/sorted/t?id=7", b"b") == first
    assert await taken(rig, "/hooks/sorted/t?id=8", b"a") != first
    assert await taken(rig, "/hooks/sorted/t", b"a") != await taken(rig, "/hooks/sorted/t", b"a")


async def test_two_tenants_of_one_pattern_do_not_share_their_ids(rig: Rig) -> None:
    ids = [await taken(rig, path, b'{"id": 1}') for path in ("/hooks/param/a", "/hooks/param/b", "/hooks/param/a")]
    assert ids[0] == ids[2] != ids[1]
    ids = [await taken(rig, f"/hooks/headed?of={of}", b"x") for of in ("a", "b", "a")]
    assert ids[0] == ids[2] != ids[1]


async def test_a_key_of_the_whole_body_and_one_until_done(rig: Rig) -> None:
    first = await taken(rig, "/hooks/headed", b"a")
    assert await taken(rig, "/hooks/headed", b"a") == first
    assert await taken(rig, "/hooks/headed", b"b") != first
    first = await taken(rig, "/hooks/param/t", b'{"id": 1}')
    assert await taken(rig, "/hooks/param/t", b'{"id": 1}') == first
    await rig.run("gh.param")
    assert await taken(rig, "/hooks/param/t", b'{"id": 1}') != first


# ---- Slack and Stripe ---------------------------------------------------------------------------------------------


async def of(rig: Rig, verify: Verify) -> None:
    await publish(rig.bus, (hook("of.one", "/hooks/of", verify, "GH"),), version=VersionId("DEP00000000003"))
    await rig.registry.refresh()


def slack(rig: Rig, body: bytes, off_s: int = 0) -> dict[str, str]:
    at = str(rig.bus.clock.now_ms() // 1000 + off_s)
    signature = hmac.new(SECRET.encode(), f"v0:{at}:".encode() + body, hashlib.sha256).hexdigest()
    return {"X-Slack-Request-Timestamp": at, "X-Slack-Signature": f"v0={signature}"}


async def test_slack_is_answered_its_challenge_once_it_is_slack(rig: Rig) -> None:
    await of(rig, "slack")
    body = b'{"token": "x", "challenge": "3eZbrw1a", "type": "url_verification"}'
    assert (await post(rig, "/hooks/of", body)).status_code == 401
    answer = await post(rig, "/hooks/of", body, slack(rig, body))
    assert (answer.status_code, answer.json()) == (200, {"challenge": "3eZbrw1a"})
    assert await pending(rig, "of.one") == 0


async def test_slacks_event_id_and_for_the_rest_its_signature_make_one_job(rig: Rig) -> None:
    await of(rig, "slack")
    event = b'{"type": "event_callback", "event_id": "Ev123"}'
    first = await taken(rig, "/hooks/of", event, slack(rig, event))
    assert await taken(rig, "/hooks/of", event, slack(rig, event, off_s=60)) == first  # sent again, signed anew
    command = b"command=%2Fx&trigger_id=1"
    headers = {**slack(rig, command), "Content-Type": "application/x-www-form-urlencoded"}
    first = await taken(rig, "/hooks/of", command, headers)
    assert await taken(rig, "/hooks/of", command, headers) == first
    assert await taken(rig, "/hooks/of", command, slack(rig, command, off_s=1)) != first


FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize("told", [FORM, "application/json; charset=cp037", "text/plain"])
@pytest.mark.parametrize("path", ["/hooks/of", "/hooks/%6Ff"])
async def test_a_replay_dressed_up_in_what_was_not_signed_is_the_same_delivery(told: str, path: str, rig: Rig) -> None:
    await of(rig, "slack")
    for body, kind in ((b'{"event_id": "Ev1"}', "application/json"), (b"command=%2Fx", FORM)):
        headers = slack(rig, body)
        first = await taken(rig, "/hooks/of", body, {**headers, "Content-Type": kind})
        assert await taken(rig, path, body, {**headers, "Content-Type": told}) == first
        capitals = "v0=" + headers["X-Slack-Signature"].removeprefix("v0=").upper()
        assert await taken(rig, path, body, {**headers, "X-Slack-Signature": capitals}) == first
        before = [("X-Slack-Signature", "v0=00"), *headers.items()]
        answer = await rig.http.post(path, content=body, headers=before)
        assert (answer.status_code, answer.json()["id"]) == (202, first)


async def test_stripes_event_id_makes_one_job(rig: Rig) -> None:
    await of(rig, "stripe")
    body = b'{"id": "evt_1", "object": "event"}'

    def stripe(off_s: int) -> dict[str, str]:
        at = str(rig.bus.clock.now_ms() // 1000 + off_s)
        signature = hmac.new(SECRET.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
        return {"Stripe-Signature": f"t={at},v1={signature}"}

    first = await taken(rig, "/hooks/of", body, stripe(0))
    assert await taken(rig, "/hooks/of", body, stripe(9)) == first
    assert await taken(rig, "/hooks/%6ff", body, {**stripe(9), "Content-Type": FORM}) == first


async def test_hmac_bearer_and_basic_over_http(rig: Rig) -> None:
    signature = base64.b64encode(hmac.new(b"hmac-secret", b"x", hashlib.sha256).digest()).decode()
    await taken(rig, "/hooks/hmac", b"x", {"X-Sig": f"v1={signature}"})
    assert "x-sig" not in (await minted(rig, "my.hmac"))["headers"]
    assert (await post(rig, "/hooks/hmac", b"y", {"X-Sig": f"v1={signature}"})).status_code == 401
    await taken(rig, "/hooks/bearer", b"x", {"Authorization": "Bearer t0ken"})
    answer = await post(rig, "/hooks/bearer", b"x", {"Authorization": "Bearer the-gateways-own"})
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, 'Bearer realm="webhook"')
    await taken(rig, "/hooks/basic", b"x", {"Authorization": "Basic " + base64.b64encode(b"ada:pass").decode()})
    assert (await post(rig, "/hooks/basic", b"x")).headers["WWW-Authenticate"] == 'Basic realm="webhook"'


# ---- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "signature",
    [b"", b"sha256=", b"sha256=\xff\xfe", b"sha256=" + b"0" * 64, b"sha256=" + b"a" * 8_000, b"\x80" * 100, b"sha1=0"],
)
async def test_odd_signatures_are_401(signature: bytes, rig: Rig) -> None:
    answer = await post(rig, "/hooks/gh", b"{}", [(b"X-Hub-Signature-256", signature)])
    assert (answer.status_code, answer.json()["type"]) == (401, "urn:echod:problem:unverified")
    assert await pending(rig, "gh.push") == 0


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS"])
async def test_other_methods_are_405_and_say_which(method: str, rig: Rig) -> None:
    answer = await rig.http.request(method, "/hooks/gh")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "POST, PUT, PATCH")


async def test_a_missing_secret_disables_its_path_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = await post(rig, "/hooks/lost", b"{}", github(b"{}"))
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "60")
    assert "NOT_SET, NEITHER" in answer.json()["detail"]
    await taken(rig, "/hooks/gh", b"{}", github(b"{}"))
    monkeypatch.setenv("NEITHER", SECRET)
    await taken(rig, "/hooks/lost", b"{}", github(b"{}"))
    monkeypatch.setenv("NEITHER", "")
    assert (await post(rig, "/hooks/lost", b"{}", github(b"{}", secret=""))).status_code == 503


async def test_a_secret_that_can_verify_nothing_is_503_and_not_shown(rig: Rig) -> None:
    answer = await post(rig, "/hooks/spoiled", b"{}")
    assert (answer.status_code, "base64" in answer.json()["detail"]) == (503, True)
    assert SECRET not in answer.text


async def test_while_a_secret_is_rotated_either_verifies(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for secret in ("old", "new"):
        await taken(rig, "/hooks/rotated", b"{}", github(b"{}", secret=secret))
    monkeypatch.delenv("OLD")
    await taken(rig, "/hooks/rotated", b"{}", github(b"{}", secret="new"))
    assert (await post(rig, "/hooks/rotated", b"{}", github(b"{}", secret="old"))).status_code == 401


async def test_a_function_of_webhooks_alone_is_not_called_around_them(rig: Rig) -> None:
    answer = await rig.call("gh.push", {"a": 1}, Authorization="Bearer the-gateways-own")
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
    assert "its webhook alone, at /hooks/gh" in answer.json()["detail"]
    for name in ("both.ways", "timed.one"):
        assert (await rig.call(name, {"a": 1}, Authorization="Bearer the-gateways-own")).status_code == 202


async def test_a_full_queue_is_429(rig: Rig) -> None:
    await taken(rig, "/hooks/small")
    answer = await post(rig, "/hooks/small")
    assert answer.status_code == 429, answer.text
    assert answer.headers["Retry-After"] == "1"


async def test_too_much_in_the_address_or_the_headers_is_refused(rig: Rig) -> None:
    many = "&".join(f"a{index}=1" for index in range(1001))
    assert (await post(rig, f"/hooks/both?{many}")).status_code == 400
    body = b"x" * (1024 * 1024 - 10)
    answer = await post(rig, "/hooks/both", body, [("X-Long", "y" * 30_000)] * 3)
    assert answer.status_code in (400, 413, 431)


async def test_without_a_version_a_sender_is_told_to_come_again(server: Valkey) -> None:
    async with serving(server, deployed=False, token="t") as rig:
        answer = await post(rig, "/hooks/gh", b"{}")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")


ODD = [
    ":{}#/%?*\n",
    "🦊",
    "caf\u00e9",
    "cafe\u0301",
    "../../etc",
    "x" * 10_000,
    " ",
    "a.b",
    "{q}:job:1",
    "\x00",
    "-",
    "~",
]


async def test_odd_lanes_and_delivery_ids_are_taken_and_kept_apart(rig: Rig) -> None:
    ids: dict[str, str] = {}
    for odd in ODD:
        body = msgspec.json.encode({"who": odd})
        path = f"/hooks/sorted/t?id={quote(odd, safe='')[:9000]}"
        ids[odd] = await taken(rig, path, body, {"Content-Type": "application/json"})
        assert await taken(rig, path, body, {"Content-Type": "application/json"}) == ids[odd]
    assert len(set(ids.values())) == len(ODD)
    lanes = {job.id: job.lane for job in (await rig.bus.jobs("gh.sorted", limit=100))[0]}
    assert lanes == {id: odd for odd, id in ids.items()}
    page = await rig.http.get("/jobs", headers={"Authorization": "Bearer the-gateways-own", "Accept": "text/html"})
    assert page.status_code == 200
    for _ in ODD:  # each can be claimed, and ends
        await rig.run("gh.sorted")
    assert await pending(rig, "gh.sorted") == 0


async def test_a_bus_at_its_memory_limit_is_503_and_no_2xx(rig: Rig) -> None:
    rig.valkey.command("CONFIG", "SET", "maxmemory", "1")
    try:
        answer = await post(rig, "/hooks/gh", b"{}", github(b"{}", X_GitHub_Delivery="full"))
    finally:
        rig.valkey.command("CONFIG", "SET", "maxmemory", "0")
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:echod:problem:bus-full")
    assert answer.headers["Retry-After"] == "5"
    await taken(rig, "/hooks/gh", b"{}", github(b"{}", X_GitHub_Delivery="full"))


async def test_a_bus_that_is_away_is_503_and_no_2xx(rig: Rig) -> None:
    headers = github(b"{}", X_GitHub_Delivery="d1")
    with impatient(rig.bus), rig.valkey.paused():
        answer = await post(rig, "/hooks/gh", b"{}", headers)
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:echod:problem:bus-away")
        assert (await post(rig, "/hooks/gh", b"{!", headers)).status_code == 401  # needs no bus
    async with asyncio.timeout(PATIENCE_S):
        while (await post(rig, "/hooks/gh", b"{}", headers)).status_code != 202:
            pass
    assert len((await rig.bus.jobs("gh.push"))[0]) == 1


async def test_what_became_of_requests_is_counted(rig: Rig) -> None:
    headers = github(b"{}", X_GitHub_Delivery="d1")
    await taken(rig, "/hooks/gh", b"{}", headers)
    await taken(rig, "/hooks/gh", b"{}", headers)
    await post(rig, "/hooks/gh", b"{")
    await post(rig, "/hooks/lost", b"{")
    metrics = (await rig.http.get("/metrics", headers={"Authorization": "Bearer the-gateways-own"})).text
    for name, outcome in (
        ("gh.push", "minted"),
        ("gh.push", "repeated"),
        ("gh.push", "unverified"),
        ("gh.lost", "webhook-disabled"),
    ):
        assert f'echod_webhook_requests_total{{function="{name}",outcome="{outcome}"}} 1.0' in metrics


async def test_the_functions_say_where_they_listen_and_name_no_secret(rig: Rig) -> None:
    listed = (await rig.http.get("/functions", headers={"Authorization": "Bearer the-gateways-own"})).json()
    found = {each["name"]: each["triggers"] for each in listed["functions"]}
    assert found["gh.push"] == [
        {"kind": "webhook", "path": "/hooks/gh", "verify": "github", "secrets": ["GH"], "lane": None, "unique": None}
    ]
    assert found["my.hmac"][0]["verify"]["header"] == "x-sig"
    page = await rig.http.get(
        "/functions/gh.push", headers={"Authorization": "Bearer the-gateways-own", "Accept": "text/html"}
    )
    assert page.status_code == 200
    assert "Only a verified request starts this function: POST /hooks/gh" in page.text
    assert "data-invoke" not in page.text
