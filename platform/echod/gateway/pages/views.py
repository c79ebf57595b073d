"""From what the gateway gave to what the templates show. Pure: each takes the given value and the bus's time."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import quote, urlencode

import msgspec
from msgspec import UNSET

from echod.gateway.pages import given
from echod.gateway.pages.draw import Bars, bars
from echod.gateway.pages.jsontext import plain
from echod.gateway.pages.limits import Trigger, capped, exact, limits, triggers
from echod.gateway.pages.schema import Field, fields, sample
from echod.gateway.pages.strip import strip
from echod.gateway.pages.timeline import timeline
from echod.gateway.pages.words import NONE, ms_of, size, span, wall
from echod.model.job import ENDED

View = dict[str, Any]
WINDOWS = (("900", "15 min"), ("3600", "1 hour"), ("86400", "24 hours"))
RECENT = 20


class Row(msgspec.Struct, frozen=True):
    """A function on the list."""

    f: given.Function
    href: str
    triggers: tuple[Trigger, ...]
    spark: Bars
    done: int
    failed: int
    sample: str
    callable_now: bool  # no payload to fill in first
    runnable: bool  # a person may start it: not only verified requests do


def functions(page: given.FunctionsPage, now_ms: float) -> View:
    rows = tuple(row(function) for function in page.functions)
    return {
        "title": "Functions",
        "rows": rows,
        "errors": page.errors,
        "off": page.off,
        "strip": strip(page, now_ms),
        "totals": {
            "rate": sum(one.f.rate for one in rows),
            "done": sum(one.done for one in rows),
            "failed": sum(one.failed for one in rows),
            "active": sum(one.f.active for one in rows),
            "pending": sum(one.f.pending for one in rows),
            "dead": sum(one.f.dead for one in rows),
        },
    }


def row(function: given.Function) -> Row:
    return Row(
        f=function,
        href=function_href(function.name),
        triggers=triggers(function),
        spark=bars(function.series.done, function.series.failed, width=120, height=28, gap=1, count=30),
        done=sum(function.series.done),
        failed=sum(function.series.failed),
        sample="" if (payload := sample_of(function)) is UNSET else plain(payload),
        callable_now=not takes_payload(function),
        runnable=any(one.kind != "webhook" for one in triggers(function)),
    )


def takes_payload(function: given.Function) -> bool:
    """Whether there is anything to fill in: a parameter that can only be null is none."""
    return function.takes_payload and function.payload_schema != {"type": "null"}


def sample_of(function: given.Function) -> object:
    """A payload to try it with: its author's own, unless parts of it are masked; else one that fits its schema.

    UNSET where none was found.
    """
    own = [each["payload"] for each in function.triggers if each.get("kind") == "queue" and "payload" in each]
    return own[0] if own and not function.policy.redact else sample(function.payload_schema)


def function_href(name: str) -> str:
    return "/functions/" + quote(name, safe="")


def job_href(id: str) -> str:
    return "/jobs/" + quote(id, safe="")


def function(page: given.FunctionPage, now_ms: float) -> View:
    windows = [(label, page.windows[key]) for key, label in WINDOWS if key in page.windows]
    if not windows:
        windows = [(exact(page.metrics.window_s * 1000), page.metrics)]
    return {
        "title": page.name,
        "row": row(page),
        "f": page,
        "chart": bars(page.series.done, page.series.failed, width=600, height=120, gap=3),
        "windows": windows,
        "measured": any(metrics.done or metrics.failed for _, metrics in windows),
        "upcoming": upcoming(page),
        "policy": limits(page.policy, page.limits),
        "capped": capped(page.limits),
        "recent": page.recent[:RECENT],
        "fields": form(page),
        "command": command(page),
    }


def form(page: given.FunctionPage) -> tuple[Field, ...]:
    return fields(page.payload_schema) if takes_payload(page) else ()


def command(page: given.Function) -> str:
    """What to type for one run, quoted for a shell."""
    text = f"echod invoke {_shell(page.name)}"
    if takes_payload(page):
        payload = sample_of(page)
        text += " --data " + ("JSON" if payload is UNSET else _shell(plain(payload, indent=None)))
    return text


def _shell(text: str) -> str:
    safe = text and all((letter.isalnum() and letter.isascii()) or letter in "._-@/" for letter in text)
    return text if safe else "'" + text.replace("'", "'\\''") + "'"


class Due(msgspec.Struct, frozen=True):
    """One of the next due times, on the wall of its rule's own zone."""

    at: str
    wall: str
    zone: str
    rule: str
    starts: str | None = None  # where a jitter makes that later: when its job starts, on the same wall


