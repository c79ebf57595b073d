"""`echod doctor`: what the bus is like, what a crash can lose, what is out of place; it changes nothing."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from echod.cli.options import json_option, print_json
from echod.cli.settings import settings
from echod.config import Config
from echod.errors import BusError, Refused
from echod.policy import diagnosis
from echod.policy.diagnosis import Finding

if TYPE_CHECKING:
    from echod.bus import Bus

SAMPLE = 200  # jobs and lanes of a queue
QUEUES = 200
NAMED = 5  # in a line
DAMAGED = "an eviction, a hand-made change, or a fault of echod: report it"
SETTINGS = ("save", "appendfsync", "hash-max-listpack-value", "dir", "appenddirname")
_MARKS = {"fine": ("✔", "green"), "advice": ("·", "cyan"), "warning": ("!", "yellow"), "problem": ("✖", "bold red")}


@click.command()
@settings
@json_option
def doctor(config: Config, as_json: bool) -> int:
    """Look at the bus: what a crash can lose, memory, clocks, nodes, and whether every job is in its one place.

    Looks at --bus, else at the embedded server of a node that runs on --state. Exits 0 when all is fine (there may be
    advice), 1 with a warning or a problem, 2 where the bus cannot be used, 3 where none answers.
    """
    address = config.bus or f"unix://{config.state.absolute() / 'valkey.sock'}"
    shown = str(Config(bus=address).masked()["bus"])
    server, findings = asyncio.run(_examined(address, config))
    level = diagnosis.worst(findings)
    if as_json:
        print_json({"address": shown, "level": level, "server": server, "findings": msgspec.to_builtins(findings)})
    else:
        _print(shown, server, findings)
    return 1 if level in ("warning", "problem") else 0


async def _examined(address: str, config: Config) -> tuple[dict[str, Any], list[Finding]]:
    from echod.bus import Bus

    bus = await Bus.open(address, app=config.app, driven=config.clock)
    try:
        server: dict[str, Any] = await bus.server()
        told = await bus.settings(*SETTINGS)
        listpack = told.get("hash-max-listpack-value")
        server["append_fsync"], server["snapshots"] = told.get("appendfsync"), told.get("save")
        server["listpack_bytes"] = int(listpack) if listpack else None
        findings = diagnosis.of_server(msgspec.convert(server, diagnosis.Vitals))
        for looks in (_around(bus, address, server, told), _upon(bus), _orphans(bus), _places(bus)):
            findings += await _found(looks)
        return server, findings
    finally:
        await bus.close()


async def _found(looks: AsyncIterator[Finding]) -> list[Finding]:
    """What was found up to the first key that cannot be read, and that one."""
    found = list[Finding]()
    try:
        async for finding in looks:
            found.append(finding)
    except BusError as error:
        if not _is_damage(error):
            raise
        found.append(Finding("places", "problem", f"what is kept cannot be read: {error}", DAMAGED))
    return found


def _is_damage(error: BusError) -> bool:
    """Whether a verb stumbled over what is kept, as over a key of another type; others say that the server is away."""
    return type(error) is BusError


async def _around(bus: Bus, address: str, server: dict[str, Any], told: dict[str, str]) -> AsyncIterator[Finding]:
    """The server's disk, clock and doors."""
    from echod.bus.exposed import open_port

    folder = Path(told["dir"], told.get("appenddirname", "")) if told.get("dir") else None
    if server["append_only"] and folder is not None and folder.is_dir():  # else on another machine, or not ours to see
        yield diagnosis.of_disk(server["append_bytes"], shutil.disk_usage(folder).free)
    before = time.time()
    seconds, micros = await bus.link.command("TIME")
    host_ms = (before + time.time()) / 2 * 1000
    yield diagnosis.of_skew(round(int(seconds) * 1000 + int(micros) / 1000 - host_ms))
    port = await open_port(bus, address)
    if port is not None:
        text = f"port {port} answers without a password: whoever reaches it can read and change every job"
        yield Finding("access", "problem", text, "set requirepass, or an ACL, and give it in --bus")


async def _upon(bus: Bus) -> AsyncIterator[Finding]:
    """What echod has on the server: its verbs and nodes."""
    there, scripts = await bus.loaded_scripts()
    yield Finding("scripts", "fine", f"{there} of {scripts} loaded; others are loaded when they are used")
    nodes = await bus.nodes()
    pumps = sum(node.pump for node in nodes)
    leased = ", ".join(
        f"{node.number} for {(node.lease_ends_ms - bus.clock.now_ms()) / 1000:.0f} s more" for node in nodes
    )
    if not nodes:
        yield Finding("nodes", "warning", "none is alive: nothing runs, nothing falls due", "start one")
    elif not pumps:
        yield Finding("nodes", "warning", f"{len(nodes)} alive, none pumps: nothing falls due", "start `echod pump`")
    else:
        yield Finding("nodes", "fine", f"{len(nodes)} alive, of which {pumps} pump; numbers leased: {leased}")


async def _orphans(bus: Bus) -> AsyncIterator[Finding]:
    """Jobs of functions that the active version lacks."""
    from echod.registry.registry import Registry

    registry = Registry(bus, Path(tempfile.gettempdir()) / "echod-doctor")
    try:
        await registry.refresh()
    except (BusError, Refused) as error:
        yield Finding("version", "warning", f"the active version cannot be read: {error}", "deploy again")
        return
    finally:
        registry.close()
    if registry.active is None:
        yield Finding("version", "warning", "none is deployed: no job can run", "run `echod deploy FOLDER`")
        return
    served = {function.name for function in registry.active.manifest.functions}
    gone = [queue for queue in await bus.queues() if queue not in served]
    waits = {name: stats.pending + stats.scheduled for name, stats in (await bus.stats(gone)).items()}
    waits = {name: count for name, count in waits.items() if count}
    if not waits:
        yield Finding("version", "fine", f"{registry.active.version} is active, and has a function for every job")
        return
    named = ", ".join(f"{name} ({count})" for name, count in sorted(waits.items())[:NAMED])
    text = f"jobs wait for functions that {registry.active.version} lacks: {named}"
    yield Finding("version", "warning", text, "deploy a version that has them, or cancel the jobs")


async def _places(bus: Bus) -> AsyncIterator[Finding]:
    looked, found = 0, list[str]()
    for queue in (await bus.queues())[:QUEUES]:
        try:
            jobs, faults = await bus.check(queue, SAMPLE)
        except BusError as error:
            if not _is_damage(error):
                raise
            jobs, faults = 0, [("what is kept cannot be read", str(error))]
        looked += jobs
        found += [f"{queue}: {what}: {which}" for what, which in faults]
    if found:
        more = f", and {len(found) - NAMED} more" if len(found) > NAMED else ""
        text = "; ".join(found[:NAMED]) + more
        yield Finding("places", "problem", text, DAMAGED)
    else:
        yield Finding("places", "fine", f"{looked} jobs looked at, of each queue some: each is in exactly one place")


def _print(address: str, server: dict[str, Any], findings: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=10_000)
    console.print(Text(f"{server['server']} {server['version']} at {address}", style="bold"))
    table = Table.grid(padding=(0, 1))
    for finding in findings:
        mark, style = _MARKS[finding.level]
        table.add_row(Text(mark, style), Text(finding.topic, style), Text(finding.text))
        if finding.do:
            table.add_row("", "", Text(f"→ {finding.do}", "italic"))
    console.print(table)
