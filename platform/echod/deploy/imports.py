"""What the syntax of a folder's files says: the secrets that they name, and which of them a module's code depends on.

Nothing is imported. Used to tell whether something that hung could behave otherwise now, and whether a function's code
is another. What is imported by name at run time (`importlib.import_module`) is not seen.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from echod.deploy.snapshot import file_of
from echofn.discovery_protocol import declared


class _Import(NamedTuple):
    """One `import` or `from … import`, as it is written."""

    level: int | None  # None: `import module`
    module: str
    names: tuple[str, ...] = ()


class _Said(NamedTuple):
    imports: tuple[_Import, ...] = ()
    secrets: frozenset[str] = frozenset()


class Sources:
    """The files of one folder. Each is parsed once, when first asked for, and not at all where `before` knows it.

    Parsing takes its time, a megabyte about a second: ask in a thread.
    """

    def __init__(self, contents: Mapping[str, bytes], package: str, before: Sources | None = None) -> None:
        self._contents = contents
        self._package = package
        self._before = before._said if before is not None else {}
        self._said: dict[bytes, _Said] = {}  # by the file's bytes
        self._digests: dict[str, bytes] = {}
        self._codes: dict[str, bytes] = {}

    def closure(self, path: str) -> frozenset[str]:
        """`path` and every file of the folder that it imports, and that those import."""
        found: set[str] = set()
        waiting = [path]
        while waiting:
            current = waiting.pop()
            if current in self._contents and current not in found:
                found.add(current)
                waiting += self._imported(current)
        return frozenset(found)

    def code(self, path: str) -> bytes:
        """A digest of the file and of all that it imports from the folder."""
        if (known := self._codes.get(path)) is None:
            digest = hashlib.sha256()
            for each in sorted(self.closure(path)):
                digest.update(self._digest(each))
            known = self._codes[path] = digest.digest()
        return known

    def secrets(self, path: str) -> frozenset[str]:
        """The variables that the annotations in the file name."""
        return self._of(path).secrets

    def _digest(self, path: str) -> bytes:
        if (known := self._digests.get(path)) is None:
            known = hashlib.sha256(path.encode()).digest() + hashlib.sha256(self._contents[path]).digest()
            self._digests[path] = known
        return known

    def _of(self, path: str) -> _Said:
        source = self._contents.get(path, b"")
        if (known := self._said.get(source)) is None:
            known = self._said[source] = self._before.get(source) or _parsed(source)
        return known

    def _imported(self, path: str) -> Iterator[str]:
        """Paths that the file may import, whether they exist or not."""
        for each in self._of(path).imports:
            base = _below(each.module, self._package) if not each.level else _base(path, each)
            if base is not None:
                yield from _files(base)
                for name in each.names:
                    yield from _files(".".join(filter(None, (base, name))))


def _parsed(source: bytes) -> _Said:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _Said()  # the import will say what is wrong
    imports: dict[_Import, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {_Import(None, alias.name): None for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            imports[_Import(node.level, node.module or "", names)] = None
    return _Said(tuple(imports), declared(tree).secrets)


def _base(path: str, said: _Import) -> str | None:
    """The module that a relative `from … import` starts at, from the folder; None outside it."""
    folders, up = path.split("/")[:-1], (said.level or 1) - 1
    if up > len(folders):
        return None
    return ".".join([*folders[: len(folders) - up], *filter(None, [said.module])])


def _below(name: str, package: str) -> str | None:
    if name == package:
        return ""
    return name.removeprefix(f"{package}.") if name.startswith(f"{package}.") else None


def _files(module: str) -> Iterator[str]:
    if module:
        yield file_of(module)
        yield file_of(f"{module}.__init__")
