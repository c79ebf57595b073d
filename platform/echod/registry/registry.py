"""What is being served: the active version and its functions, kept in step with the bus.

Owns the picture of the active version in this process, and the folders of versions on disk. What this node must not
serve is not in that picture: `judge` says why, and the reason stands among the errors. It learns of a switch from
the bus's news, and from the beat when the news was lost: `seen` is told what each beat answered. It never writes to the
bus; publishing is deploy's.

A refresh that fails (the bus is away, a version cannot be read) leaves the last picture standing; the next beat tries
again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from echod import log
from echod.bus import Bus
from echod.bus.answers import Active
from echod.errors import BusError, Refused, UnknownFunction
from echod.model.ids import VersionId
from echod.registry import folders, peers
from echod.registry.archive import Archive, opened
from echod.registry.peers import About
from echofn.manifest import Function, LoadError, Manifest

_log = log.get("registry")

USED_S = 60.0  # three beats: who asked for a folder has its workers by then, and names them
UNSERVED = "unserved"  # the kind of error of a function that was loaded, and must not be served here
_manifest_of = msgspec.msgpack.Decoder(Manifest).decode


class Said(msgspec.Struct, frozen=True, array_like=True):
    """What a switch carries beside the version. `manifest` is the digest of the description it was made with: a version
    described anew (another env, a hang that went away) is a switch although its files are the same."""

    errors: tuple[LoadError, ...]
    manifest: bytes


_said_of = msgspec.msgpack.Decoder(Said).decode
Judge = Callable[[Function, About], str | None]  # why such a node must not serve a function; None: it may


class ActiveVersion(msgspec.Struct, frozen=True):
    """The version being served. `errors`: what could not be loaded from its folder, or from a later save."""

    version: VersionId
    generation: int
    manifest: Manifest
    errors: tuple[LoadError, ...] = ()
    since_ms: int | None = None  # when it was switched to


class Registry:
    """Functions by name, folders by version."""

    def __init__(self, bus: Bus, state: Path, *, own: About | None = None, judge: Judge | None = None) -> None:
        self.active: ActiveVersion | None = None
        self.unreadable: str | None = (
            None  # why the bus's active version is not `active`; None: it is, or none is known
        )
        self._own, self._judge = own, judge
        self._bus = bus
        self._versions = state.absolute() / "versions"
        self._functions: dict[str, Function] = {}
        self._manifests: dict[VersionId, Manifest] = {}
        self._checked: dict[VersionId, Path] = {}
        self._writing: dict[VersionId, asyncio.Lock] = {}
        self._listeners: list[Callable[[], None]] = []
        self._used: dict[VersionId, float] = {}  # when a folder was last asked for
        self.running: Callable[[], Iterable[VersionId]] = tuple  # versions that this node has workers of
        self.on_use: Callable[[], None] = lambda: None  # called when `needed` has grown
        self._refreshing = asyncio.Lock()
        self._stale = asyncio.Event()
        self._collected_at = time.monotonic()
        self._forget = [bus.on("switched", self._hear), bus.on("connected", self._hear)]

    async def run(self) -> None:
        """Follow the news until cancelled."""
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                await self.refresh()
            except (BusError, Refused) as error:
                _log.warning("registry.refresh_failed", error=str(error))
            if self._is_littered:
                await self._collect()

    def close(self) -> None:
        """Stop listening."""
        for forget in self._forget:
            forget()
        self._forget.clear()

    def function(self, name: str) -> Function | None:
        """The function of this name in the active version."""
        return self._functions.get(name)

    def names(self) -> list[str]:
        """Names of all active functions, sorted."""
        return sorted(self._functions)

    def unknown(self, name: str) -> UnknownFunction:
        """Why there is no function of this name: nobody is called so, or its annotations are off here."""
        off = self.active.manifest.off if self.active else ()
        if told := [f"@{each.kind} ({each.file}:{each.line}) has {each.why}" for each in off if each.function == name]:
            return UnknownFunction(f"{name} is off here: {', '.join(told)}")
        return UnknownFunction.near(name, self.names())

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after each switch, and after the errors of the active version changed. Returns how to stop that."""
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def seen(self, active: Active | None) -> None:
        """Told by the beat what the bus serves: makes good news that was lost, and sees to the disk now and then."""
        if self._is_littered or (active is not None and not self._is(active)):
            self._stale.set()

    @property
    def _is_littered(self) -> bool:
        """Whether folders that were too young to be removed when the disk was last looked at may be old now."""
        return time.monotonic() > self._collected_at + folders.KEPT_S

    async def refresh(self) -> None:
        """Read the active version from the bus. Raises BusError when it is away, Refused when it cannot be read."""
        async with self._refreshing:
            active, raw = await self._bus.active()
            if active is None or self._is(active):
                self.unreadable = None
                return
            self._manifests.pop(active.version, None)
            try:
                manifest, errors = await self._described(active.version, raw)
            except Refused as why:
                self.unreadable = str(why)
                raise
            self.active = ActiveVersion(active.version, active.generation, manifest, errors, active.since_ms)
            self.unreadable = None
            self._functions = {function.name: function for function in manifest.functions}
        _log.info(
            "version.switched", version=active.version, generation=active.generation, functions=len(self._functions)
        )
        for error in errors:
            if error.kind == UNSERVED:
                _log.error("function.unserved", file=error.file, line=error.line, error=error.message)
        for callback in tuple(self._listeners):
            callback()
        await self._collect()

    async def _described(self, version: VersionId, raw: bytes | None) -> tuple[Manifest, tuple[LoadError, ...]]:
        """What the active version has, and its errors: those of the switch, and of what must not be served here."""
        manifest = await self.manifest(version)
        if manifest is None:
            raise Refused(f"version {version} is active but not stored; deploy the folder again")
        errors = _decoded(raw, version, _said_of).errors if raw else ()
        return manifest, errors + tuple(
            error for error in manifest.errors if error.kind == UNSERVED and error not in errors
        )

    async def manifest(self, version: VersionId) -> Manifest | None:
        """The manifest of any stored version, as far as this node may serve it."""
        known = self._manifests.get(version)
        if known is not None:
            return known
        raw = await self._bus.get_manifest(version)
        if raw is None:
            return None
        manifest = self.admitted(_decoded(raw, version, _manifest_of))
        self._manifests[version] = manifest
        return manifest

    def admitted(self, manifest: Manifest) -> Manifest:
        """`manifest` without the functions that this node must not serve; its errors say why."""
        return _without(manifest, self._bar)

    async def judged(self, manifest: Manifest) -> Manifest:
        """`manifest` without the functions that this node, or a worker node that is alive, must not serve.

        For what is to be switched to. Its errors say why. Raises BusError.
        """
        others = await peers.workers(self._bus)

        def why_not(function: Function) -> str | None:
            if (why := self._bar(function)) is not None:
                return why
            for each in others if self._judge else ():
                if self._judge and (why := self._judge(function, each.about)) is not None:
                    return f"{why} (node {each.row.id} on {each.about.host})"
            return None

        return _without(manifest, why_not)

    def _bar(self, function: Function) -> str | None:
        return self._judge(function, self._own) if self._judge and self._own else None

    async def folder(self, version: VersionId) -> Path:
        """The folder that holds the package of `version`, on this machine's disk.

        From here on it is among what is `needed`. Raises Refused when the bus does not hold the version (any more).
        """
        is_new = version not in self._used
        self._used[version] = time.monotonic()
        if is_new:
            self.on_use()
        ready = self._checked.get(version)
        if ready is not None and folders.touch(ready):  # another node on this folder may have let go of it
            return ready
        async with self._writing.setdefault(version, asyncio.Lock()):
            root = self._versions / version
            is_known = self._checked.get(version) is not None and folders.touch(root)
            if not is_known and not await asyncio.to_thread(folders.holds, root, version):
                stored = await self._bus.get_version(version)
                if stored is None:
                    raise Refused(f"version {version}: not in the bus; deploy its folder again")
                return await self.materialise(version, await asyncio.to_thread(opened, stored[0], version))
            folders.touch(root)
            self._checked[version] = root
            return root

    def needed(self) -> tuple[VersionId, ...]:
        """Versions whose files this node needs, whatever the bus keeps: its workers', and those asked for just now."""
        since = time.monotonic() - USED_S
        self._used = {version: at for version, at in self._used.items() if at > since}
        return tuple(sorted({*self.running(), *self._used}))

    async def materialise(self, version: VersionId, archive: Archive) -> Path:
        """Write a version's files to this machine's disk; deploy does so before the bus knows of it.

        Raises Refused when the disk does not take them.
        """
        try:
            root = await asyncio.to_thread(folders.write, self._versions, version, archive)
        except OSError as error:
            raise Refused(
                f"version {version} cannot be written to {self._versions}: {error.strerror or error}"
            ) from None
        self._checked[version] = root
        return root

    async def let_go(self, version: VersionId) -> None:
        """Remove the files of a version that was not switched to, unless it was before and the bus keeps it."""
        try:
            if version in {kept for kept, _ in await self._bus.versions()}:
                return
        except BusError:
            return  # the next switch does it
        self._checked.pop(version, None)
        await asyncio.to_thread(folders.remove, self._versions, version)

    async def _collect(self) -> None:
        """Forget what the bus does, but what is needed here: it keeps the active version, the ten before it, and those
        that a node named with its last beat."""
        self._collected_at = time.monotonic()
        try:
            kept = {version for version, _ in await self._bus.versions()}
        except BusError:
            return  # the next time does it
        await asyncio.to_thread(folders.prune, self._versions, {*kept, *self.needed()})
        self._checked = {known: path for known, path in self._checked.items() if path.exists()}
        self._manifests = {known: manifest for known, manifest in self._manifests.items() if known in kept}

    def _is(self, active: Active) -> bool:
        now = self.active
        return now is not None and (now.version, now.generation) == (active.version, active.generation)

    def _hear(self, *_: object) -> None:
        self._stale.set()


T = TypeVar("T")


def _without(manifest: Manifest, why_not: Callable[[Function], str | None]) -> Manifest:
    """`manifest` without the functions that there is something against; its errors say what."""
    kept: list[Function] = []
    errors = list(manifest.errors)
    for function in manifest.functions:
        if (why := why_not(function)) is None:
            kept.append(function)
        else:
            errors.append(LoadError(function.module, function.file, why, function.line, kind=UNSERVED))
    if len(errors) == len(manifest.errors):
        return manifest
    return msgspec.structs.replace(manifest, functions=tuple(kept), errors=tuple(errors))


def _decoded(raw: bytes, version: VersionId, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(raw)
    except msgspec.MsgspecError as error:
        raise Refused(f"version {version}: its description cannot be read ({error}); deploy the folder again") from None
