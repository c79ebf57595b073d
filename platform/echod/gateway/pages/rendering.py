"""`render`: a page's name and what the gateway gave, to HTML."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from echod.gateway.pages import given, views, words
from echod.gateway.pages.jsontext import pretty, short
from echod.gateway.pages.limits import standing

_HERE = Path(__file__).resolve().parent.parent
STATIC = _HERE / "static"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_Build = Callable[[Any, float], views.View]
_PAGES: dict[str, tuple[Any, _Build]] = {
    "functions": (given.FunctionsPage, views.functions),
    "function": (given.FunctionPage, views.function),
    "job": (given.JobPage, views.job),
    "jobs": (given.JobsPage, views.jobs),
    "schedules": (given.SchedulesPage, views.schedules),
    "morgue": (given.JobsPage, views.morgue),
    "lanes": (given.LanesPage, views.lanes),
    "versions": (given.VersionsPage, views.versions),
    "nodes": (given.NodesPage, views.nodes),
    "bus": (dict[str, Any], views.bus),
    "problem": (given.Problem, views.problem),
    "login": (given.Login, views.login),
}


def render(name: str, /, **view: Any) -> str:
    """The HTML of page `name` from the gateway's JSON, `now` (RFC 3339) and `shell`; see the package's first lines.

    Pure. Raises KeyError for an unknown page, msgspec.ValidationError for a value of the wrong type.
    """
    shape, build = _PAGES[name]
    now = str(view.pop("now", "1970-01-01T00:00:00.000Z"))
    shell = msgspec.convert(view.pop("shell", {}), given.Shell)
    now_ms = words.ms_of(now) or 0.0
    model = build(msgspec.convert(view, shape), now_ms)
    return _environment().get_template(f"{name}.html").render(**model, page=name, shell=shell, now=now, now_ms=now_ms)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        auto_reload=False,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    spoken = (words.count, words.span, words.rate, words.size, words.clock, words.wall, words.cause, words.plural)
    filters: dict[str, Any] = {filter.__name__: filter for filter in (*spoken, pretty, short, standing)}
    environment.filters.update(filters, function_href=views.function_href, job_href=views.job_href)
    shared: dict[str, Any] = {
        "asset": _asset,
        "share": words.share,
        "when": _when,
        "until": _until,
        "took": views.took,
        "waited": views.waited,
        "STATES": words.STATES,
        "REASONS": words.REASONS,
        "OUTCOMES": words.OUTCOMES,
    }
    environment.globals.update(shared)
    return environment


@cache
def _asset(name: str) -> str:
    """A static file's address; its digest makes a new file a new address."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


@jinja2.pass_context
def _when(context: jinja2.runtime.Context, instant: str | None) -> Markup | str:
    """How long since; the script keeps it true."""
    ms = words.ms_of(instant)
    if ms is None:
        return words.NONE
    text = words.ago(float(context["now_ms"]) - ms)
    return Markup('<time datetime="{}" data-ago title="{}">{}</time>').format(instant, words.wall(instant), text)


@jinja2.pass_context
def _until(context: jinja2.runtime.Context, instant: str | None) -> Markup | str:
    """How far ahead; the script counts it down."""
    ms = words.ms_of(instant)
    if ms is None:
        return words.NONE
    text = words.until(ms - float(context["now_ms"]))
    return Markup('<time datetime="{}" data-until title="{}">{}</time>').format(instant, words.wall(instant), text)