def upcoming(page: given.FunctionPage) -> tuple[Due, ...]:
    """The next five due times over all schedules of the function."""
    found = [
        Due(at, wall(at, one.tz), one.tz, one.rule, wall(later[at], one.tz).partition(", ")[2] if at in later else None)
        for one in page.schedules
        if not one.paused
        for later in (dict(zip(one.upcoming, one.starts, strict=False)) if one.jitter else {},)
        for at in (one.upcoming or ((one.next,) if one.next else ()))
    ]
    if not found:
        zone = next((one.zone for one in triggers(page) if one.kind == "cron"), "UTC")
        found = [Due(at, wall(at, zone), zone, "") for at in page.next]
    return tuple(sorted(found, key=lambda due: ms_of(due.at) or 0.0)[:5])


class Bill(msgspec.Struct, frozen=True):
    """What a job has cost so far, over all attempts."""

    tries: int
    cpu_ms: float | None
    peak_bytes: int | None
    waited_ms: float | None
    ran_ms: float | None
    total_ms: float | None
    late_ms: float | None  # from its due instant to the start


def job(page: given.JobPage, now_ms: float) -> View:
    return {
        "title": page.id,
        "job": page,
        "function_url": function_href(page.function),
        "timeline": timeline(page, now_ms),
        "bill": bill(page, now_ms),
        "ended": page.state in ENDED,
        "can_redrive": page.state == "dead",
        "can_cancel": page.state not in ENDED and not page.cancelling,
        "log": page.log,
        "log_goes_on": page.log_goes_on,
    }


def bill(page: given.Job, now_ms: float) -> Bill:
    cpu = [run.cpu_s for run in page.history if run.cpu_s is not None]
    peaks = [run.peak_bytes for run in page.history if run.peak_bytes]
    waits = [run.wait_ms for run in page.history if run.wait_ms is not None]
    ran = [_between(run.started, run.ended) for run in page.history if run.started and run.ended]
    started = [ms for ms in (ms_of(run.started) for run in page.history) if ms is not None]
    latest = max(started, default=ms_of(page.started))  # a retry has a due instant of its own
    due = ms_of(page.due)
    minted = ms_of(page.minted)
    running = page.state == "active" and not any(run.started and not run.ended for run in page.history)
    if running and (since := ms_of(page.started)) is not None:
        ran.append(max(0.0, now_ms - since))
    return Bill(
        tries=len(page.history) + running,
        cpu_ms=sum(cpu) * 1000 if cpu else None,
        peak_bytes=max(peaks, default=None),
        waited_ms=sum(waits) if waits else None,
        ran_ms=sum(ran) if ran else None,
        total_ms=None if minted is None else max(0.0, (ms_of(page.ended) or now_ms) - minted),
        late_ms=max(0.0, latest - due) if latest is not None and due is not None else None,
    )


def _between(start: str | None, end: str | None) -> float:
    return max(0.0, (ms_of(end) or 0.0) - (ms_of(start) or 0.0))


def took(one: given.Job | given.Run) -> float | None:
    """How long a job's last run took; None while it has not ended."""
    start, end = ms_of(one.started), ms_of(one.ended)
    return None if start is None or end is None else max(0.0, end - start)


