"""/login swaps a token, or a one-time link, for the session cookie; /logout takes it back, on the bus too."""

from __future__ import annotations

import contextlib
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from echod.errors import BusError
from echod.gateway import pages
from echod.gateway.desk import Desk
from echod.gateway.problems import Problem
from echod.gateway.session import AGE_S, COOKIE, drop_cookie, fresh, session_digest, set_cookie
from echod.model.token import Scope

_PRIVATE = {"Cache-Control": "no-store"}


async def form(desk: Desk, request: Request) -> Response:
    """GET /login; with ?code= of a login link it signs in at once. A HEAD, as link previews send, spends no link."""
    place = _place(request.query_params.get("next", "/"))
    code = request.query_params.get("code")
    if code is None or request.method != "GET":
        return HTMLResponse(pages.render("login", next=place, error=""), headers=_PRIVATE)
    row = await desk.keyring.link(code)
    if row is None:
        return _refused(place, "That link was used already, or is too old; make another with `echod token new --open`.")
    parents = (await desk.bus.tokens()).rows if row.parent else ()
    expires_ms = next((each.expires_ms for each in parents if each.kind == "token" and each.name == row.parent), None)
    answer = await _signed_in(
        desk, request, place, row.scopes, None if row.parent else desk.config.token, row.parent, expires_ms, row.digest
    )
    return answer or _refused(place, "That link was used already; make another with `echod token new --open`.")


async def enter(desk: Desk, request: Request) -> Response:
    """POST /login with the form fields `token` and `next`."""
    fields = await _fields(request)
    place = _place(fields.get("next", "/"))
    if request.state.caller.by == "anybody":
        return RedirectResponse(place, status_code=303)
    holder = await desk.keyring.holder(fields.get("token", "").strip())
    if holder.by not in {"main", "token"}:
        return _refused(place, "That is not a valid token.")
    main = desk.config.token if holder.by == "main" else None
    answer = await _signed_in(desk, request, place, holder.rights, main, holder.name, holder.expires_ms)
    return answer or _refused(place, "That is not a valid token.")


async def leave(desk: Desk, request: Request) -> Response:
    """POST /logout."""
    answer = RedirectResponse("/login", status_code=303)
    cookie = request.cookies.get(COOKIE, "")
    with contextlib.suppress(BusError):  # away: the browser forgets it, and it ends by its term
        for main in (None, desk.config.token):
            if cookie:
                await desk.bus.revoke_token(digest=session_digest(cookie, main))
    desk.keyring.heard()
    drop_cookie(answer)
    return answer


async def _signed_in(
    desk: Desk,
    request: Request,
    place: str,
    scopes: frozenset[Scope],
    main: str | None,
    parent: str,
    expires_ms: int | None,
    link: str = "",
) -> Response | None:
    """Begin a session that ends no later than what it came of; None where its link has gone."""
    age_s = AGE_S
    if expires_ms is not None:
        age_s = min(age_s, (expires_ms - desk.bus.clock.now_ms()) // 1000)
    if age_s <= 0:
        return None
    cookie = fresh("session")
    digest = session_digest(cookie, main)
    if not await desk.bus.begin_session(digest, link=link, parent=parent, scopes=scopes, expires_in_ms=age_s * 1000):
        return None
    desk.keyring.heard()
    answer = RedirectResponse(place, status_code=303, headers=_PRIVATE)
    set_cookie(answer, request, cookie, age_s)
    return answer


def _refused(place: str, why: str) -> Response:
    page = pages.render("login", next=place, error=why)
    return HTMLResponse(page, status_code=Problem("unauthenticated", "").status, headers=_PRIVATE)


async def _fields(request: Request) -> dict[str, str]:
    body = (await request.body()).decode(errors="replace")
    try:
        return {name: values[0] for name, values in parse_qs(body, max_num_fields=10).items()}
    except ValueError as error:
        raise Problem("invalid-body", f"expected a form: {error}") from None


def _place(text: str) -> str:
    """A path on this server; anything else (another host, a script) becomes the front page."""
    is_path = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if is_path else "/"
