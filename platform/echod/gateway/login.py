"""/login swaps the token for the session cookie; /logout takes it back."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from echod.gateway import pages
from echod.gateway.desk import Desk
from echod.gateway.problems import Problem
from echod.gateway.session import AGE_S, COOKIE, cookie_of, is_token


async def form(desk: Desk, request: Request) -> Response:
    """GET /login."""
    return HTMLResponse(pages.render("login", next=_place(request.query_params.get("next", "/")), error=""))


async def enter(desk: Desk, request: Request) -> Response:
    """POST /login with the form fields `token` and `next`."""
    fields = await _fields(request)
    place = _place(fields.get("next", "/"))
    token = desk.config.token
    if token is not None and not is_token(fields.get("token", "").strip(), token):
        page = pages.render("login", next=place, error="That is not a valid token.")
        return HTMLResponse(page, status_code=Problem("unauthenticated", "").status)
    answer = RedirectResponse(place, status_code=303)
    if token is not None:
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, cookie_of(token), max_age=AGE_S, secure=secure, httponly=True, samesite="strict")
    return answer


async def leave(desk: Desk, request: Request) -> Response:
    """POST /logout."""
    answer = RedirectResponse("/login", status_code=303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


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