def waited(one: given.Job) -> float | None:
    """How long a job waited for its worker, from its due (or mint) to its start."""
    start, since = ms_of(one.started), ms_of(one.due) or ms_of(one.minted)
    return None if start is None or since is None else max(0.0, start - since)


def jobs(page: given.JobsPage, now_ms: float) -> View:
    older = _older("/jobs", page)
    return {"title": "Jobs", "jobs": page.jobs, "asked": page.filter, "names": page.names, "older": older}


def _older(path: str, page: given.JobsPage) -> str | None:
    """Where the same list goes on."""
    asked = {key: value for key, value in msgspec.structs.asdict(page.filter).items() if value}
    return f"{path}?" + urlencode({**asked, "cursor": page.cursor}) if page.cursor else None


class Group(msgspec.Struct, frozen=True):
    """Dead jobs of one function with one cause."""

    function: str
    cause: str
    jobs: tuple[given.Job, ...]


def morgue(page: given.JobsPage, now_ms: float) -> View:
    groups: dict[tuple[str, str], list[given.Job]] = {}
    for one in page.jobs:
        groups.setdefault((one.function, (one.error and one.error.cause) or "error"), []).append(one)
    listed = [Group(name, why, tuple(found)) for (name, why), found in groups.items()]
    return {
        "title": "Morgue",
        "groups": sorted(listed, key=lambda group: (-len(group.jobs), group.function)),
        "names": page.names or sorted({group.function for group in listed}),
        "causes": sorted({group.cause for group in listed}),
        "asked": page.filter,
        "is_filtered": page.filter != given.Filter(),
        "older": _older("/morgue", page),
    }


def schedules(page: given.SchedulesPage, now_ms: float) -> View:
    listed = sorted(page.schedules, key=lambda one: (ms_of(one.next) is None, ms_of(one.next) or 0.0, one.id))
    return {"title": "Schedules", "schedules": listed}


def lanes(page: given.LanesPage, now_ms: float) -> View:
    return {
        "title": "Fair shares",
        "lanes": sorted(page.lanes, key=lambda lane: (lane.function, -lane.pending, lane.lane)),
    }


def versions(page: given.VersionsPage, now_ms: float) -> View:
    before = next((one.id for one in page.versions if not one.active), None)
    return {
        "title": "Versions",
        "versions": page.versions,
        "before": before if page.takes_deploys else None,
        "takes_deploys": page.takes_deploys,
    }


def nodes(page: given.NodesPage, now_ms: float) -> View:
    return {"title": "Nodes", "nodes": page.nodes}


def bus(facts: dict[str, Any], now_ms: float) -> View:
    return {"title": "Bus", "facts": _flat(facts)}


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested facts as "persistence · aof" → text; booleans as words, bytes as sizes."""
    found: list[tuple[str, str]] = []
    for key, value in values.items():
        label = prefix + str(key).removesuffix("_bytes").removesuffix("_s").replace("_", " ")
        if isinstance(value, dict):
            found += _flat(cast("dict[str, Any]", value), label + " · ")
        elif isinstance(value, bool):
            found.append((label, "yes" if value else "no"))
        elif isinstance(value, int | float):
            found.append((label, _measured(str(key), value)))
        elif isinstance(value, list | tuple):
            found.append((label, ", ".join(map(str, cast("list[Any]", value))) or NONE))
        else:
            found.append((label, NONE if value is None or value == "" else str(value)))
    return found


def _measured(key: str, value: float) -> str:
    """A number by the unit in its name; a limit of 0 is none."""
    if key.endswith("limit_bytes") and not value:
        return "none"
    if key.endswith("_bytes"):
        return size(value)
    return span(value * 1000) if key.endswith("_s") else f"{value:,}"


def problem(page: given.Problem, now_ms: float) -> View:
    return {"title": page.title, "problem": page}


def login(page: given.Login, now_ms: float) -> View:
    return {"title": "Sign in", "login": page}
