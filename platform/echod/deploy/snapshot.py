"""A folder as a value: its files by content, the package's name, the modules in it that may have functions.

Equal folders give equal snapshots: neither times nor the order of reading matter. A link that stays inside is followed;
one that leads out is refused, because the version would not hold what it says.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

import msgspec

from echod.deploy.ignore import ENVIRONMENTS, FILE, SECRETS, ignored, is_settings, never_taken
from echod.errors import Refused
from echod.model.ids import VersionId
from echod.registry.archive import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_FILES,
    MAX_PATH_BYTES,
    Archive,
    archived,
    is_inside,
    version_of,
)
from echofn.discovery_protocol import package_name

DEFAULT = "functions"


class Snapshot(msgspec.Struct, frozen=True):
    """One state of a folder."""

    archive: Archive
    version: VersionId
    modules: tuple[str, ...]
    withheld: tuple[str, ...] = ()  # paths that are no part of it because they look like secrets

    @property
    def contents(self) -> dict[str, bytes]:
        """The files' bytes by path."""
        return {file.path: file.data for file in self.archive.files}


def served_folder(given: Path) -> Path:
    """The folder to serve: `given`, or its `functions` when it is a project, with no Python files of its own.

    Raises Refused when there is no such folder.
    """
    folder = given.expanduser().absolute()
    if not folder.is_dir():
        if folder.exists():
            raise Refused(f"{given}: expected a folder, got a file; name the folder that it is in")
        project = given.parent if given.name == DEFAULT else given  # the template has a folder of that name
        raise Refused(f"{given}: expected an existing folder; `echod init {shlex.quote(str(project))}` makes one")
    inner = folder / DEFAULT
    if inner.is_dir() and not any(folder.glob("*.py")):
        folder = inner
    return folder.resolve()


def taken(folder: Path, *, state: Path | None = None) -> Snapshot:
    """A snapshot of `folder`. `state`: a state folder that may lie inside and is left out.

    Raises Refused naming the file that cannot be part of a version, or when the folder is gone.
    """
    stood = identity(folder)
    if not folder.is_dir():
        raise _gone(folder)
    walk = _Walk(folder, state.resolve() if state else None)
    snapshot = snapshot_of(package_of(folder), _files(folder, walk))
    if identity(folder) != stood:  # it went while it was read: what looks like missing files is a missing folder
        raise _gone(folder)
    return msgspec.structs.replace(snapshot, withheld=tuple(walk.withheld))


def identity(folder: Path) -> tuple[int, int] | None:
    """Which folder stands at a path, by device and inode; None where nothing can be read there."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _gone(folder: Path) -> Refused:
    return Refused(f"the folder {folder} is gone")


def snapshot_of(package: str, files: dict[str, bytes]) -> Snapshot:
    """The snapshot of these files."""
    archive = archived(package, files)
    modules = tuple(module for file in archive.files if (module := module_of(file.path)))
    return Snapshot(archive, version_of(archive), modules)


def package_of(folder: Path) -> str:
    """The name by which the folder's modules import each other: the folder's own, made importable."""
    return package_name(folder.name)


def module_of(path: str) -> str | None:
    """The module that the file at `path` is, or None when nothing is looked for in it: `file_of` leads back."""
    return None if "." in (stem := path.removesuffix(".py")) or not _may_be_module(path) else stem.replace("/", ".")


def is_misnamed(path: str) -> bool:
    """Whether the file would be a module, but for a dot in its name or in a folder's: no import could name it."""
    return _may_be_module(path) and "." in path.removesuffix(".py")


def _may_be_module(path: str) -> bool:
    *folders, name = path.split("/")
    if not name.endswith(".py") or name.startswith(("_", ".", "test_")) or name == "conftest.py":
        return False
    return not any(folder == "tests" or folder.startswith(("_", ".")) for folder in folders)


def is_foreign(path: str) -> bool:
    """Whether no folder that is packed by `taken` has a file at `path`: settings, dot-files, caches."""
    *folders, name = path.split("/")
    hidden = any(part.startswith(".") for part in (*folders, name))
    return hidden or never_taken(name, False) or any(never_taken(each, True) for each in folders)


