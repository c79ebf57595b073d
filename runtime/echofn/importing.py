"""The confined child of discovery: takes the walls, imports the modules of a folder in turn, says what is in each.

Frames to the keeper: `Importing` and `Described` for each module, and `Entered` whenever a module's code begins or
ends, so that the keeper knows which one was running when the time limit came or the process died.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import NamedTuple, NoReturn

import msgspec

from echofn import walls
from echofn.blocked import Refusal
from echofn.describe import Given, describe
from echofn.discovery_protocol import Declared, Described, Discover, Finished, Importing, Module, Place, Said, declared
from echofn.faults import MAX_MESSAGE, Asker, explained, line_in, message_of, missing_variable, raw, safe, type_of
from echofn.frames import HEADER
from echofn.manifest import LoadError
from echofn.masking import Mask
from echofn.package import Folder
from echofn.quoting import hide_by
from echofn.refusals import Refusals
from echofn.sealed import take

MEMORY_BYTES = 1024 * 1024 * 1024


class Entered(msgspec.Struct, frozen=True, tag="entered", array_like=True):
    """Child to keeper: the code of this module (full name) begins to run, or, empty, the innermost has ended."""

    name: str


class Culprit(NamedTuple):
    """What a module did that must not be executed again."""

    kind: str
    told: str


Told = Importing | Described | Finished | Entered | Said
_encode = msgspec.msgpack.Encoder().encode


class Teller:
    """The child's end of its channel."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)

    def say(self, message: Importing | Described | Entered) -> None:
        body = _encode(message)
        self._socket.sendall(HEADER.pack(len(body)) + body)


class Blocked(ImportError):
    """A module that hung, exited or crashed before is not executed again."""

    def __init__(self, fullname: str, culprit: Culprit) -> None:
        super().__init__(f"{fullname} {culprit.told}", name=fullname)
        self.culprit = culprit


class WatchedFolder(Folder):
    """The folder, telling which of its modules runs, and refusing those that hung or crashed before."""

    def __init__(self, root: str, package: str, blocked: dict[str, Culprit], teller: Teller) -> None:
        super().__init__(root, package)
        self._blocked = blocked
        self._teller = teller

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = super().find_spec(fullname, path, target)
        if spec is not None and fullname in self._blocked:
            raise Blocked(fullname, self._blocked[fullname])
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = WatchedLoader(fullname, spec.loader.path, self._teller)
        return spec


class WatchedLoader(SourceFileLoader):
    """Tells when a module's code begins and ends."""

    def __init__(self, fullname: str, path: str, teller: Teller) -> None:
        super().__init__(fullname, path)
        self._teller = teller

    def exec_module(self, module: ModuleType) -> None:
        self._teller.say(Entered(module.__name__))
        try:
            super().exec_module(module)
        finally:
            self._teller.say(Entered(""))


def import_modules(
    order: Discover, modules: list[Module], blocked: dict[str, Culprit], channel: int, sealed: int, parent: int
) -> NoReturn:
    part = order.secrets.get(modules[0].name)
    secrets = {} if part is None else take(sealed, part)
    mask = Mask(secrets.values())
    hide_by(mask.text)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        walls.keep_descriptors(channel, None)
        teller = Teller(walls.CHANNEL)
        opened = walls.Openings(memory_bytes=MEMORY_BYTES)
        walls.raise_walls(walls.Order(order.level, order.root, order.tmp, secrets, opened), parent)
        refusals = Refusals(order.level, opened, order.root, os.environ["TMPDIR"])
        refusals.watch()
        folder = WatchedFolder(order.root, order.package, blocked, teller)
        folder.install()
        for module in modules:
            teller.say(Importing(module.name))
            refusals.begin()
            teller.say(_cleared(_described(module, folder, refusals, mask, order), mask))
    except BaseException as error:
        raw(2, f"echod discovery: {type_of(error, mask)}: {message_of(error, mask)}\n")
    finally:
        os._exit(0)


