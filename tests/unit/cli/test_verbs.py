"""The verbs' manners: results alone on stdout, errors in a line on stderr, exit codes, suggestions."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from echod.cli.app import VERBS, run
from echod.gateway.jobs import MOST

from .conftest import Gateway

JOB = {
    "id": "JOB00000000001",
    "function": "shop.pack",
    "lane": "-",
    "state": "dead",
    "reason": None,
    "attempts": 2,
    "failures": 2,
    "payload": {"a": 1},
    "result": None,
    "error": {"type": "ValueError", "message": "no such thing", "traceback": "Traceback …\n", "cause": "error"},
    "due": "2026-01-01T00:00:00.000Z",
    "minted": "2026-01-01T00:00:00.000Z",
    "started": None,
    "ended": "2026-01-01T00:00:01.000Z",
    "occurrence": None,
    "parent": None,
    "version": "DEP00000000001",
    "history": [],
}


def test_every_verb_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in VERBS:
        assert run([verb, "--help"]) == 0
        assert f"echod {verb}" in capsys.readouterr().out


def test_a_mistyped_verb_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["invok"]) == 2
    assert "did you mean `echod invoke`?" in capsys.readouterr().err


def test_nothing_listening_exits_3_and_says_what_to_start(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        assert run(["jobs", "--url", url]) == 3
    said = capsys.readouterr()
    assert not said.out
    assert "start it with `echod dev`" in said.err


@pytest.mark.parametrize(
    ("asking", "is_doubtful"), [(["rollback", "DEP00000000001"], True), (["versions"], False)], ids=["acts", "looks"]
)
def test_one_that_went_away_before_it_answered_may_have_done_what_was_asked(
    asking: list[str], is_doubtful: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hang_up() -> None:
            with listening.accept()[0] as connection:
                connection.recv(1)

        thread = threading.Thread(target=hang_up)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        assert run([*asking, "--url", url]) == 3
        thread.join()
    said = capsys.readouterr().err
    assert "went away before it answered" in said
    assert ("may be done or not" in said) == is_doubtful


@pytest.mark.parametrize("url", ["localhost:8321", "ftp://x", "http://", "http://x:notaport"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    assert run(["jobs", "--url", url]) == 2


def test_a_result_is_alone_on_stdout(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.says("POST", "/functions/shop.pack", {"ok": "é"})
    assert run(["invoke", "shop.pack", "--data", '{"a": 1}', "--wait"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": "é"}
    [asked] = gateway.asked
    assert asked.body == b'{"a": 1}'
    assert asked.headers["prefer"].startswith("wait=")


def test_a_failed_run_exits_1_with_its_error_on_stderr(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.says("POST", "/functions/shop.pack", {"detail": "ended badly", "job": JOB["id"]}, status=500)
    gateway.says("GET", f"/jobs/{JOB['id']}", JOB)
    assert run(["invoke", "shop.pack", "--wait"]) == 1
    said = capsys.readouterr()
    assert not said.out
    assert "ValueError: no such thing" in said.err


def test_a_run_that_outlasts_one_request_is_waited_for(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.says("POST", "/functions/shop.pack", {"id": JOB["id"]}, status=202)
    gateway.says("GET", f"/jobs/{JOB['id']}", {**JOB, "state": "done", "result": [1]})
    assert run(["invoke", "shop.pack", "--wait"]) == 0
    assert capsys.readouterr().out == "[1]\n"


def test_a_wait_that_runs_out_exits_4_and_names_the_job(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.says("POST", "/functions/shop.pack", {"id": JOB["id"]}, status=202)
    gateway.says("GET", f"/jobs/{JOB['id']}", {**JOB, "state": "active"})
    assert run(["invoke", "shop.pack", "--wait", "--timeout", "50ms"]) == 4
    assert str(JOB["id"]) in capsys.readouterr().err


def test_without_wait_the_id_is_printed_and_wishes_travel(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.says("POST", "/functions/shop.pack", {"id": "JOB1"}, status=202)
    assert run(["invoke", "shop.pack", "--lane", "a", "--delay", "5m", "--key", "k"]) == 0
    assert capsys.readouterr().out == "JOB1\n"
    headers = gateway.asked[0].headers
    assert (headers["echo-lane"], headers["echo-delay"], headers["idempotency-key"]) == ("a", "5m", "k")
    assert "prefer" not in headers


@pytest.mark.parametrize("data", ["{nope", "@/no/such/file", "NaN"])
def test_a_payload_that_is_no_json_is_refused_before_anything_is_asked(gateway: Gateway, data: str) -> None:
    assert run(["invoke", "shop.pack", "--data", data]) == 2
    assert not gateway.asked


def test_a_payload_may_come_from_a_file(gateway: Gateway, tmp_path: Path) -> None:
    (tmp_path / "payload.json").write_text("[1, 2]")
    gateway.says("POST", "/functions/shop.pack", {"id": "JOB1"}, status=202)
    assert run(["invoke", "shop.pack", "--data", f"@{tmp_path}/payload.json"]) == 0
    assert gateway.asked[0].body == b"[1, 2]"


@pytest.mark.parametrize(
    ("status", "code"), [(404, 2), (401, 2), (409, 2), (422, 2), (429, 2), (500, 1), (503, 3), (504, 4)]
)
def test_each_problem_has_its_exit_code_and_says_its_detail(
    gateway: Gateway, capsys: pytest.CaptureFixture[str], status: int, code: int
) -> None:
    gateway.says("GET", "/jobs/JOBx", {"title": "T", "detail": "the very detail"}, status=status)
    assert run(["job", "JOBx"]) == code
    assert "the very detail" in capsys.readouterr().err


def test_the_token_travels(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHOD_TOKEN", "secret")
    gateway.says("GET", "/schedules", {"schedules": []})
    assert run(["schedules"]) == 0
    assert gateway.asked[0].headers["authorization"] == "Bearer secret"


def test_lists_are_tables_for_people_and_json_for_programs(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.says("GET", "/jobs?limit=20", {"jobs": [JOB], "cursor": "next"})
    assert run(["jobs"]) == 0
    said = capsys.readouterr()
    assert JOB["id"] in said.out
    assert "--cursor next" in said.err
    assert run(["jobs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"jobs": [JOB], "cursor": "next"}


def test_a_list_of_jobs_is_as_long_as_the_gateway_gives_at_once(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.says("GET", f"/jobs?limit={MOST}", {"jobs": [JOB], "cursor": None})
    assert run(["jobs", "--limit", str(MOST)]) == 0
    assert run(["jobs", "--limit", str(MOST + 1)]) == 2
    assert f"1<=x<={MOST}" in capsys.readouterr().err
    assert len(gateway.asked) == 1


def test_a_job_is_shown_with_its_error(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.says("GET", f"/jobs/{JOB['id']}", JOB)
    assert run(["job", str(JOB["id"])]) == 0
    assert "ValueError: no such thing (cause: error)" in capsys.readouterr().out


LINE = {"at": "T", "stream": "log", "level": "INFO", "text": "hello"}
STREAM = f"""\
: ping

