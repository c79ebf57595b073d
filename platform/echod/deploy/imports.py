"""Which files of the folder a module's code depends on, read from syntax trees. Pure; nothing is imported.

Used to tell whether something that hung could behave otherwise now. What is imported by name at run time
(`importlib.import_module`) is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from echod.deploy.snapshot import file_of


def closure(path: str, contents: Mapping[str, bytes], package: str) -> frozenset[str]:
    """`path` and every file of the folder that it imports, and that those import."""
    found: set[str] = set()
    waiting = [path]
    while waiting:
        current = waiting.pop()
        if current in contents and current not in found:
            found.add(current)
            waiting += _imported(current, contents[current], package)
    return frozenset(found)


def _imported(path: str, source: bytes, package: str) -> Iterator[str]:
    """Paths that the file may import, whether they exist or not."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(_below(alias.name, package))
        elif isinstance(node, ast.ImportFrom):
            base = _base(path, node, package)
            if base is not None:
                yield from _files(base)
                for alias in node.names:
                    yield from _files(".".join(filter(None, (base, alias.name))))


def _base(path: str, node: ast.ImportFrom, package: str) -> str | None:
    """The module that `from … import` starts at, from the folder; None outside it."""
    if not node.level:
        return _below(node.module or "", package)
    folders = path.split("/")[:-1]
    up = node.level - 1
    if up > len(folders):
        return None
    return ".".join([*folders[: len(folders) - up], *filter(None, [node.module])])


def _below(name: str, package: str) -> str | None:
    if name == package:
        return ""
    return name.removeprefix(f"{package}.") if name.startswith(f"{package}.") else None


def _files(module: str | None) -> Iterator[str]:
    if module:
        yield file_of(module)
        yield file_of(f"{module}.__init__")
