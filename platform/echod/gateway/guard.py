"""The gate in front of every route, as pure ASGI: own Host and Origin only, a valid token, a body of bounded size.

A browser lets any page send requests to a local address, and a name can be pointed at it (DNS rebinding): so a foreign
`Host` or `Origin` is refused, on loopback too. `/healthz` and `/readyz` skip that, because load balancers ask under any
name. Every answer, refusals included, carries the pages' security headers.

Decides who the caller is and what they may do; which right a route needs is in the route table, and `demand`ed there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from echod.config import Config
from echod.errors import BusError
from echod.gateway import pages
from echod.gateway.keyring import NOBODY, Caller, Keyring
from echod.gateway.limits import Intake, Work
from echod.gateway.problems import Problem, of
from echod.gateway.session import COOKIE
from echod.model.token import Scope as _Scope
from echofn.frames import MAX_PAYLOAD_BYTES

Right = _Scope
Needed = Right | tuple[Right, ...] | None  # of several one is enough; None: anybody may
ANY_HOST = ("/healthz", "/readyz")
WAY_IN = ("/login", "/logout")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
MAX_BODY_BYTES = MAX_PAYLOAD_BYTES
SECURITY_HEADERS = {
    "Content-Security-Policy": pages.CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    **pages.HEADERS,
}
_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Guard:
    """ASGI middleware. Handlers find who asks in `request.state.caller`."""

    def __init__(
        self, app: ASGIApp, config: Config, keyring: Keyring, intake: Intake, larger: Mapping[str, int] | None = None
    ) -> None:
        self._app = app
        self._keyring = keyring
        self._intake = intake
        self._config = config
        self._larger = larger or {}  # paths whose bodies may be larger than a payload
        self._own = {*_LOOPBACK, config.host.lower().strip("[]")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sender = _secured(send)
        headers = Headers(scope=scope)
        try:
            if scope["path"] not in ANY_HOST:
                self._intake.check(scope["method"], scope["path"], _client(scope), scope["query_string"])
                self._check_host(scope, headers)
                self._check_origin(headers)
            _check_coding(headers)
            caller = await self._caller(scope, headers)
            limit = self._larger.get(scope["path"], MAX_BODY_BYTES)
            _check_length(headers, limit)
            bodies = self._intake.strangers if caller.by == "nobody" else self._intake.callers
            work = Work(self._intake.crowd, bodies)
            if scope["path"] not in ANY_HOST and not _has_body(headers):
                work.begin()
        except (Problem, BusError) as error:
            await of(error).response()(scope, receive, sender)
            return
        # Routes match on the path as it was sent, so that a name keeps its `%2F` until it is one name.
        inner = {
            **scope,
            "path": scope["raw_path"].decode("latin-1"),
            "state": {**scope.get("state", {}), "caller": caller, "work": work},
        }
        try:
            await self._app(inner, _bounded(receive, limit, work), _ending(sender, work))
        finally:
            work.end()

    def _check_host(self, scope: Scope, headers: Headers) -> None:
        hosts = headers.getlist("host")
        host = _host_and_port(hosts[0], 80) if len(hosts) == 1 else None
        server = scope.get("server")
        own = {*self._own, str(server[0])} if server else self._own
        if host is None or not (host[0] in own or _is_listed(host, self._config.allow_host)):
            got = repr(hosts[0][:100]) if len(hosts) == 1 else f"{len(hosts)} of them"
            raise Problem("foreign-host", f"Host: expected this server's own, got {got}; --allow-host adds one")

    def _check_origin(self, headers: Headers) -> None:
        origins = headers.getlist("origin")
        for text in origins:
            scheme, _, rest = text.partition("://")
            port = _DEFAULT_PORTS.get(scheme)
            origin = _host_and_port(rest, port) if port else None
            own = _host_and_port(headers.get("host", ""), port or 80)
            if origin is None or not (origin == own or _is_listed(origin, self._config.allow_host)):
                raise Problem(
                    "foreign-origin", f"Origin: expected this server's own, got {text[:100]!r}; --allow-host adds one"
                )

    async def _caller(self, scope: Scope, headers: Headers) -> Caller:
        """Who asks. A browser's cookie alone moves nothing: the request must say that it comes from our own pages."""
        path: str = scope["path"]
        if path in ANY_HOST or path.startswith("/static/"):
            return NOBODY  # open to everybody, bus or no bus
        authorization = headers.get("authorization", "")
        cookie = HTTPConnection(scope).cookies.get(COOKIE, "")
        from_us = "origin" in headers or headers.get("sec-fetch-site") == "same-origin"
        if cookie and not authorization and scope["method"] not in SAFE_METHODS and not from_us:
            raise Problem("foreign-origin", "Origin: expected this server's own beside a session's cookie, got none")
        try:
            return await self._keyring.caller(authorization, cookie)
        except BusError:
            if path in WAY_IN:
                return NOBODY  # whoever would sign in anew, or out, needs no valid session for it
            raise


