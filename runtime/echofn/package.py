"""The served folder as a package of its own name, with or without an `__init__.py`, and without touching sys.path.

`from .lib import db`, `from functions.lib import db` and sub-folders work because one finder at the front of
sys.meta_path answers for the package's name and below; the folder's parent is never searched, so nothing beside it
can be imported.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from types import ModuleType


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
