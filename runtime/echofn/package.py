"""The served folder as a package of its own name, with or without an `__init__.py`, and without touching sys.path.

`from .lib import db`, `from functions.lib import db` and sub-folders work because one finder at the front of
sys.meta_path answers for the package's name and below; the folder's parent is never searched, so nothing beside it
can be imported. Which part of a module's name is that package, where somebody else imported it, is said here, too.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Any

from echofn.annotations import marks_of

FOLDER = "functions"


class Folder:
    """A meta-path finder for one folder."""

    def __init__(self, root: str, package: str) -> None:
        self.package = package
        self.path = os.path.join(root, package)

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == self.package:
            init = os.path.join(self.path, "__init__.py")
            if os.path.exists(init):
                return spec_from_file_location(fullname, init, submodule_search_locations=[self.path])
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [self.path]
            return spec
        if fullname.startswith(self.package + "."):
            return PathFinder.find_spec(fullname, path, target)
        return None

    def load(self, module: str) -> ModuleType:
        """Import `module` ("shop", "sub.shop") of the folder."""
        return importlib.import_module(f"{self.package}.{module}")

    def relative(self, file: str) -> str | None:
        """A file's path in the folder, or None for a file elsewhere."""
        prefix = self.path + os.sep
        return file[len(prefix) :] if file.startswith(prefix) else None


def package_of(module: str) -> str:
    """The served folder's package in a module's full name: up to `functions` where that is a part, else the first part.

    "functions.shop" → "functions", "acme.functions.eu.shop" → "acme.functions", "jobs.shop" → "jobs", "shop" → "".
    """
    above = module.split(".")[:-1]
    if FOLDER in above:
        return ".".join(above[: above.index(FOLDER) + 1])
    return above[0] if above else ""


def package_around(function: Callable[..., Any] | str) -> str:
    """The package of an annotated function's module; "" for a name, or without an annotation."""
    marks = () if isinstance(function, str) else marks_of(function)
    return package_of(str(marks[0].scope.get("__name__", ""))) if marks else ""
