"""The public face of echofn: light to import, typed, and harmless outside a worker."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import echofn

ALLOWED = {"__future__", "echofn", "echofn.annotations", "echofn.verdicts", "echofn.context"}
ALLOWED |= {"echofn.verifiers", "echofn.request", "echofn.backoff"}


@pytest.mark.parametrize("statement", ["import echofn", "from echofn import *", "from echofn import queue, Context"])
def test_importing_echofn_loads_nothing_else(statement: str) -> None:
    program = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    told = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True).stdout
    assert set(told.split()) <= ALLOWED


def test_the_public_names_are_these() -> None:
    verbs = ["basic", "bearer", "cron", "every", "hmac", "lifespan", "queue", "webhook"]
    assert echofn.__all__ == ["Backoff", "Cancel", "Context", "Fail", "Request", "Retry", "Snooze", *verbs]
    assert all(hasattr(echofn, name) for name in echofn.__all__)
    assert not hasattr(echofn, "anything_else")


def test_an_annotated_function_is_the_same_function() -> None:
    def plain(payload: int) -> int:
        return payload + 1

    annotated = echofn.queue(retries=1)(echofn.every("1s")(plain))
    assert annotated is plain
    assert echofn.queue(plain) is plain
    assert annotated(1) == 2


def test_verdicts_carry_what_they_were_given() -> None:
    assert (echofn.Retry("why", after="10s").reason, echofn.Retry(after=1).after_ms) == ("why", 1_000)
    assert echofn.Snooze("10m").after_ms == 600_000
    assert str(echofn.Fail("no")) == "no"
    assert echofn.Cancel().reason == ""
    with pytest.raises(ValueError, match="expected a duration"):
        echofn.Snooze("soon")


def test_annotations_keep_the_types_of_a_handler(tmp_path: Path) -> None:
    source = tmp_path / "handlers.py"
    source.write_text(
        textwrap.dedent(
            """
            from typing import assert_type
            from echofn import Context, Request, Retry, cron, every, hmac, queue, webhook

            @queue(lane="tenant", retries=5, timeout="30s", workers=(0, 4))
            @cron("0 6 * * mon", tz="Europe/Berlin")
            @every("20s")
            def send(payload: int, ctx: Context) -> str:
                assert_type(ctx.attempt, int)
                ctx.progress(0.5, "half")
                assert_type(ctx.enqueue(bare, {"n": 1}, delay="5s"), str)
                raise Retry(after="10s")

            @queue
            async def bare(payload: int) -> bytes:
                return b""

            @webhook("/hooks/x", verify=hmac("X-Sig", "sha1"), secret="S", lane="json.tenant", retries=1)
            def hook(request: Request) -> int:
                assert_type(request.body, bytes)
                assert_type(request.headers["x"], str)
                return 1

            webhook("/hooks/x")  # error: how is it verified?
            webhook("/hooks/x", verify="githib")  # error: no such sender

            def check(ctx: Context) -> None:
                assert_type(send(1, ctx), str)
                send("1", ctx)  # error: the payload is an int
                queue(retrys=1)  # error: no such option
                every(b"20s")  # error: no such period

            async def check_bare() -> None:
                assert_type(await bare(1), bytes)
            """
        )
    )
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--cache-dir",
        str(tmp_path / "cache"),
        str(source),
    ]
    told = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path).stdout
    errors = [line for line in told.splitlines() if ": error:" in line]
    lines = source.read_text().splitlines()
    expected = [number for number, line in enumerate(lines, 1) if "# error" in line]
    assert [int(line.split(":")[1]) for line in errors] == expected, told
