"""A worker's life as histories: what happened, and who pays for it."""

from __future__ import annotations

import signal

import pytest

from echod.supervisor.channel import Fault
from echod.supervisor.life import Life, Phase, blame, cause_of

Step = tuple[str, object]


def live(*steps: Step, at_once: int = 1) -> tuple[Life[str], list[str]]:
    """A life after these steps, and the jobs that were answered."""
    life: Life[str] = Life(at_once)
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
            case "skipped":
                life.skipped(int(str(value)))
            case "output":
                life.of(int(str(value)))
            case "stop":
                life.stop()
            case "kill":
                life.kill(value)  # type: ignore[arg-type]
            case _:
                raise AssertionError(verb)
    return life, answered


READY: Step = ("ready", None)

HISTORIES: dict[str, tuple[list[Step], list[str], list[str], list[str]]] = {
    # name: steps, answered, the job that had begun, the jobs that had not
    "a start that ends at once": ([], [], [], []),
    "a start that failed": ([("failed", None)], [], [], []),
    "ready and idle": ([READY], [], [], []),
    "one job, answered": ([READY, ("hand", "a"), ("begun", 0), ("ended", 0)], ["a"], [], []),
    "a crash in the only job": ([READY, ("hand", "a"), ("begun", 0)], [], ["a"], []),
    "a crash before the job began": ([READY, ("hand", "a")], [], [], ["a"]),
    "a crash in the first of three": ([READY, ("hand", "a b c"), ("begun", 0)], [], ["a"], ["b", "c"]),
    "a crash in the second of three": (
        [READY, ("hand", "a b c"), ("begun", 0), ("ended", 0), ("begun", 1)],
        ["a"],
        ["b"],
        ["c"],
    ),
    "a crash between two jobs charges neither": (
        [READY, ("hand", "a b"), ("begun", 0), ("ended", 0)],
        ["a"],
        [],
        ["b"],
    ),
    "a second frame counts on": (
        [READY, ("hand", "a b"), ("hand", "c"), ("begun", 0), ("ended", 0), ("begun", 1), ("ended", 1), ("begun", 2)],
        ["a", "b"],
        ["c"],
        [],
    ),
    "a stopped worker finishes what has begun": (
        [READY, ("hand", "a b"), ("begun", 0), ("stop", None), ("ended", 0)],
        ["a"],
        [],
        ["b"],
    ),
    "an answer that was on its way when we killed stands": (
        [READY, ("hand", "a b"), ("begun", 0), ("kill", "timeout"), ("ended", 0)],
        ["a"],
        [],
        ["b"],
    ),
    "output of the running job is heard": ([READY, ("hand", "a"), ("begun", 0), ("output", 0)], [], ["a"], []),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_only_the_job_that_had_begun_is_charged(name: str) -> None:
    steps, answered, begun, unbegun = HISTORIES[name]
    life, got = live(*steps)
    assert got == answered
    assert life.gone() == (begun, unbegun)
    assert life.phase is Phase.GONE
    assert life.held == 0


SIDE_BY_SIDE: dict[str, tuple[list[Step], list[str], list[str], list[str]]] = {
    "three at once, the second ends first": (
        [READY, ("hand", "a b c"), ("begun", 0), ("begun", 1), ("begun", 2), ("ended", 1)],
        ["b"],
        ["a", "c"],
        [],
    ),
    "room made by one is the next one's": (
        [READY, ("hand", "a b c d e"), *(("begun", n) for n in range(3)), ("ended", 2), ("begun", 3)],
        ["c"],
        ["a", "b", "d"],
        ["e"],
    ),
    "what is skipped leaves the line": (
        [READY, ("hand", "a b c d"), ("begun", 0), ("skipped", 1), ("skipped", 3), ("begun", 2)],
        [],
        ["a", "c"],
        [],
    ),
    "two frames run together under positions of their own": (
        [READY, ("hand", "a"), ("hand", "b"), ("begun", 0), ("begun", 1), ("ended", 0), ("ended", 1)],
        ["a", "b"],
        [],
        [],
    ),
}


@pytest.mark.parametrize("name", SIDE_BY_SIDE)
def test_several_run_at_once_and_each_is_known_by_its_position(name: str) -> None:
    steps, answered, begun, unbegun = SIDE_BY_SIDE[name]
    life, got = live(*steps, at_once=3)
    assert got == answered
    assert life.held == len(begun) + len(unbegun)
    assert life.gone() == (begun, unbegun)


@pytest.mark.parametrize(
    "steps",
    [
        [("begun", 0), ("begun", 1), ("begun", 2), ("begun", 3)],  # a fourth of three
        [("begun", 0), ("begun", 2)],
        [("begun", 0), ("skipped", 0)],
        [("skipped", 0), ("skipped", 0)],
        [("skipped", 0), ("begun", 0)],
        [("skipped", 7)],
        [("begun", 0), ("begun", 1), ("ended", 2)],
        [("begun", 0), ("begun", 1), ("ended", 0), ("output", 0)],
    ],
)
def test_side_by_side_is_no_excuse(steps: list[Step]) -> None:
    with pytest.raises(Fault):
        live(READY, ("hand", "a b c d"), *steps, at_once=3)


def test_what_was_taken_back_may_be_skipped_too_but_once() -> None:
    """It was asked to skip a job, then to stop; it says what it was asked only after the run that it is in."""
    life, _ = live(READY, ("hand", "a b c"), ("begun", 0), ("stop", None))
    assert life.withdraw() == ["b", "c"]
    assert life.skipped(1) is None
    life.answered(0)
    with pytest.raises(Fault):
        life.skipped(1)


@pytest.mark.parametrize(
    ("begun", "culprits", "why", "charged", "spared", "suspects"),
    [
        ("a", "", None, "a", "", ""),  # alone when it died
        ("ab", "", None, "", "", "ab"),  # one of them, and nobody can say which
        ("ab", "", "protocol", "", "", "ab"),
        ("abc", "b", "timeout", "b", "ac", ""),
        ("abc", "ac", "timeout", "ac", "b", ""),
        ("abc", "", "timeout", "", "", "abc"),  # late, and did not hear it: a neighbour may block their loop
        ("ab", "a", "cancelled", "a", "b", ""),
        ("a", "", "released", "", "a", ""),  # we are going down
        ("ab", "", "released", "", "ab", ""),
        ("", "", None, "", "", ""),
    ],
)
def test_who_pays_is_whom_it_died_of(
    begun: str, culprits: str, why: str | None, charged: str, spared: str, suspects: str
) -> None:
    fate = blame(list(begun), list(culprits), why)  # type: ignore[arg-type]
    assert (fate.charged, fate.spared, fate.suspects) == (list(charged), list(spared), list(suspects))


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
