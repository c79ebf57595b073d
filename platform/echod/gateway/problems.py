"""What went wrong, as RFC 9457 problem+json. The one place that knows which HTTP code a fault has.

A handler raises `Problem("unknown-function", "…")`; errors of the floors below are translated by `of`. The slug is
stable (`type` is `urn:echod:problem:<slug>`), the detail is for people, hints are extra members for programs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from echod.errors import (
    BusAway,
    BusError,
    BusFull,
    BusUnfit,
    EchodError,
    InvalidPayload,
    InvalidSchedule,
    KeyConflict,
    LeaseGone,
    NameTaken,
    NotCallable,
    NotDurable,
    QueueFull,
    Refused,
    TimedOut,
    Unconfirmed,
    UnknownFunction,
)

MEDIA_TYPE = "application/problem+json"

KINDS: Mapping[str, tuple[HTTPStatus, str]] = {
    "bad-request": (HTTPStatus.BAD_REQUEST, "The request cannot be read"),
    "bad-header": (HTTPStatus.BAD_REQUEST, "A header cannot be read"),
    "invalid-body": (HTTPStatus.BAD_REQUEST, "The body cannot be read"),
    "unauthenticated": (HTTPStatus.UNAUTHORIZED, "A token is needed"),
    "unverified": (HTTPStatus.UNAUTHORIZED, "The request is not verified"),
    "foreign-host": (HTTPStatus.FORBIDDEN, "The Host is not this server's"),
    "foreign-origin": (HTTPStatus.FORBIDDEN, "The Origin is not this server's"),
    "out-of-scope": (HTTPStatus.FORBIDDEN, "The token does not reach that far"),
    "not-found": (HTTPStatus.NOT_FOUND, "Nothing is at this address"),
    "unknown-function": (HTTPStatus.NOT_FOUND, "No such function"),
    "unknown-job": (HTTPStatus.NOT_FOUND, "No such job"),
    "unknown-schedule": (HTTPStatus.NOT_FOUND, "No such schedule"),
    "unknown-token": (HTTPStatus.NOT_FOUND, "No such token"),
    "wrong-method": (HTTPStatus.METHOD_NOT_ALLOWED, "Wrong method"),
    "not-callable": (HTTPStatus.METHOD_NOT_ALLOWED, "Started by its webhook alone"),
    "key-conflict": (HTTPStatus.CONFLICT, "The key is taken by another body"),
    "key-taken": (HTTPStatus.CONFLICT, "The unique key is another job's"),
    "name-taken": (HTTPStatus.CONFLICT, "The name is taken"),
    "too-many-tokens": (HTTPStatus.CONFLICT, "Too many tokens"),
    "wrong-state": (HTTPStatus.CONFLICT, "The job's state does not allow it"),
    "not-driven": (HTTPStatus.CONFLICT, "The clock is not driven"),
    "no-deploys": (HTTPStatus.CONFLICT, "This node takes no deploys"),
    "too-slow": (HTTPStatus.REQUEST_TIMEOUT, "The request took too long to arrive"),
    "too-large": (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "Too large"),
    "unsupported-media-type": (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Unsupported media type"),
    "invalid-payload": (HTTPStatus.UNPROCESSABLE_ENTITY, "The payload does not fit the function"),
    "invalid-schedule": (HTTPStatus.UNPROCESSABLE_ENTITY, "The schedule cannot be"),
    "invalid-parameter": (HTTPStatus.UNPROCESSABLE_ENTITY, "A parameter cannot be taken"),
    "unknown-version": (HTTPStatus.UNPROCESSABLE_ENTITY, "No such version"),
    "refused": (HTTPStatus.UNPROCESSABLE_ENTITY, "Refused"),
    "headers-too-large": (HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The request's head is too large"),
    "too-many-requests": (HTTPStatus.TOO_MANY_REQUESTS, "Too many requests"),
    "full": (HTTPStatus.TOO_MANY_REQUESTS, "The queue is full"),
    "job-failed": (HTTPStatus.INTERNAL_SERVER_ERROR, "The job ended badly"),
    "internal": (HTTPStatus.INTERNAL_SERVER_ERROR, "A fault of echod's own"),
    "not-implemented": (HTTPStatus.NOT_IMPLEMENTED, "Not in this version"),
    "busy": (HTTPStatus.SERVICE_UNAVAILABLE, "This gateway is at its limit"),
    "no-version": (HTTPStatus.SERVICE_UNAVAILABLE, "No version is deployed"),
    "webhook-disabled": (HTTPStatus.SERVICE_UNAVAILABLE, "The webhook's secret is not set"),
    "bus-away": (HTTPStatus.SERVICE_UNAVAILABLE, "The bus is away"),
    "bus-read-only": (HTTPStatus.SERVICE_UNAVAILABLE, "The bus takes no writes"),
    "bus-full": (HTTPStatus.SERVICE_UNAVAILABLE, "The bus is out of memory"),
    "not-durable": (HTTPStatus.NOT_IMPLEMENTED, "The bus keeps no append-only file"),
    "unconfirmed": (HTTPStatus.SERVICE_UNAVAILABLE, "Minted, not confirmed"),
    "bus-unfit": (HTTPStatus.SERVICE_UNAVAILABLE, "The bus cannot be used"),
    "lease-gone": (HTTPStatus.SERVICE_UNAVAILABLE, "The node is between two leases"),
    "timed-out": (HTTPStatus.GATEWAY_TIMEOUT, "Timed out"),
}

# Seconds after which asking again makes sense. A bus that is unfit does not mend by waiting: it has none.
_RETRY_AFTER = {
    "full": 1,
    "busy": 1,
    "too-many-requests": 1,
    "no-version": 2,
    "bus-away": 1,
    "bus-read-only": 1,
    "bus-full": 5,
    "unconfirmed": 1,
    "lease-gone": 1,
    "webhook-disabled": 60,
}
_OF_CODES = {404: "not-found", 405: "wrong-method", 413: "too-large", 415: "unsupported-media-type"}


class Problem(EchodError):
    """A fault with its place in `KINDS`. `hints` become members of the answer; None is left out."""

    def __init__(self, slug: str, detail: str, *, headers: Mapping[str, str] | None = None, **hints: object) -> None:
        super().__init__(detail)
        self.slug = slug
        self.status, self.title = KINDS[slug]
        self.detail = detail
        self.hints = {name: hint for name, hint in hints.items() if hint is not None}
        self.headers = dict(headers or {})
        if slug in _RETRY_AFTER:
            self.headers.setdefault("Retry-After", str(_RETRY_AFTER[slug]))

    def view(self) -> dict[str, object]:
        """The answer's members."""
        members = {"type": f"urn:echod:problem:{self.slug}", "title": self.title, "status": int(self.status)}
        return {**members, "detail": self.detail, **self.hints}

    def response(self) -> Response:
        """The answer, as JSON."""
        body = msgspec.json.encode(self.view())
        return Response(body, status_code=self.status, headers=self.headers, media_type=MEDIA_TYPE)


