"""Faults as problem+json."""

from __future__ import annotations

import json

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from echod.errors import (
    BusAway,
    BusError,
    BusFull,
    BusReadOnly,
    BusUnfit,
    EchodError,
    LeaseGone,
    NothingListens,
    Refused,
    TimedOut,
)
from echod.gateway import problems
from echod.gateway.problems import KINDS, Problem


@pytest.mark.parametrize(
    ("error", "status", "slug"),
    [
        (BusAway("gone"), 503, "bus-away"),
        (BusReadOnly("replica"), 503, "bus-read-only"),
        (BusFull("maxmemory"), 503, "bus-full"),
        (BusUnfit("old"), 503, "bus-unfit"),
        (LeaseGone("paused"), 503, "lease-gone"),
        (Refused("no"), 422, "refused"),
        (TimedOut("late"), 504, "timed-out"),
        (BusError("odd"), 500, "internal"),
        (NothingListens("where"), 500, "internal"),
        (EchodError("root"), 500, "internal"),
        (RuntimeError("bug"), 500, "internal"),
        (HTTPException(404), 404, "not-found"),
        (HTTPException(405), 405, "wrong-method"),
        (HTTPException(413), 413, "too-large"),
        (HTTPException(400, "odd"), 400, "bad-request"),
        (ClientDisconnect(), 400, "bad-request"),
    ],
)
def test_every_error_has_its_code(error: Exception, status: int, slug: str) -> None:
    problem = problems.of(error)
    assert (problem.status, problem.slug) == (status, slug)


@pytest.mark.parametrize("error", [BusAway("x"), BusReadOnly("x"), BusFull("x"), LeaseGone("x")])
def test_what_passes_by_waiting_says_when_to_ask_again(error: Exception) -> None:
    assert int(problems.of(error).headers["Retry-After"]) >= 1


def test_what_waiting_does_not_mend_has_no_retry_after() -> None:
    assert "Retry-After" not in problems.of(BusUnfit("too old")).headers


def test_an_unexpected_error_tells_a_stranger_nothing_of_itself() -> None:
    assert "secret" not in json.dumps(problems.of(RuntimeError("secret")).view())


def test_the_answer_is_problem_json_with_type_title_status_detail_and_hints() -> None:
    answer = Problem("unknown-function", "no function", suggestions=["shop.pack"], nothing=None).response()
    assert answer.headers["content-type"] == "application/problem+json"
    assert json.loads(bytes(answer.body)) == {
        "type": "urn:echod:problem:unknown-function",
        "title": "No such function",
        "status": 404,
        "detail": "no function",
        "suggestions": ["shop.pack"],
    }


def test_every_error_of_the_bus_has_a_kind() -> None:
    for kind in (BusAway, BusReadOnly, BusFull, BusUnfit, LeaseGone, Refused, TimedOut):
        assert kind.code in KINDS


def test_suggestions_are_the_nearest_names_and_bounded_in_cost() -> None:
    assert problems.suggestions("shop.pak", ["shop.pack", "shop.send", "other"]) == ["shop.pack", "shop.send"]
    assert problems.suggestions("x" * 10_000, ["shop.pack"]) is None