def demand(request: Request, right: Needed) -> None:
    """Raise the problem `unauthenticated` or `out-of-scope` when the caller lacks a right."""
    caller: Caller = request.state.caller
    enough = right if isinstance(right, tuple) else (right,)
    if None in enough or not caller.rights.isdisjoint(enough):
        return
    if caller.by != "nobody":
        scope = " or ".join(map(repr, enough))
        has = ", ".join(sorted(caller.rights)) or "none"
        raise Problem("out-of-scope", f"expected a token with the scope {scope}, got one with {has}")
    given = "authorization" in request.headers
    raise Problem(
        "unauthenticated",
        f"expected a valid token, got {'another' if given else 'none'}; send `Authorization: Bearer $ECHOD_TOKEN`",
        headers={"WWW-Authenticate": 'Bearer realm="echod"' + (', error="invalid_token"' if given else "")},
    )


async def withdrawn(request: Request, keyring: Keyring, right: Right) -> None:
    """Return once the caller of an open stream has lost the right to it."""
    await keyring.lost(request.headers.get("authorization", ""), request.cookies.get(COOKIE, ""), right)


def _client(scope: Scope) -> str:
    """Who asks, by address; behind a proxy that is the proxy."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def _host_and_port(text: str, default_port: int) -> tuple[str, int] | None:
    """Host (lower case, without brackets) and port; None for what is neither."""
    if not text or any(c in "/?#@\\ " for c in text):
        return None
    try:
        parts = urlsplit(f"//{text}")
        return (parts.hostname.rstrip("."), parts.port or default_port) if parts.hostname else None
    except ValueError:
        return None


def _is_listed(host: tuple[str, int], allowed: Sequence[str]) -> bool:
    """Whether a host is among those that --allow-host added: with a port only there, without one on any."""
    for text in allowed:
        entry = _host_and_port(text, 0)
        if entry and entry[0] == host[0] and entry[1] in {0, host[1]}:
            return True
    return False


def _check_coding(headers: Headers) -> None:
    """Bodies are taken as they come. Several such headers are one list (RFC 9110, section 5.3)."""
    for listed in headers.getlist("content-encoding"):
        if any(coding.strip().lower() not in {"", "identity"} for coding in listed.split(",")):
            got = repr(listed[:40])
            raise Problem(
                "unsupported-media-type", f"expected a body without Content-Encoding, got {got}; send it plain"
            )


def _check_length(headers: Headers, limit: int) -> None:
    length = headers.get("content-length", "0")
    if length.isascii() and length.isdecimal() and int(length[:20]) > limit:
        raise _too_large(limit)


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _bounded(receive: Receive, limit: int, work: Work) -> Receive:
    """`receive`, which raises once a body is too large, one of too many, or the slowest of these; with its last part
    the work begins.
    """
    received = 0

    async def bounded() -> Message:
        nonlocal received
        try:
            message = await receive()
        except asyncio.CancelledError:
            if not work.is_shed or (task := asyncio.current_task()) is None or task.uncancel():
                raise
            raise Problem("too-slow", "expected the body sooner: there is no room for those that stand still") from None
        if message["type"] == "http.request":
            received += len(message.get("body", b""))
            if received > limit:
                raise _too_large(limit)
            if message.get("more_body", False):
                work.grew(len(message["body"]))
            else:
                work.begin()
        return message

    return bounded


def _too_large(limit: int) -> Problem:
    return Problem("too-large", f"expected a body of at most {limit} bytes")


def _ending(send: Send, work: Work) -> Send:
    """`send`, with whose first message the work has ended: how soon the rest is taken is not ours to say."""

    async def ending(message: Message) -> None:
        work.end()
        await send(message)

    return ending


def _secured(send: Send) -> Send:
    """`send`, which adds the security headers to an answer that does not set them itself."""

    async def secured(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
            own = {name for name, _ in headers}
            message["headers"] = headers + [header for header in _RAW_HEADERS if header[0] not in own]
        await send(message)

    return secured
