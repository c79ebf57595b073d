"""Named tokens over HTTP: made, listed, revoked by operators; nobody gives or takes rights beyond their own."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from echod.bus.tokens import TokenRow
from echod.gateway.desk import Desk, answer, body_of, shortened
from echod.gateway.keyring import Caller
from echod.gateway.problems import Problem
from echod.gateway.session import fresh
from echod.gateway.shapes import Count, Instant
from echod.gateway.views import instant, instant_or_none
from echod.model.token import SCOPES, Scope, digest_of
from echofn.units import duration_ms

TERM_PATTERN = "^([1-9][0-9]{0,2}[mhd]|[1-9][0-9]?w)$"
LINK_MS = 10 * 60_000
NAME_PATTERN = "^[A-Za-z0-9_.@-]{1,64}$"
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}", re.ASCII)
_TERM = re.compile(TERM_PATTERN, re.ASCII)


def _spelled(pattern: str) -> msgspec.Meta:
    """For the description alone: what does not match is refused in words, not by the pattern."""
    return msgspec.Meta(extra_json_schema={"pattern": pattern})


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /tokens."""

    name: Annotated[str, _spelled(NAME_PATTERN)]
    scopes: Annotated[list[Scope], msgspec.Meta(min_length=1, max_length=8)]
    expires: Annotated[str, _spelled(TERM_PATTERN)] | None = None  # none: it does not


class WantedLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /login/links. No scopes: the caller's own."""

    scopes: Annotated[list[Scope], msgspec.Meta(max_length=8)] = []


class TokenShape(msgspec.Struct):
    """A token, but for itself."""

    name: str
    scopes: list[Scope]
    made: Instant
    expires: Instant | None
    expired: bool
    used: Instant | None
    sessions: Count


class Tokens(msgspec.Struct):
    tokens: list[TokenShape]


class TokenMade(msgspec.Struct):
    """The one answer that holds the token."""

    name: str
    token: str
    scopes: list[Scope]
    expires: Instant | None


class TokenRevoked(msgspec.Struct):
    name: str
    revoked: bool


class LinkMade(msgspec.Struct):
    """A path to open once in a browser."""

    path: str
    scopes: list[Scope]
    expires: Instant | None


_wanted = msgspec.json.Decoder(Wanted)
_wanted_link = msgspec.json.Decoder(WantedLink)


async def index(desk: Desk, request: Request) -> Response:
    """GET /tokens: names and terms, never a token."""
    held = await desk.bus.tokens()
    sessions = [row.parent for row in held.rows if row.kind == "session" and not row.is_over(desk.bus.clock.now_ms())]
    rows = sorted((row for row in held.rows if row.kind == "token"), key=lambda row: row.name)
    now_ms = desk.bus.clock.now_ms()
    return _private({"tokens": [_view(row, now_ms) | {"sessions": sessions.count(row.name)} for row in rows]})


async def make(desk: Desk, request: Request) -> Response:
    """POST /tokens: the one answer that ever holds the token."""
    wanted = await body_of(request, _wanted)
    if not _NAME.fullmatch(wanted.name):
        raise Problem(
            "invalid-parameter", f"name: expected 1 to 64 of A-Z a-z 0-9 _ . @ -, got {shortened(wanted.name)!r}"
        )
    scopes = _within(request, wanted.scopes)
    expires_in_ms = _term(wanted.expires)
    text = fresh("token")
    said = await desk.bus.make_token(digest_of(text), name=wanted.name, scopes=scopes, expires_in_ms=expires_in_ms or 0)
    if said == "taken":
        raise Problem("name-taken", f"a token is called {wanted.name!r} already; revoke it, or choose another name")
    if said == "full":
        raise Problem("too-many-tokens", "expected fewer than 2000 tokens; revoke those that are not used")
    desk.keyring.heard()
    expires_ms = desk.bus.clock.now_ms() + expires_in_ms if expires_in_ms else None
    view = {"name": wanted.name, "token": text, "scopes": scopes, "expires": instant_or_none(expires_ms)}
    return _private(view, status=201)


async def revoke(desk: Desk, request: Request) -> Response:
    """DELETE /tokens/{name}: refused everywhere from now on, with the sessions that came of it."""
    name: str = request.path_params["name"]
    rows = (await desk.bus.tokens()).rows
    row = next((row for row in rows if row.kind == "token" and row.name == name), None)
    if row is None:
        raise Problem(
            "unknown-token", f"no token is called {shortened(name)!r}; `echod token list` (GET /tokens) lists them"
        )
    _within(request, row.scopes)
    await desk.bus.revoke_token(name=name)
    desk.keyring.heard()
    return _private({"name": name, "revoked": True})


async def link(desk: Desk, request: Request) -> Response:
    """POST /login/links: a link that signs one browser in, once, within ten minutes."""
    wanted = await body_of(request, _wanted_link)
    caller: Caller = request.state.caller
    scopes = _within(request, wanted.scopes or caller.rights)
    if caller.by == "anybody":
        return _private({"path": "/", "scopes": scopes, "expires": None}, status=201)
    text = fresh("link")
    said = await desk.bus.make_token(
        digest_of(text), kind="link", parent=caller.name, scopes=scopes, expires_in_ms=LINK_MS
    )
    if said == "full":
        raise Problem("too-many-tokens", "expected fewer than 2000 tokens; revoke those that are not used")
    desk.keyring.heard()
    expires = instant(desk.bus.clock.now_ms() + LINK_MS)
    return _private({"path": f"/login?code={text}", "scopes": scopes, "expires": expires}, status=201)


def _within(request: Request, scopes: list[Scope] | frozenset[Scope]) -> list[Scope]:
    """`scopes` in order, once each; a problem where the caller lacks one: no token makes or ends a mightier one."""
    caller: Caller = request.state.caller
    if beyond := set(scopes) - caller.rights:
        raise Problem(
            "out-of-scope", f"expected a caller with the scopes {', '.join(sorted(beyond))} itself to give or take them"
        )
    return [scope for scope in SCOPES if scope in scopes]


def _term(text: str | None) -> int | None:
    if text is None:
        return None
    if not _TERM.fullmatch(text):
        expected = "expected minutes, hours, days or weeks, such as 30m, 12h, 90d or 8w"
        raise Problem("invalid-parameter", f"expires: {expected}, got {shortened(text)!r}")
    return duration_ms(text)


def _view(row: TokenRow, now_ms: int) -> dict[str, object]:
    return {
        "name": row.name,
        "scopes": [scope for scope in SCOPES if scope in row.scopes],
        "made": instant(row.made_ms),
        "expires": instant_or_none(row.expires_ms),
        "expired": row.is_over(now_ms),
        "used": instant_or_none(row.used_ms),
    }


def _private(view: object, *, status: int = 200) -> Response:
    """An answer that nobody keeps."""
    return answer(view, status=status, headers={"Cache-Control": "no-store"})
