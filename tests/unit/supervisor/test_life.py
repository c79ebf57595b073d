"""A worker's life as histories: what happened, and who pays for it."""

from __future__ import annotations

import signal

import pytest

from echod.supervisor.channel import Fault
from echod.supervisor.life import Life, Phase, cause_of

Step = tuple[str, object]


def live(*steps: Step) -> tuple[Life[str], list[str]]:
    """A life after these steps, and the jobs that were answered."""
    life: Life[str] = Life()
    answered: list[str] = []
    for verb, value in steps:
        match verb:
            case "ready":
                life.became_ready()
            case "failed":
                life.failed()
            case "hand":
                life.hand(str(value).split())
            case "begun":
                life.begun(int(str(value)))
            case "ended":
                answered.append(life.answered(int(str(value))))
            case "output":
                life.running(int(str(value)))
            case "stop":
                life.stop()
            case "kill":
                life.kill(value)  # type: ignore[arg-type]
            case _:
                raise AssertionError(verb)
    return life, answered


READY: Step = ("ready", None)

HISTORIES: dict[str, tuple[list[Step], list[str], str | None, list[str]]] = {
    # name: steps, answered, the job that had begun, the jobs that had not
    "a start that ends at once": ([], [], None, []),
    "a start that failed": ([("failed", None)], [], None, []),
    "ready and idle": ([READY], [], None, []),
    "one job, answered": ([READY, ("hand", "a"), ("begun", 0), ("ended", 0)], ["a"], None, []),
    "a crash in the only job": ([READY, ("hand", "a"), ("begun", 0)], [], "a", []),
    "a crash before the job began": ([READY, ("hand", "a")], [], None, ["a"]),
    "a crash in the first of three": ([READY, ("hand", "a b c"), ("begun", 0)], [], "a", ["b", "c"]),
    "a crash in the second of three": (
        [READY, ("hand", "a b c"), ("begun", 0), ("ended", 0), ("begun", 1)],
        ["a"],
        "b",
        ["c"],
    ),
    "a crash between two jobs charges neither": (
        [READY, ("hand", "a b"), ("begun", 0), ("ended", 0)],
        ["a"],
        None,
        ["b"],
    ),
    "a second frame counts from nought again": (
        [READY, ("hand", "a b"), ("hand", "c"), ("begun", 0), ("ended", 0), ("begun", 1), ("ended", 1), ("begun", 0)],
        ["a", "b"],
        "c",
        [],
    ),
    "a stopped worker finishes what has begun": (
        [READY, ("hand", "a b"), ("begun", 0), ("stop", None), ("ended", 0)],
        ["a"],
        None,
        ["b"],
    ),
    "an answer that was on its way when we killed stands": (
        [READY, ("hand", "a b"), ("begun", 0), ("kill", "timeout"), ("ended", 0)],
        ["a"],
        None,
        ["b"],
    ),
    "output of the running job is heard": ([READY, ("hand", "a"), ("begun", 0), ("output", 0)], [], "a", []),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_only_the_job_that_had_begun_is_charged(name: str) -> None:
    steps, answered, begun, unbegun = HISTORIES[name]
    life, got = live(*steps)
    assert got == answered
    assert life.gone() == (begun, unbegun)
    assert life.phase is Phase.GONE
    assert life.held == 0


LIES: dict[str, list[Step]] = {
    "ready twice": [READY, READY],
    "a failed start after ready": [READY, ("failed", None)],
    "a job that was never handed over": [READY, ("begun", 0)],
    "an answer without a job": [READY, ("ended", 0)],
    "an answer before it began": [READY, ("hand", "a"), ("ended", 0)],
    "an answer twice": [READY, ("hand", "a"), ("begun", 0), ("ended", 0), ("ended", 0)],
    "a neighbour's answer": [READY, ("hand", "a b"), ("begun", 0), ("ended", 1)],
    "out of turn": [READY, ("hand", "a b"), ("begun", 1)],
    "two at once": [READY, ("hand", "a b"), ("begun", 0), ("begun", 1)],
    "begun again": [READY, ("hand", "a"), ("begun", 0), ("begun", 0)],
    "output while idle": [READY, ("hand", "a"), ("output", 0)],
    "output of a neighbour": [READY, ("hand", "a b"), ("begun", 0), ("output", 1)],
    "output after the end": [READY, ("hand", "a"), ("begun", 0), ("ended", 0), ("output", 0)],
    "a negative position": [READY, ("hand", "a"), ("begun", -1)],
}


@pytest.mark.parametrize("name", LIES)
def test_whatever_is_out_of_order_is_a_fault(name: str) -> None:
    with pytest.raises(Fault):
        live(*LIES[name])


def test_a_withdrawn_job_can_not_begin_any_more() -> None:
    life, _ = live(READY, ("hand", "a b c"), ("begun", 0), ("stop", None))
    assert life.withdraw() == ["b", "c"]
    life.answered(0)
    with pytest.raises(Fault):
        life.begun(1)


def test_the_first_reason_to_kill_stands() -> None:
    life, _ = live(READY, ("hand", "a"), ("begun", 0))
    assert life.kill("timeout")
    assert not life.kill("released")
    assert life.why == "timeout"


def test_only_a_ready_worker_takes_jobs() -> None:
    for steps in ([], [("failed", None)], [READY, ("stop", None)]):
        life, _ = live(*steps)  # type: ignore[misc]
        with pytest.raises(ValueError, match="expected a ready worker"):
            life.hand(["a"])


@pytest.mark.parametrize(
    ("status", "why", "peak", "cause"),
    [
        (0, None, 0, "exit:0"),
        (1 << 8, None, 0, "exit:1"),
        (signal.SIGSEGV, None, 0, "signal:SEGV"),
        (signal.SIGABRT | 0x80, None, 0, "signal:ABRT"),
        (signal.SIGKILL, None, 10, "signal:KILL"),
        (signal.SIGKILL, None, 200, "memory"),
        (signal.SIGKILL, "timeout", 200, "timeout"),
        (signal.SIGKILL, "protocol", 0, "protocol"),
        (signal.SIGKILL, "startup", 0, "timeout"),
        (64, None, 0, "signal:RTMAX"),
        (35, None, 0, "signal:35"),
        (None, None, 0, "lost"),
        (None, "base", 0, "lost"),
    ],
)
def test_the_cause_is_named(status: int | None, why: str | None, peak: int, cause: str) -> None:
    assert cause_of(status, why=why, peak_bytes=peak, memory_bytes=100) == cause  # type: ignore[arg-type]
