"""Discovery as the control plane drives it: a confined process imports the modules, what comes back is data.

The process does the confining, the time limit and the starting over (`echofn.discovery`). Here: which modules, which
secrets, and what is remembered. A module that hung is not tried again with the same code (its own and what it imports
from the folder), because each try delays a save by the whole limit: its old error is answered at once, until that code
changes or `again` asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncGenerator, Iterable, Mapping, Set
from pathlib import Path

import msgspec

from echod.deploy.defaults import defaults_of
from echod.deploy.importer import LIMIT_MS, Importer
from echod.deploy.imports import Known, Sources
from echod.deploy.snapshot import Snapshot, file_of, is_misnamed, module_of
from echod.errors import Refused
from echod.scratch import Scratch, wipe
from echofn.discovery_protocol import Described, Discover, Module, assembled
from echofn.manifest import LoadError, Manifest, Policy

ALL_MS = 60_000  # for a whole folder, whatever each of its modules may take: others wait

_Code = tuple[str, bytes]  # a module, and the digest of its code and of what that imports from the folder


class Discovery:
    """Describes folders. `environ`: where the modules' secrets come from; `scratch`: where imports may write."""

    def __init__(
        self,
        level: str,
        env: str,
        environ: Mapping[str, str] | None = None,
        *,
        limit_ms: int = LIMIT_MS,
        all_ms: int = ALL_MS,
        scratch: Path | None = None,
    ) -> None:
        self._level = level
        self._env = env
        self._environ = os.environ if environ is None else environ
        self._limit_ms = limit_ms
        self._all_ms = all_ms
        self._scratch = Scratch(scratch, f"imports-{os.urandom(8).hex()}") if scratch is not None else None
        self._imports = 0
        self._spare: Importer | None = None
        self._hung: dict[_Code, LoadError] = {}
        self._known: Known = {}  # of the last description: what has not changed is not parsed again

    async def describe(self, root: Path, snapshot: Snapshot, *, again: bool = False) -> Manifest:
        """What the modules below `root` hold, and why some could not be loaded."""
        contents = snapshot.contents
        defaults = await asyncio.to_thread(defaults_of, contents)
        if again:
            self._hung.clear()
            self._known = {digest: said for digest, said in self._known.items() if said is not None}
        manifest = Manifest(snapshot.archive.package)
        if snapshot.modules:
            async with self._importer() as importer:
                manifest = await self._described(importer, root, snapshot, contents, defaults.policy)
        return msgspec.structs.replace(
            manifest, errors=(*defaults.errors, *_misnamed(contents.keys()), *manifest.errors)
        )

    async def reach(self, snapshot: Snapshot, paths: Set[str]) -> frozenset[str]:
        """These files of a folder and all that they import of it."""
        sources = Sources(snapshot.contents, snapshot.archive.package, self._known)
        async with self._importer() as importer:
            await self._learn(importer, sources, paths)
        return await asyncio.to_thread(lambda: frozenset[str]().union(*map(sources.closure, paths)))

    async def _described(
        self, importer: Importer, root: Path, snapshot: Snapshot, contents: Mapping[str, bytes], defaults: Policy
    ) -> Manifest:
        """What the modules have, once their syntax has said which code and secrets each needs."""
        package, paths = snapshot.archive.package, [file_of(name) for name in snapshot.modules]
        sources = Sources(contents, package, self._known)
        await self._learn(importer, sources, paths)
        self._known = sources.known
        refused = {error.file: error for error in await asyncio.to_thread(sources.refused, paths)}
        await asyncio.to_thread(sources.settle, paths)
        known = {name: refused.get(file_of(name)) or self._hung.get(_code(name, sources)) for name in snapshot.modules}
        answers = {name: Described(name, errors=(error,)) for name, error in known.items() if error is not None}
        modules = tuple(Module(name, file_of(name)) for name in snapshot.modules if name not in answers)
        if modules and not importer.is_broken:
            told = await self._ask(importer, root, package, modules, sources, defaults)
            answers |= {name: _read_off(answer, sources) for name, answer in told.items()}
        why = _BROKEN_OFF
        if importer.is_late:
            why = f"expected all modules to be imported within {self._all_ms / 1000:g} s together, got no further than"
            why = f"{why} {len(answers)} of {len(snapshot.modules)}; do what takes long when a job runs"
        for module in modules:
            answers.setdefault(module.name, _unanswered(module, why))
        await asyncio.to_thread(self._remember, answers, sources)
        manifest = assembled(package, answers.values())
        return msgspec.structs.replace(manifest, errors=tuple(dict.fromkeys((*manifest.errors, *refused.values()))))

    async def _learn(self, importer: Importer, sources: Sources, paths: Iterable[str]) -> None:
        """Have parsed what is not known of these files and of what they import, a step further each time."""
        while unparsed := await asyncio.to_thread(sources.unparsed, paths):
            said = await importer.parse(unparsed, self._limit_ms)
            for source, each in zip(unparsed, said, strict=False):
                sources.learn(source, each)
            if importer.is_broken:
                break
            if len(said) < len(unparsed):
                sources.learn(unparsed[len(said)], None)

    def _remember(self, answers: Mapping[str, Described], sources: Sources) -> None:
        """Keep in mind what hung, and what failed because it imports what hung: it would hang without that now."""
        failed = {name: answer.errors[0] for name, answer in answers.items() if answer.errors}
        hung = [name for name, error in failed.items() if error.kind == "hang"]
        reach = {name: sources.closure(file_of(name)) for name in failed} if hung else {}
        tainted = frozenset[str]().union(*(reach[name] for name in hung))
        for name, files in reach.items():
            if files & tainted:
                self._hung[_code(name, sources)] = failed[name]

    async def prepare(self) -> None:
        """Have a process wait for the next question, which then saves its start."""
        if self._spare is None or not self._spare.is_alive:
            self._spare = await Importer.started()

    async def close(self) -> None:
        """End the process that waits, and remove what imports wrote."""
        spare, self._spare = self._spare, None
        if spare is not None:
            await spare.close()
        if self._scratch is not None:
            await asyncio.to_thread(self._scratch.close)

    @contextlib.asynccontextmanager
    async def _importer(self) -> AsyncGenerator[Importer]:
        """A process to ask: the one that waits, unless it died meanwhile; it is gone afterwards."""
        importer, self._spare = self._spare, None
        if importer is not None and not await _answers(importer):
            importer = None
        importer = importer or await Importer.started()
        importer.until = asyncio.get_running_loop().time() + self._all_ms / 1000
        try:
            yield importer
        finally:
            await importer.close()

    async def _ask(
        self,
        importer: Importer,
        root: Path,
        package: str,
        modules: tuple[Module, ...],
        sources: Sources,
        defaults: Policy,
    ) -> dict[str, Described]:
        """The answers of the process, as far as it got."""
        tmp = await asyncio.to_thread(self._fresh)
        secrets = {module.name: self._secrets_of(sources.secrets(module.file)) for module in modules}
        secrets = {module: each for module, each in secrets.items() if each}
        order = Discover(
            root=str(root),
            package=package,
            modules=modules,
            tmp=str(tmp),
            time_limit_ms=self._limit_ms,
            level=self._level,
            env=self._env,
            defaults=defaults,
        )
        try:
            return await importer.ask(order, secrets)
        finally:
            await asyncio.to_thread(wipe, tmp)

    def _fresh(self) -> Path:
        """An empty folder for one process's imports. Raises Refused where there can be none."""
        try:
            if self._scratch is None:
                return Path(tempfile.mkdtemp(prefix="echod-discovery-"))
            self._imports += 1
            self._scratch.open()
            return self._scratch.fresh(str(self._imports))
        except OSError as error:
            raise Refused(f"{error.filename}: expected a folder for what imports write: {error.strerror}") from None

    def _secrets_of(self, named: Set[str]) -> dict[str, str]:
        """Exactly the variables that a module's annotations name, as far as they are set."""
        return {name: self._environ[name] for name in sorted(named) if name in self._environ}


