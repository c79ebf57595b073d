"""Discovery as the control plane drives it: a confined process imports the modules, what comes back is data.

The process does the confining, the time limit and the starting over (`echofn.discovery`). Here: which modules, which
secrets, and what is remembered. A module that hung is not tried again with the same code (its own and what it imports
from the folder), because each try delays a save by the whole limit: its old error is answered at once, until that code
changes or `again` asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from echod import log
from echod.deploy.imports import closure
from echod.deploy.snapshot import Snapshot, file_of
from echofn.discovery_protocol import (
    MAX_ANSWER_BYTES,
    Described,
    Discover,
    Finished,
    Importing,
    Module,
    assembled,
    declared_secrets,
    decode_answer,
    framed,
)
from echofn.frames import HEADER
from echofn.manifest import LoadError, Manifest

_log = log.get("deploy")

LIMIT_MS = 10_000
SLACK_S = 5.0  # beyond a module's limit: for the process to start, and to name a culprit
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}

_Code = tuple[str, bytes]  # a module, and the digest of its code and of what that imports from the folder


class Discovery:
    """Describes folders. `environ`: where the modules' secrets come from."""

    def __init__(
        self, level: str, env: str, environ: Mapping[str, str] | None = None, *, limit_ms: int = LIMIT_MS
    ) -> None:
        self._level = level
        self._env = env
        self._environ = os.environ if environ is None else environ
        self._limit_ms = limit_ms
        self._hung: dict[_Code, LoadError] = {}

    async def describe(self, root: Path, snapshot: Snapshot, *, again: bool = False) -> Manifest:
        """What the modules below `root` hold, and why some could not be loaded."""
        contents, package = snapshot.contents, snapshot.archive.package
        if again:
            self._hung.clear()
        suspects = {name for name, _ in self._hung}.intersection(snapshot.modules)
        known = {name: self._hung.get(_code(name, contents, package)) for name in suspects}
        answers = {name: Described(name, errors=(error,)) for name, error in known.items() if error is not None}
        modules = tuple(Module(name, file_of(name)) for name in snapshot.modules if name not in answers)
        if modules:
            answers |= await self._ask(root, package, modules, contents)
        for module in modules:
            answers.setdefault(module.name, _unanswered(module))
        self._remember(answers, contents, package)
        return assembled(package, answers.values())

    def _remember(self, answers: Mapping[str, Described], contents: Mapping[str, bytes], package: str) -> None:
        """Keep in mind what hung, and what failed because it imports what hung: it would hang without that now."""
        failed = {name: answer.errors[0] for name, answer in answers.items() if answer.errors}
        hung = [name for name, error in failed.items() if error.kind == "hang"]
        reach = {name: closure(file_of(name), contents, package) for name in failed} if hung else {}
        tainted = frozenset[str]().union(*(reach[name] for name in hung))
        for name, files in reach.items():
            if files & tainted:
                self._hung[_code(name, contents, package)] = failed[name]

    async def _ask(
        self, root: Path, package: str, modules: tuple[Module, ...], contents: Mapping[str, bytes]
    ) -> dict[str, Described]:
        """The answers of one discovery process, as far as it got."""
        tmp = await asyncio.to_thread(tempfile.mkdtemp, prefix="echod-discovery-")
        order = Discover(
            root=str(root),
            package=package,
            modules=modules,
            tmp=tmp,
            secrets={module.name: self._secrets_of(contents[module.file]) for module in modules},
            time_limit_ms=self._limit_ms,
            level=self._level,
            env=self._env,
        )
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-B", "-m", "echofn.discovery", str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),), env=ENVIRONMENT,
                    stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,  # what user code prints at import is not the node's to show
                )  # fmt: skip
            try:
                return await self._answers(ours, order)
            finally:
                ours.close()  # the process's sign to end, with everything below it
                await _ended(process)
        finally:
            ours.close()
            shutil.rmtree(tmp, ignore_errors=True)

    async def _answers(self, ours: socket.socket, order: Discover) -> dict[str, Described]:
        answers: dict[str, Described] = {}
        ours.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_ANSWER_BYTES + HEADER.size)
        try:
            writer.write(framed(order))
            while True:
                async with asyncio.timeout(self._limit_ms / 1000 + SLACK_S):
                    (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
                    if size > MAX_ANSWER_BYTES:
                        raise ValueError(f"an answer of {size} bytes")
                    message = decode_answer(await reader.readexactly(size))
                match message:
                    case Described():
                        answers[message.module] = message
                    case Finished():
                        return answers
                    case Importing():
                        pass
        except (TimeoutError, OSError, asyncio.IncompleteReadError, ValueError, msgspec.MsgspecError) as error:
            _log.error("discovery.broke_off", error=repr(error), answered=len(answers), asked=len(order.modules))
            return answers
        finally:
            writer.close()

    def _secrets_of(self, source: bytes) -> dict[str, str]:
        """Exactly the variables that a module's annotations name, as far as they are set."""
        return {name: self._environ[name] for name in sorted(declared_secrets(source)) if name in self._environ}


def _code(module: str, contents: Mapping[str, bytes], package: str) -> _Code:
    digest = hashlib.sha256()
    for path in sorted(closure(file_of(module), contents, package)):
        digest.update(hashlib.sha256(path.encode()).digest() + hashlib.sha256(contents[path]).digest())
    return module, digest.digest()


def _unanswered(module: Module) -> Described:
    """For a module that the process said nothing of before it broke off."""
    text = "expected an answer of the process that imports it, got none; see echod's log"
    return Described(module.name, errors=(LoadError(module.name, module.file, text, kind="crash"),))


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Wait for the process; one that does not go by itself is killed."""
    try:
        async with asyncio.timeout(SLACK_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()  # it takes everything below it along; a SIGKILL would not
        await process.wait()
