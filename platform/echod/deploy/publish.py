"""A snapshot becomes the served version: described, stored, switched to by one write.

Owns the way from a folder's content to the bus, and back to a version that is stored there. It decides nothing about
broken modules: `deployed` refuses them whole (a deploy), `deploy.live` serves their last good content (dev).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, Coroutine, Sequence, Set
from weakref import WeakValueDictionary

import msgspec

from echod import log
from echod.bus import Bus
from echod.bus.answers import Active
from echod.deploy.checks import checked
from echod.deploy.discovery import Discovery
from echod.deploy.snapshot import Snapshot, is_foreign, snapshot_of
from echod.deploy.warming import warmed
from echod.errors import Refused, UnknownVersion
from echod.model.ids import VersionId
from echod.policy.plan import Deployed, Plan, planned
from echod.registry.archive import Archive, Unpacking, opened, pieces_of
from echod.registry.registry import Registry, Said
from echofn.manifest import CronTrigger, EveryTrigger, LoadError, Manifest

_log = log.get("deploy")
_MOST_ERRORS = 50
_encode = msgspec.msgpack.Encoder().encode


class Publisher:
    """Describes snapshots, and switches the bus to them."""

    def __init__(self, bus: Bus, registry: Registry, discovery: Discovery) -> None:
        self._bus = bus
        self._registry = registry
        self._discovery = discovery
        self._imports = {only_plan: asyncio.Lock() for only_plan in (False, True)}  # one at a time of each
        self._switches = asyncio.Lock()  # what a plan is made of stays until its switch is written
        self._working = WeakValueDictionary[VersionId, asyncio.Lock]()  # on a version's files, which others let go of

    async def describe(self, snapshot: Snapshot, before: Manifest | None = None, *, again: bool = False) -> Manifest:
        """What the folder's modules have, found in confined processes; names stay with whom they had `before`.

        `again`: try the modules that are known to hang, too.
        """
        root = await self._registry.materialise(snapshot.version, snapshot.archive)
        return await self._registry.judged(checked(await self._discovery.describe(root, snapshot, again=again), before))

    async def reach(self, snapshot: Snapshot, paths: Set[str]) -> frozenset[str]:
        """These files of a folder and all that they import of it."""
        return await self._discovery.reach(snapshot, paths)

    async def prepare(self) -> None:
        """Make the next description start ahead of its question."""
        await self._discovery.prepare()

    async def publish(
        self, snapshot: Snapshot, manifest: Manifest, errors: Sequence[LoadError] = (), *, is_stored: bool = False
    ) -> Active:
        """Store the version, unless it is, and switch to it, with the errors that people shall see. Raises BusError."""
        now = self._registry.active if self._registry.unreadable is None else None  # it is behind the bus
        if now is not None and (now.version, now.manifest, now.errors) == (snapshot.version, manifest, tuple(errors)):
            return Active(now.version, now.generation)
        if not is_stored:
            await self._store(snapshot, manifest)
        return await self._switch(snapshot.version, _encode(manifest), errors)

    async def _store(self, snapshot: Snapshot, manifest: Manifest) -> None:
        pieces = await asyncio.to_thread(pieces_of, snapshot.archive)
        await self._bus.put_version(snapshot.version, pieces, _encode(manifest))

    async def deployed(self, body: AsyncIterable[bytes], *, only_plan: bool = False) -> Deployed:
        """Take a packed folder from outside, and switch to it whole or not at all; or say only what that would change.

        `body` is unpacked as it comes, off the loop. Raises Refused naming file and line of everything that is broken;
        BusError. Cancelled, it ends the import, and switches nothing unless that is being written already. No switch
        waits for an import or for workers, nor a deploy's import for that of a plan.
        """
        snapshot = await _received(body)
        async with self._working.setdefault(snapshot.version, asyncio.Lock()):
            try:
                async with self._imports[only_plan]:
                    manifest = await self.describe(snapshot, again=True)
                if manifest.errors:
                    raise _broken(manifest)
                plan = await self._judged(manifest)
                if only_plan:
                    return _deployed(snapshot.version, None, manifest, plan)
                await self._store(snapshot, manifest)  # also where it is active: the bus may hold it damaged
                await warmed(self._bus, snapshot.version)
                async with self._switches:
                    plan = await self._judged(manifest)
                    active = await _whole(self.publish(snapshot, manifest, is_stored=True))
            finally:  # a plan, a refusal and a caller who went away leave nothing on disk
                await self._registry.let_go(snapshot.version)
        _log.info("version.deployed", version=active.version, generation=active.generation)
        return _deployed(active.version, active.generation, manifest, plan)

    async def _judged(self, manifest: Manifest) -> Plan:
        """What a switch to it would change. Raises Refused where there must be none."""
        await self._check_schedules(manifest)
        plan = await self._planned(manifest)
        if plan.gone and not manifest.functions:  # the wrong folder, most likely
            said = "nothing was switched: expected at least one function, got a folder without"
            raise Refused(f"{said}; what is served now ({len(plan.gone)}) would end")
        return plan

    async def activated(self, version: VersionId, *, only_plan: bool = False) -> Deployed:
        """Switch to a stored version: its files are here and intact before it is. Raises UnknownVersion, Refused."""
        manifest = await self._registry.manifest(version)
        if manifest is None:
            raise UnknownVersion(version)
        manifest = await self._registry.judged(manifest)
        if manifest.errors:  # what a node must not serve among them
            raise _broken(manifest)
        await self._registry.folder(version)
        described = await self._bus.get_manifest(version)
        if described is None:
            raise UnknownVersion(version)
        if not only_plan:
            await warmed(self._bus, version)
        async with self._switches:
            await self._check_schedules(manifest)
            plan = await self._planned(manifest)
            if only_plan:
                return _deployed(version, None, manifest, plan)
            active = await _whole(self._switch(version, described))
        _log.info("version.activated", version=active.version, generation=active.generation)
        return _deployed(active.version, active.generation, manifest, plan)

    async def _check_schedules(self, manifest: Manifest) -> None:
        """Refuse code that would have a schedule of a name that was registered at run time: that one stays."""
        registered = {(row.queue, row.name) for row in await self._bus.recurrences() if row.is_own}
        clashes = [
            f"{function.file}:{trigger.line}: {function.name}/{trigger.name} is registered at run time already"
            for function in manifest.functions
            for trigger in function.triggers
            if isinstance(trigger, CronTrigger | EveryTrigger) and (function.name, trigger.name) in registered
        ]
        if clashes:
            told = "; ".join(clashes)
            raise Refused(f"nothing was switched: {told}; remove that one, or give one of them another name=")

    async def previous(self, package: str) -> tuple[Snapshot, Manifest] | None:
        """The bus's active version, when it is one of this package: what was good before a restart.

        None also where it cannot be read: it is of no use.
        """
        active, _ = await self._bus.active()
        try:
            manifest = await self._registry.manifest(active.version) if active is not None else None
        except Refused as error:
            _log.warning("registry.refresh_failed", error=str(error))
            manifest = None
        if active is None or manifest is None or manifest.package != package:
            return None
        stored = await self._bus.get_version(active.version)
        if stored is None:
            return None
        return await asyncio.to_thread(lambda: _snapshot_of(opened(stored[0], active.version))), manifest

    async def _switch(self, version: VersionId, described: bytes, errors: Sequence[LoadError] = ()) -> Active:
        """The one write. Raises Refused where the version is not stored whole."""
        said = Said(tuple(errors), hashlib.sha256(described).digest())
        active = await self._bus.activate(version, errors=_encode(said))
        await self._registry.refresh()
        return active

    async def _planned(self, manifest: Manifest) -> Plan:
        """What a switch to it from what the bus serves now would change. All is new where that cannot be read."""
        unknown: str | None = None
        try:
            await self._registry.refresh()
        except Refused as error:
            unknown = str(error)
        active = self._registry.active if unknown is None else None
        before = active.manifest if active else None
        gone = {each.name for each in before.functions} - {each.name for each in manifest.functions} if before else ()
        rows, stats = await asyncio.gather(self._bus.recurrences(gone=True), self._bus.stats(sorted(gone)))
        held = {f"{row.queue}/{row.name}": row.standing for row in rows if not row.is_own}
        waiting = {name: counts.pending + counts.scheduled for name, counts in stats.items()}
        plan = planned(before, manifest, self._bus.clock.now_ms(), held, waiting)
        return msgspec.structs.replace(plan, unknown=unknown)


def _deployed(version: VersionId, generation: int | None, manifest: Manifest, plan: Plan) -> Deployed:
    return Deployed(version, generation, tuple(function.name for function in manifest.functions), plan)


def _broken(manifest: Manifest) -> Refused:
    """Everything that is broken in it, as far as anybody reads on."""
    told = [place_of(error) for error in manifest.errors[:_MOST_ERRORS]]
    if (more := len(manifest.errors) - len(told)) > 0:
        told.append(f"and {more} more")
    return Refused("nothing was switched: " + "; ".join(told))


async def _whole(writing: Coroutine[object, object, Active]) -> Active:
    """Let a switch come to its end, whoever gives up meanwhile."""
    task = asyncio.ensure_future(writing)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


async def _received(body: AsyncIterable[bytes]) -> Snapshot:
    unpacking = Unpacking()
    async for part in body:
        await asyncio.to_thread(unpacking.feed, part)
    snapshot = await asyncio.to_thread(lambda: _snapshot_of(unpacking.archive()))
    if foreign := [file.path for file in snapshot.archive.files if is_foreign(file.path)]:
        said = (
            f"nothing was switched: {foreign[0]}: expected no settings, dot-files or caches, got {len(foreign)} of them"
        )
        raise Refused(f"{said}; `echod deploy` leaves them out")
    return snapshot


def _snapshot_of(archive: Archive) -> Snapshot:
    return snapshot_of(archive.package, {file.path: file.data for file in archive.files})


def place_of(error: LoadError) -> str:
    """An error as editors link it: "file:line:column: message"."""
    spots = [str(spot) for spot in (error.file or error.module, error.line, error.column) if spot not in {None, ""}]
    return f"{':'.join(spots)}: {error.message}" if spots else error.message