def file_of(module: str) -> str:
    """The path of a module's file."""
    return module.replace(".", "/") + ".py"


def _files(folder: Path, walk: _Walk) -> dict[str, bytes]:
    walk.into(folder, folder.resolve(), "", frozenset())
    if (total := sum(walk.sizes.values())) > MAX_BYTES:
        largest = max(walk.sizes, key=lambda path: walk.sizes[path])
        raise Refused(
            f"{folder}: expected at most {MAX_BYTES // 1_000_000} MB, got {total / 1e6:.1f} MB "
            f"(largest: {largest}, {walk.sizes[largest] / 1e6:.1f} MB); name what does not belong in {FILE}"
        )
    if len(walk.files) > MAX_FILES:
        raise Refused(f"{folder}: expected at most {MAX_FILES} files, got {len(walk.files)}; name the others in {FILE}")
    contents: dict[str, bytes] = {}
    for path, file in walk.files.items():
        try:
            contents[path] = file.read_bytes()
        except FileNotFoundError:
            continue  # removed since it was listed: the next look will say the same
        except OSError as error:
            raise Refused(f"{path}: {error.strerror or error}") from None
    return contents


class _Walk:
    """Collects the files below a folder by their path in it."""

    def __init__(self, top: Path, state: Path | None) -> None:
        self.files: dict[str, Path] = {}
        self.sizes: dict[str, int] = {}
        self._top = top.resolve()
        self._state = state
        self.withheld: list[str] = []
        text = _ignore_file(top)
        self._leave_out, self._withhold = ignored(text), ignored(SECRETS + text)

    def into(self, folder: Path, real: Path, prefix: str, above: frozenset[Path]) -> None:
        """Collect below `folder`, which really is `real`; `above`: the real folders around it, as it was reached."""
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        except OSError as error:
            raise Refused(f"{prefix or folder}: {error.strerror or error}") from None
        above |= {real}
        for entry in entries:
            path, target = prefix + entry.name, real / entry.name
            is_folder = os.path.isdir(target)  # Path.is_dir raises where a link cannot be followed
            if self._stays_out(entry.name, path, is_folder):
                continue  # whatever a link of this name leads to
            if entry.is_symlink():
                target = self._followed(target, path, above)
            try:
                found = target.stat()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise Refused(f"{path}: {error.strerror or error}") from None
            _check_name(path)
            if is_folder:
                if target != self._state and not any((target / each).exists() for each in ENVIRONMENTS):
                    self.into(target, target, f"{path}/", above)
            elif stat.S_ISREG(found.st_mode):
                self.files[path], self.sizes[path] = target, found.st_size

    def _stays_out(self, name: str, path: str, is_folder: bool) -> bool:
        if self._leave_out(path, is_folder):
            return True
        if not is_folder and (is_settings(name) or self._withhold(path, False)):
            self.withheld.append(path)
            return True
        return name.startswith(".") or never_taken(name, is_folder)

    def _followed(self, link: Path, path: str, above: frozenset[Path]) -> Path:
        """Where a link leads; refused when it leads out, nowhere, or to a folder around itself."""
        expected = f"{path}: expected a link to a file of the folder"
        try:
            target = link.resolve(strict=True)
        except (OSError, RuntimeError):
            raise Refused(f"{expected}, got a broken one; remove it") from None
        if not target.is_relative_to(self._top):
            raise Refused(f"{expected}, got one to {target}; copy the file instead")
        if target in above:
            raise Refused(f"{expected}, got one to a folder around it; remove it")
        return target


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise Refused(f"{path!r}: expected a file name in UTF-8; rename it") from None
    if not is_inside(path):
        limits = f"{MAX_PATH_BYTES} bytes and {MAX_DEPTH} folders deep"
        raise Refused(f"{path[:200]!r}: expected a path of at most {limits}; name it in {FILE}, or move it")


def _ignore_file(folder: Path) -> str:
    try:
        return (folder / FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