def _described(module: Module, folder: Folder, refusals: Refusals, mask: Mask, order: Discover) -> Described:
    if "." in os.path.basename(module.file).removesuffix(".py"):
        text = "expected a module's file name without a dot; rename it"
        return Described(module.name, errors=(LoadError(module.name, module.file, text, kind="refused"),))
    path = os.path.join(folder.path, module.file)
    secrets, place = said = declared(_source_of(path))
    try:
        loaded = folder.load(module.name)
        return describe(loaded, module, Given(folder, secrets, order.defaults, order.env))
    except BaseException as error:
        if place is None and missing_variable(error) is not None:
            return Described(module.name)  # a helper: who imports it has its variables, or is told
        failure = load_error(module, path, folder, said, mask, error)
        refusal = None if failure.kind != "error" or isinstance(error, Blocked) else refusals.behind(error)
        if refusal is not None:
            failure = msgspec.structs.replace(failure, message=safe(_at_import(refusal, failure), MAX_MESSAGE))
        return Described(module.name, errors=(failure,))


def _cleared(described: Described, mask: Mask) -> Described:
    """The answer without a secret's value: masked in what went wrong, refused where a function would carry it along, or
    where an annotation that is off would show it."""
    errors = [msgspec.structs.replace(error, message=mask.text(error.message)) for error in described.errors]
    text = "expected no secret in an option, a default or payload=, got the value of one; read it when a job runs"
    functions = tuple(each for each in described.functions if not mask.is_in(_encode(each)))
    off = [each for each in described.off if not mask.is_in(_encode(each))]
    carriers = [(each.file, each.line) for each in described.functions if each not in functions]
    carriers += [(each.file, each.line) for each in described.off if each not in off]
    errors += [LoadError(described.module, file, text, line, kind="refused") for file, line in carriers]
    off = [msgspec.structs.replace(each, function=mask.text(each.function), why=mask.text(each.why)) for each in off]
    return msgspec.structs.replace(described, functions=functions, errors=tuple(errors), off=tuple(off))


def _source_of(path: str) -> bytes:
    try:
        with open(path, "rb") as source:
            return source.read()
    except OSError:
        return b""  # the import will say what is wrong


def _at_import(refusal: Refusal, failure: LoadError) -> str:
    if not refusal.is_option:
        return f"blocked by echod: {refusal.said}. {refusal.remedy}. It ended as {failure.message}"
    advice = "a module is imported with everything closed, whatever its functions open; do this "
    if refusal.wall == "network":
        advice += "in a @lifespan, which runs in each worker before its first job, or "
    advice += "when a job runs"
    return f"blocked by echod: {refusal.said}: {advice}. It ended as {failure.message}"


def load_error(
    module: Module, path: str, folder: Folder, said: Declared, mask: Mask, error: BaseException
) -> LoadError:
    """What an import raised, with the line of the module's own code that it went through last."""

    def told(text: str, line: int | None = None, column: int | None = None, kind: str = "error") -> LoadError:
        return LoadError(module.name, module.file, safe(mask.text(text), MAX_MESSAGE), line, column, kind)

    if isinstance(error, Blocked) and error.name == f"{folder.package}.{module.name}":
        return told(f"the module {error.culprit.told}", kind=error.culprit.kind)
    if isinstance(error, SystemExit):
        return told(f"the module ended the process at import (sys.exit({message_of(error, mask)}))", kind="exit")
    name = "ImportError" if isinstance(error, Blocked) else type_of(error, mask)
    place = said.place or Place("queue", 1)
    asker = Asker(said.secrets, place.kind, module.file, place.line)
    text = f"{name}: {explained(error, asker, mask)}"
    if "null bytes" in text and line_in(error, path) is None and (line := _line_of_null(path)):
        return told(text, line, 1, "syntax")  # Python says neither file nor line
    if isinstance(error, SyntaxError) and type(error.filename) is str and type(error.lineno) is int:
        text = f"{name}: {error.msg}"
        if error.filename == path:
            return told(text, error.lineno, error.offset or 1, "syntax")
        text += f" ({folder.relative(error.filename) or os.path.basename(error.filename)}, line {error.lineno})"
    return told(text, line_in(error, path))


def _line_of_null(path: str) -> int | None:
    with open(path, "rb") as source:
        before, null, _ = source.read().partition(b"\0")
    return before.count(b"\n") + 1 if null else None
