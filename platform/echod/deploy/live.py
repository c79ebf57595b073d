"""The folder is the truth, on every save: what is saved is served, and what is broken is served as it last was good.

A turn compares content, never times: a save that changes nothing does nothing. A broken module is replaced by its last
good content; where that is not enough, because a file that it imports has changed under it, those files are too; and
where that breaks others, the whole last version stays until the folder is whole again. Errors are stored with the
switch, so that terminal, pages and JSON show the same, and are gone with the save that mends them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from echod import log
from echod.deploy.ignore import CACHES, FILE, never_taken
from echod.deploy.publish import Publisher, place_of
from echod.deploy.snapshot import Snapshot, file_of, identity, snapshot_of, taken
from echod.errors import BusError, Refused
from echod.model.ids import VersionId
from echod.registry.registry import UNSERVED
from echofn.manifest import LoadError, Manifest

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify

_log = log.get("deploy")

STEP_MS = 100  # how often the watcher's thread looks for news of the kernel; a burst is over after one quiet step
BURST_MS = 400
AWAY_S = 1.0
GONE_S = 1.0
POLL_MS = 1000


class Saved(msgspec.Struct, frozen=True):
    """A turn that saw a change: what was changed, what is served now, what is broken."""

    version: VersionId | None
    files: tuple[str, ...]
    errors: tuple[LoadError, ...]
    mended: bool = False  # errors that were there before are gone
    took_ms: int = 0


class Live:
    """One folder, kept served."""

    def __init__(self, folder: Path, publisher: Publisher, state: Path) -> None:
        self.folder = folder
        self._publisher = publisher
        self._state = state.absolute()
        self._seen: dict[str, bytes] | None = None  # the folder as it was last looked at
        self._errors: tuple[LoadError, ...] = ()
        self._served: tuple[Snapshot, Manifest] | None = None
        self._turns = asyncio.Lock()

    async def run(self, say: Callable[[Saved], object]) -> None:
        """A turn for every burst of changes, until cancelled; `say` is told of those that saw one."""
        stop = threading.Event()
        try:
            while True:
                place = identity(self.folder)
                if place is None:
                    await self._tell(say)
                    while place is None:  # nothing tells of a folder that is not there yet
                        await asyncio.sleep(GONE_S)
                        place = identity(self.folder)
                with _watcher(self.folder) as watcher:
                    await self._tell(say)
                    while identity(self.folder) == place:
                        if await self._changes(watcher, stop):
                            await self._tell(say)
        finally:
            stop.set()

    async def _tell(self, say: Callable[[Saved], object]) -> None:
        if (saved := await self.reloaded()) is not None:
            say(saved)

    async def reloaded(self, *, again: bool = False) -> Saved | None:
        """A turn of a folder that is served already: whatever a save leads to, what is served stays."""
        try:
            saved = await self.follow(again=again)
            await self._publisher.prepare()  # for the next save
            return saved
        except Exception as error:  # a loop's place: no save ends the node
            text = str(error)
            if not isinstance(error, Refused):
                _log.exception("turn.crashed", error=repr(error))
                text = f"expected a save that can be served, got {error!r}; see echod's log, and save again"
        try:
            async with self._turns:
                return await self._unreadable(text)
        except (BusError, Refused) as error:
            self._seen = None
            errors = dict.fromkeys((text, str(error)))
            return Saved(None, (), tuple(LoadError("", "", each, kind="refused") for each in errors))

    async def follow(self, *, again: bool = False) -> Saved | None:
        """One turn, repeated while the bus is away."""
        told = False
        while True:
            try:
                return await self.turn(again=again)
            except BusError as error:
                if not told:
                    _log.warning("version.unpublished", error=str(error))
                told = True
                await asyncio.sleep(AWAY_S)

    async def turn(self, *, again: bool = False) -> Saved | None:
        """Look at the folder; serve what changed. None: nothing did. `again`: try everything anew, changed or not.

        Safe to repeat. Raises BusError, after which the next turn starts over; Refused in the first for a folder that
        cannot be served.
        """
        async with self._turns:
            began = asyncio.get_running_loop().time()
            try:
                snapshot = await asyncio.to_thread(taken, self.folder, state=self._state)
            except Refused as error:
                return await self._unreadable(str(error))
            files = snapshot.contents
            if files == self._seen and not again:
                return None
            before = self._served[1] if self._served else None
            found = await self._publisher.describe(snapshot, before, again=again)
            self._refuse_at_start(found.errors)
            served, manifest = await self._mended(snapshot, found) if found.errors else (snapshot, found)
            active = await self._publisher.publish(served, manifest, found.errors)
            changed = _changed(self._seen or {}, files)
            mended = bool(self._errors) and not found.errors
            self._seen, self._errors, self._served = files, found.errors, (served, manifest)
            took = asyncio.get_running_loop().time() - began
            return Saved(active.version, changed, found.errors, mended, round(took * 1000))

    def _refuse_at_start(self, errors: tuple[LoadError, ...]) -> None:
        """What this node must not serve ends its start, while whoever started it looks on. A save later is shown."""
        if self._served is None and (unserved := [error for error in errors if error.kind == UNSERVED]):
            raise Refused("; ".join(map(place_of, unserved)))

    async def _changes(self, watcher: RustNotify, stop: threading.Event) -> bool:
        """Wait for a burst of changes to end; whether any of them can matter."""
        seen = await asyncio.to_thread(watcher.watch, BURST_MS, STEP_MS, 0, stop)
        return isinstance(seen, set) and any(self._matters(path) for _, path in seen)

    def _matters(self, path: str) -> bool:
        """Whether a change can matter: not one in a cache, of an editor's own file, or of what starts with a dot."""
        *folders, name = Path(path).relative_to(self.folder).parts or ("",)
        if Path(path).is_relative_to(self._state):
            return False
        if any(folder.startswith(".") or folder in CACHES for folder in folders):
            return False
        return name == FILE or not (name.startswith(".") or never_taken(name, is_folder=False))

    async def _mended(self, snapshot: Snapshot, found: Manifest) -> tuple[Snapshot, Manifest]:
        """What to serve of a folder with broken modules."""
        package, files = snapshot.archive.package, snapshot.contents
        last = self._served or await self._publisher.previous(package)  # after a restart: what the bus serves still
        if last is None:
            return snapshot, found
        before = last[0].contents
        good = before.keys() & files.keys() - _broken(last[1])
        lost = _broken(found) & good
        stand_ins = {path: before[path] for path in lost}
        for _ in ("with the modules as they were", "with what they import as it was, too"):
            if not lost:
                break
            candidate = await asyncio.to_thread(snapshot_of, package, {**files, **stand_ins})
            if candidate.version != snapshot.version:
                snapshot, found = candidate, await self._publisher.describe(candidate, last[1])
            lost = _broken(found) & good
            stand_ins |= {path: before[path] for path in await self._publisher.reach(last[0], lost)}
        return last if lost and self._served is not None else (snapshot, found)

    async def _unreadable(self, message: str) -> Saved:
        """A folder that cannot be a version: what was served stays, the reason is shown."""
        if self._served is None:
            raise Refused(message)
        errors = (LoadError("", "", message, kind="refused"),)
        served, manifest = self._served
        active = await self._publisher.publish(served, manifest, errors)
        self._seen, self._errors = None, errors
        return Saved(active.version, (), errors)


def _watcher(folder: Path) -> RustNotify:
    """A watch that sees every change from now on. (`awatch` does not say from when on it does.)"""
    from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError  # loaded when all else is up

    try:
        return RustNotify([str(folder)], False, False, 0, True, False)
    except (OSError, WatchfilesRustInternalError) as error:  # the machine's limit of watches is reached
        _log.warning("folder.polled", error=str(error), every_ms=POLL_MS)
        return RustNotify([str(folder)], False, True, POLL_MS, True, False)


def _broken(manifest: Manifest) -> set[str]:
    """The files of modules that could not be loaded, or of which a function could not be taken; and `echod.toml`."""
    return {file_of(error.module) if error.module else error.file for error in manifest.errors}


def _changed(before: dict[str, bytes], now: dict[str, bytes]) -> tuple[str, ...]:
    return tuple(sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path)))