id: 1-0
event: log
data: {json.dumps(LINE)}

event: end
data: {{}}

""".encode()


def test_logs_follow_the_stream_to_its_end(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    path = f"/jobs/{JOB['id']}/logs"
    gateway.says("GET", path, STREAM)
    assert run(["logs", str(JOB["id"]), "-f"]) == 0
    assert capsys.readouterr().out == "T INFO hello\n"
    gateway.says("GET", path, [LINE, {**LINE, "text": "bye"}])
    assert run(["logs", str(JOB["id"]), "--grep", "ell"]) == 0
    assert capsys.readouterr().out == "T INFO hello\n"


def test_logs_of_a_function_are_asked_for_and_name_their_jobs(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = "/functions/shop.pack/logs?since=1h&failed=1&grep=a%26b&limit=5"
    gateway.says("GET", asked, {"lines": [{**LINE, "job": JOB["id"]}], "truncated": True})
    assert run(["logs", "shop.pack", "--since", "1h", "--failed", "--grep", "a&b", "--limit", "5"]) == 0
    said = capsys.readouterr()
    assert said.out == f"T {JOB['id']} INFO hello\n"
    assert "older lines are left out" in said.err
    gateway.says("GET", "/functions/shop.pack/logs", STREAM)
    assert run(["logs", "shop.pack", "-f", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == LINE


def test_a_stream_that_is_cut_goes_on_after_the_line_that_came_last(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    path = "/functions/shop.pack/logs"
    gateway.says("GET", path, STREAM.partition(b"event: end")[0], STREAM.replace(b"hello", b"again"))
    assert run(["logs", "shop.pack", "-f"]) == 0
    assert capsys.readouterr().out == "T INFO hello\nT INFO again\n"
    assert [each.headers.get("last-event-id") for each in gateway.asked] == [None, "1-0"]


def test_a_job_is_not_asked_for_what_only_a_function_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["logs", str(JOB["id"]), "--failed"]) == 2
    assert "one job" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "path"), [("shop.pack", "/functions/shop.pack/pause"), ("a/b", "/schedules/a%2Fb/pause")]
)
def test_pause_tells_functions_from_schedules(gateway: Gateway, name: str, path: str) -> None:
    gateway.says("POST", path, {})
    assert run(["pause", name]) == 0


@pytest.mark.parametrize("action", ["pause", "resume"])
def test_one_lane_can_be_paused_and_resumed(gateway: Gateway, capsys: pytest.CaptureFixture[str], action: str) -> None:
    gateway.says("POST", f"/functions/shop.pack/{action}?lane=Bo+%26+co", {})
    assert run([action, "shop.pack", "--lane", "Bo & co"]) == 0
    assert capsys.readouterr().out == f"shop.pack lane Bo & co {action}d\n"
    for refused in (["a/b", "--lane", "c"], ["shop.pack", "--lane", ""]):  # and not a whole function in its place
        assert run([action, *refused]) == 2
    assert len(gateway.asked) == 1


def test_init_writes_a_project_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", str(tmp_path / "app")]) == 0
    assert (tmp_path / "app" / "functions" / "hello.py").exists()
    assert "echod dev" in capsys.readouterr().out
    assert run(["init", str(tmp_path / "app")]) == 2
    assert "functions/hello.py" in capsys.readouterr().err


def test_init_without_a_name_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["init", ""]) == 2
    assert "FOLDER: expected a folder's name" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert run(["init", "a b/ü"]) == 0
    assert capsys.readouterr().out.endswith("cd 'a b/ü' && echod dev\n")


def test_an_option_that_the_gateway_refuses_is_told_by_its_own_name(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway.says("POST", "/functions/shop.pack", {"detail": "Echo-Delay: expected a duration"}, status=400)
    assert run(["invoke", "shop.pack", "--delay", "1 hour"]) == 2
    assert "--delay: expected a duration" in capsys.readouterr().err


def test_settings_come_from_flags_then_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHOD_PORT", "4711")
    monkeypatch.setenv("ECHOD_TOKEN", "secret")
    assert run(["config", "--json", "--lease", "5s", "--bus", "valkey://:pw@host"]) == 0
    said = capsys.readouterr().out
    config = json.loads(said)
    assert (config["port"], config["lease_ms"], config["token"]) == (4711, 5000, "***")
    assert "pw" not in said
    assert run(["config", "--lease", "soon"]) == 2
    monkeypatch.setenv("ECHOD_PORT", "many")
    monkeypatch.setenv("ECHOD_SANDBOX", "none")
    assert run(["config"]) == 2
    said = capsys.readouterr().err
    assert "ECHOD_PORT" in said
    assert "ECHOD_SANDBOX" in said


def test_bus_prints_the_address_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bus", "--state", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"unix://{tmp_path}/valkey.sock\n"


def test_cron_prints_instants_and_refuses_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            [
                "cron",
                "0 6 * * mon",
                "--tz",
                "Europe/Berlin",
                "--after",
                "2026-03-23T00:00:00Z",
                "--count",
                "2",
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out) == ["2026-03-23T05:00:00Z", "2026-03-30T04:00:00Z"]
    for wrong in (
        ["0 0 30 2 *"],
        ["* * * * *", "--tz", "Nowhere"],
        ["* * * * *", "--after", "noon"],
        ["* * * * *", "--after", "2026-01-01T00:00:00"],
    ):
        assert run(["cron", *wrong]) == 2
        assert capsys.readouterr().err.startswith("echod: ")