def _read_off(answer: Described, sources: Sources) -> Described:
    """The functions with what only their source can say, whatever the module's own code made of it: secrets, digest."""
    names = tuple(sorted(sources.secrets(file_of(answer.module))))
    code = _code(answer.module, sources)[1].hex()[:16] if answer.functions else ""
    functions = tuple(msgspec.structs.replace(each, secrets=names, code=code) for each in answer.functions)
    return msgspec.structs.replace(answer, functions=functions)


async def _answers(importer: Importer) -> bool:
    """Whether a process that waited is there still; what is left of it is gone otherwise."""
    answers = False
    try:
        answers = await importer.answers()
    finally:
        if not answers:
            await importer.close()
    return answers


def _code(module: str, sources: Sources) -> _Code:
    return module, sources.code(file_of(module))


def _misnamed(contents: Set[str]) -> list[LoadError]:
    """One for each file that would be a module, and cannot be imported by its name."""
    dotted = "expected a name that can be imported, got one with a dot in it; rename it, or name it in .echodignore"
    found = {path: dotted for path in contents if is_misnamed(path)}
    for path in contents:
        inside = f"{path.removesuffix('.py')}/__init__.py"
        if inside in contents and module_of(path) is not None:
            found[path] = f"expected a name of its own, got that of {inside}, which an import finds; rename one of them"
    return [LoadError("", path, text, kind="refused") for path, text in found.items()]


_BROKEN_OFF = "expected an answer of the process that imports it, got none; see echod's log"


def _unanswered(module: Module, why: str) -> Described:
    """For a module that the process said nothing of before it broke off."""
    return Described(module.name, errors=(LoadError(module.name, module.file, why, kind="crash"),))
