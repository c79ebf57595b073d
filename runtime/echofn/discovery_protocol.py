"""Discovery's protocol and what the control plane does around it without importing anything of the folder.

One process (`python -I -B -m echofn.discovery FD SECRETS`, FD one end of a stream socket pair, SECRETS a file of
`echofn.sealed` that only its children read) gets any number of `Parse` frames, and answers a `Said` for each source as
far as it got, then `Finished`; then one `Discover` frame, and answers `Importing` and `Described` for each module, then
`Finished`. Frames are length-prefixed msgpack as in `echofn.frames`. It confines the imports, applies the time limit
and starts again after a module that hung, exited or crashed; when it dies itself, what is not `Described` is unknown.
Its end (SIGTERM, or FD closed) takes everything below it along; a SIGKILL does not, so close FD first.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

import msgspec

from echofn.frames import HEADER
from echofn.manifest import Function, LoadError, Manifest, Off, Policy
from echofn.sealed import Part

_ANNOTATIONS = ("queue", "cron", "every", "webhook")
MAX_ANSWER_BYTES = 16 * 1024 * 1024


class Module(msgspec.Struct, frozen=True, array_like=True):
    name: str  # "shop", "sub.shop"
    file: str  # "shop.py", "sub/shop.py"


class Parse(msgspec.Struct, frozen=True, tag="parse", array_like=True):
    """Say of each of these files what its syntax says. Where one takes too long or too much, the answers end."""

    sources: tuple[bytes, ...]
    time_limit_ms: int = 10_000  # for each


class Import(msgspec.Struct, frozen=True, array_like=True):
    """One `import` or `from … import`, as it is written."""

    level: int | None  # None: `import module`
    module: str
    names: tuple[str, ...] = ()


class Said(msgspec.Struct, frozen=True, tag="said", array_like=True):
    """What the syntax of one file says."""

    imports: tuple[Import, ...] = ()
    secrets: frozenset[str] = frozenset()  # that its annotations name


class Discover(msgspec.Struct, frozen=True, tag="discover", array_like=True):
    """Import and describe these modules. One with secrets is imported in a process of its own, and alone gets them."""

    root: str  # folder that holds the package: <root>/<package>/shop.py
    package: str
    modules: tuple[Module, ...]
    tmp: str  # a private writable folder: cwd and HOME
    secrets: dict[str, Part] = {}  # module name -> where its variables are in SECRETS
    time_limit_ms: int = 10_000  # for each module
    level: str = "minimal"
    env: str = "dev"
    defaults: Policy = Policy()  # what annotations leave open


class Importing(msgspec.Struct, frozen=True, tag="importing", array_like=True):
    module: str


class Described(msgspec.Struct, frozen=True, tag="described", array_like=True):
    """The one answer for a module. Without functions, errors and annotations that are off it is a helper."""

    module: str
    functions: tuple[Function, ...] = ()
    errors: tuple[LoadError, ...] = ()
    off: tuple[Off, ...] = ()


class Finished(msgspec.Struct, frozen=True, tag="finished", array_like=True):
    """Nothing more comes."""


ToDiscovery = Parse | Discover
FromDiscovery = Said | Importing | Described | Finished

_encode = msgspec.msgpack.Encoder().encode
decode_order = msgspec.msgpack.Decoder[ToDiscovery](ToDiscovery).decode
decode_answer = msgspec.msgpack.Decoder[FromDiscovery](FromDiscovery).decode


def framed(message: ToDiscovery | FromDiscovery) -> bytes:
    """Header and body of one frame."""
    body = _encode(message)
    return HEADER.pack(len(body)) + body


def package_name(folder: str) -> str:
    """The name of the package that a folder is served as: its own, made importable and not to hide another's."""
    name = "".join(char if char.isalnum() or char == "_" else "_" for char in folder) or "functions"
    taken = name in sys.stdlib_module_names or name in ("echofn", "echod", "msgspec")
    return f"{name}_" if taken or name.startswith("__") else name


class Place(NamedTuple):
    """The annotation of a module where a variable can be named."""

    kind: str  # queue | webhook | cron | every
    line: int


class Declared(NamedTuple):
    """What a module's syntax tree says before anything of it runs."""

    secrets: frozenset[str] = frozenset()  # the literal names in `secrets=[…]` and `secret="…"`
    place: Place | None = None  # its first annotation that takes secrets=, else its first; None: a helper


def declared(source: str | bytes | ast.Module) -> Declared:
    """What the annotations in a module's source, or in its syntax tree, declare."""
    try:
        tree = source if isinstance(source, ast.Module) else ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Declared()  # the import will say what is wrong
    kinds: dict[str, str] = {}  # by the name that an annotation has here
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "echofn":
            for alias in node.names:
                kinds |= {name: name for name in _ANNOTATIONS} if alias.name == "*" else {}
                kinds[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.Import):
            modules.update(alias.asname or alias.name for alias in node.names if alias.name == "echofn")
    names: set[str] = set()
    places: list[Place] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _kind(node.func, kinds, modules):
            for keyword in node.keywords:
                if keyword.arg in ("secrets", "secret"):
                    names.update(_literals(keyword.value))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in node.decorator_list:
                kind = _kind(mark.func if isinstance(mark, ast.Call) else mark, kinds, modules)
                places += [Place(kind, mark.lineno)] if kind else []
    first = min(places, key=lambda place: (place.kind not in ("queue", "webhook"), place.line), default=None)
    return Declared(frozenset(names), first)


def _kind(called: ast.expr, kinds: Mapping[str, str], modules: Set[str]) -> str | None:
    """Which annotation an expression is, if any."""
    kind: str | None = None
    if isinstance(called, ast.Name):
        kind = kinds.get(called.id)
    elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in modules:
        kind = called.attr
    return kind if kind in _ANNOTATIONS else None


def _literals(value: ast.expr) -> list[str]:
    nodes = value.elts if isinstance(value, (ast.List, ast.Tuple)) else [value]
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def assembled(package: str, answers: Iterable[Described]) -> Manifest:
    """One manifest from all answers, by module; what only shows across modules is the control plane's to judge."""
    ordered = sorted(answers, key=lambda answer: answer.module)
    return Manifest(
        package,
        tuple(function for answer in ordered for function in answer.functions),
        tuple(error for answer in ordered for error in answer.errors),
        tuple(off for answer in ordered for off in answer.off),
    )