def of(error: Exception) -> Problem:
    """The problem that an error of any floor is to an HTTP client."""
    match error:
        case Problem():
            return error
        case InvalidPayload() | InvalidSchedule():
            return Problem(error.code, str(error), faults=error.faults or None)
        case UnknownFunction():
            return Problem(error.code, str(error), suggestions=error.suggestions or None)
        case NotCallable():
            return Problem(error.code, str(error), headers={"Allow": "GET, HEAD, OPTIONS"})
        case KeyConflict():
            return Problem(error.code, str(error), job=error.job, url=f"/jobs/{error.job}")
        case QueueFull() | NameTaken():
            return Problem(error.code, str(error))
        case Unconfirmed():
            return Problem(error.code, str(error), job=error.job, url=f"/jobs/{error.job}")
        case NotDurable() | BusFull() | LeaseGone() | TimedOut() | BusUnfit() | Refused() | BusAway():
            return Problem(error.code, str(error))
        case BusError():
            return Problem("internal", f"the bus answered with an error: {error}")
        case HTTPException() if error.status_code in _OF_CODES:
            return Problem(_OF_CODES[error.status_code], str(error.detail), headers=error.headers)
        case ClientDisconnect():
            return Problem("bad-request", "the caller hung up")
        case HTTPException():
            return Problem("bad-request", str(error.detail), headers=error.headers)
        case _:
            return Problem("internal", "an unexpected error; the server's log has its traceback")


def suggestions(name: str, names: Iterable[str]) -> list[str] | None:
    """Names like the mistyped one, best first, at most three; None without any."""
    return difflib.get_close_matches(name[:200], list(names), n=3, cutoff=0.5) or None
