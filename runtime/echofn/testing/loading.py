"""From modules that a test imported to what is served: described and judged by what describes and judges a folder."""

from __future__ import annotations

import difflib
import functools
import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from echod.deploy.checks import checked
from echod.deploy.defaults import FILE, Defaults, defaults_of
from echod.deploy.snapshot import module_of
from echod.errors import Refused
from echofn.annotations import recorded
from echofn.describe import Given, describe
from echofn.discovery_protocol import Module, declared
from echofn.manifest import Function, LoadError, Manifest
from echofn.package import Folder, package_of

_declared = functools.lru_cache(maxsize=256)(declared)


class Source(NamedTuple):
    """Where a loaded function's code is. `handler()` answers it as the module has it now: monkeypatching counts."""

    module: ModuleType
    attribute: str
    folder: Folder
    env: str

    def handler(self) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(self.module, self.attribute)
        return found


class Loaded(NamedTuple):
    """What modules hold."""

    functions: tuple[Function, ...]
    sources: dict[str, Source]  # by function name


def load(modules: Sequence[ModuleType], package: str | None, env: str) -> Loaded:
    """The functions of these modules; of a package, those of every module in it that echod would look into.

    `package`: the served folder's, where it is another than their names suggest. Raises Refused with all refusals.
    """
    _check_env(env, modules)
    functions: list[Function] = []
    errors: list[LoadError] = []
    sources: dict[str, Source] = {}
    for module, folder in _each(modules, package):
        name = module.__name__.removeprefix(f"{folder.package}.")
        path = Path(str(module.__file__))
        file = os.path.relpath(path, folder.path).replace(os.sep, "/")
        defaults = _defaults(folder)
        given = Given(folder, _declared(path.read_bytes()).secrets, defaults.policy, env)
        found = describe(module, Module(name, file), given)
        functions += found.functions
        errors += [*defaults.errors, *found.errors]
        sources |= {each.name: Source(module, each.attribute, folder, env) for each in found.functions}
    manifest = checked(Manifest("", tuple(functions), tuple(errors)))
    if manifest.errors:
        said = [f"{error.file}:{error.line or '?'}: {error.message}" for error in manifest.errors]
        raise Refused("\n".join(["expected functions that echod can serve", *said]))
    if not manifest.functions:
        names = ", ".join(module.__name__ for module in modules)
        raise Refused(
            f"expected annotated functions in {names or 'the modules'}, got none that is on in {env}; load the modules "
            "with them, or name another env="
        )
    return Loaded(manifest.functions, sources)


def _check_env(env: str, modules: Sequence[ModuleType]) -> None:
    """Any name will do for an environment, but one that looks like a slip: what is for the one meant would be off."""
    named: set[str] = {"dev", "prod"}
    for mark in recorded:
        only = mark.options.get("env", ()) if any(mark.scope is vars(module) for module in modules) else ()
        named.update([only] if isinstance(only, str) else map(str, only or ()))
    near = difflib.get_close_matches(env, named - {env}, 1, cutoff=0.8)
    if env not in named and near and not env.startswith(near[0]):
        raise Refused(f"env=: expected {', '.join(sorted(named))} or another, got {env!r}; did you mean {near[0]!r}?")


def _each(modules: Sequence[ModuleType], package: str | None) -> Iterator[tuple[ModuleType, Folder]]:
    """Modules, those of packages one by one, and the folder that each would be served from."""
    for module in modules:
        if not isinstance(module, ModuleType):  # pyright: ignore[reportUnnecessaryIsInstance] # tests call this
            raise TypeError(f"expected a module, as in `from functions import shop`, got {type(module).__name__}")
        roots = [str(root) for root in getattr(module, "__path__", ())]
        if not roots:
            around = package_of(module.__name__) if package is None else package
            yield module, _folder(around, _above(module, around))
        for root in roots:
            folder = _folder(module.__name__, root)
            paths = sorted(path.relative_to(root).as_posix() for path in Path(root).rglob("*.py"))
            for name in filter(None, map(module_of, paths)):
                yield importlib.import_module(f"{module.__name__}.{name}"), folder


def _above(module: ModuleType, package: str) -> str:
    """The folder on disk of the package around a module."""
    depth = module.__name__.removeprefix(f"{package}.").count(".") + 1
    path = Path(str(module.__file__))
    return str(path.parents[depth - 1])


def _folder(package: str, path: str) -> Folder:
    folder = Folder("", package)
    folder.path = path
    return folder


def _defaults(folder: Folder) -> Defaults:
    """What the folder's echod.toml sets."""
    file = Path(folder.path) / FILE
    return defaults_of({FILE: file.read_bytes()} if file.exists() else {})
