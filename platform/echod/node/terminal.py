"""What `dev` and `start` print: where they listen, what they serve, what a save has done. Plain off a terminal.

With --json the same goes into the log, which then is all that is printed: a line `node.ready`, then what happens.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from echod import log
from echod.deploy.live import Saved
from echod.deploy.publish import place_of
from echod.errors import Refused
from echod.gateway.pages.schema import sample
from echod.gateway.views import load_error_view, trigger_view
from echod.policy.recurring import rule_of, text_of, zone_of
from echod.registry.registry import ActiveVersion
from echofn.manifest import Function, Hmac, LoadError, Off, QueueTrigger, Recurring, Trigger, WebhookTrigger

_log = log.get("node")
_for_programs = False
_COLOURED = sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def configure(*, for_programs: bool) -> None:
    """Whether programs read this; called once, by the CLI."""
    global _for_programs
    _for_programs = for_programs


def say(text: str = "") -> None:
    """One line for people, at once; a reader that has gone is not our business."""
    if _for_programs:
        return
    try:
        print(text, flush=True)
    except OSError:
        pass


def is_for_people() -> bool:
    """Whether a person sits there, who may press keys."""
    return not _for_programs


def waiting(why: str) -> None:
    """The bus is not there yet."""
    say(f"waiting for the bus: {why}")
    if _for_programs:
        _log.info("bus.awaited", why=why)


def alarm(what: str) -> None:
    """What can lose jobs, in red."""
    say(f"\x1b[31m{what}\x1b[0m" if _COLOURED else what)


def draining(busy: int) -> None:
    """Told to stop: jobs that run may end."""
    if busy:
        say(f"waiting for {busy} running job{'s' * (busy > 1)}; once more to stop at once")
    if _for_programs:
        _log.info("node.draining", busy=busy)


def ready(
    verb: str, url: str | None, bus: str, sandbox: str, missing: Iterable[str], active: ActiveVersion | None
) -> None:
    """What a program that started this node waits for; triggers and errors are those of GET /functions."""
    if not _for_programs:
        return
    found = [
        {"name": each.name, "module": each.module, "triggers": [trigger_view(each, it) for it in each.triggers]}
        for each in (active.manifest.functions if active else ())
    ]
    faults = [load_error_view(error) for error in active.errors] if active else []
    version = active.version if active else None
    lacks = list(missing)
    _log.info(
        "node.ready", verb=verb, url=url, bus=bus, sandbox=sandbox, missing=lacks, version=version, functions=found,
        errors=faults,
    )  # fmt: skip


def banner(verb: str, url: str | None, bus: str, served: str) -> None:
    """Where this node is."""
    say(f"{_bold('echod ' + verb)}  {_bold(url) if url else served}")
    say(f"  bus      {bus}")
    if url:
        say(f"  serving  {served}")


def sandbox(level: str, missing: Iterable[str]) -> None:
    """The level of confinement, and in one line what it lacks."""
    lacks = "; ".join(missing)
    say(f"  sandbox  {level}" + (f", without {lacks}" if lacks else ""))


def clock(now_ms: int, *, frozen: bool) -> None:
    """That the clock is driven, where it is, and by what."""
    at = datetime.fromtimestamp(now_ms // 1000, UTC)
    stands = "stands at" if frozen else "is driven, now"
    say(f"  clock    {stands} {at:%Y-%m-%d %H:%M:%S} UTC; echod clock +1d | next | freeze | resume")


def functions(found: Iterable[Function], now_ms: int, url: str | None) -> None:
    """A line per function: what starts it, when next, and a command to try it."""
    listed = list(found)
    width = max((len(function.name) for function in listed), default=0)
    for function in listed:
        started = ", ".join(trigger_text(trigger, now_ms) for trigger in function.triggers)
        say(f"  {_bold(function.name.ljust(width))}  {started}  {_dim(command(function, url))}")
    if not listed:
        say("  no functions: put @queue, @cron or @every on one")


def off(found: Iterable[Off]) -> None:
    """Annotations that do not count here, and why."""
    for each in found:
        say(f"  {_dim('off')}    @{each.kind} of {each.function} ({each.file}:{each.line}): {each.why}")


def unset(found: Iterable[Function], environ: Mapping[str, str]) -> None:
    """Webhooks that cannot verify anything here, and what to set."""
    for function in found:
        for trigger in function.triggers:
            if isinstance(trigger, WebhookTrigger) and trigger.secrets and not any(map(environ.get, trigger.secrets)):
                names = " or ".join(trigger.secrets)
                say(f"  {_dim('note')}   {trigger.path} answers 503 until {names} is set, in .env for one")


def errors(found: Iterable[LoadError]) -> None:
    """What could not be loaded, as "file:line:column: message"."""
    for error in found:
        say(f"  {_red('error')}  {place_of(error)}")


def saved(news: Saved) -> None:
    """What a save has done."""
    if _for_programs:
        faults = [load_error_view(error) for error in news.errors]
        _log.info("folder.saved", files=list(news.files), version=news.version, took_ms=news.took_ms, errors=faults)
    files = ", ".join(news.files[:5]) + (f" and {len(news.files) - 5} more" if len(news.files) > 5 else "")
    if news.errors:
        broken = ", ".join(dict.fromkeys(error.file or error.module or "the folder" for error in news.errors))
        say(f"{files or 'reload'}: served, but for what is {_red('broken')} in {broken}: that serves on as it was")
        errors(news.errors)
    else:
        what = "mended, " if news.mended else ""
        say(f"{files or 'reload'}: {what}serving {news.version} after {news.took_ms} ms")


def trigger_text(trigger: Trigger, now_ms: int) -> str:
    """What starts a function, with the next due instant."""
    if isinstance(trigger, QueueTrigger):
        return "queue"
    if isinstance(trigger, WebhookTrigger):
        how = "anybody" if trigger.verify is None else "hmac" if isinstance(trigger.verify, Hmac) else trigger.verify
        return f"webhook {trigger.path} ({how})"
    zone = zone_of(trigger)
    return f"{text_of(trigger)}{'' if zone == 'UTC' else ' ' + zone}, next {_next(trigger, now_ms)}"


def command(function: Function, url: str | None) -> str:
    """A command that calls the function; where only a webhook may, the address to give its sender.

    JSON stands where the payload goes when none was found that its type takes.
    """
    hooks = [trigger.path for trigger in function.triggers if isinstance(trigger, WebhookTrigger)]
    if hooks and len(hooks) == len(function.triggers):
        return f"POST {url or ''}{hooks[0]}"
    parts = ["echod", "invoke", function.name]
    if function.takes_payload:
        payload: Any = {}
        if function.payload_schema is not None:
            payload = sample(function.payload_schema, is_short=True)
        parts += ["--data", "JSON" if payload is msgspec.UNSET else msgspec.json.encode(payload).decode()]
    if url and not url.endswith(":8321"):
        parts += ["--url", url]
    return shlex.join([*parts, "--wait"])


def _next(trigger: Recurring, now_ms: int) -> str:
    try:
        due_ms = rule_of(trigger).next_after(now_ms)
    except Refused:
        return "never"
    return datetime.fromtimestamp(due_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if _COLOURED else text


def _dim(text: str) -> str:
    return f"\x1b[2m{text}\x1b[0m" if _COLOURED else text


def _red(text: str) -> str:
    return f"\x1b[31m{text}\x1b[0m" if _COLOURED else text
