"""Versions on disk: STATE/versions/<DEP>/<package>/…, written whole or not at all, and checked before the first use.

A folder is written beside its place and renamed into it, so a reader never sees half of one. What a crash or a hand may
have damaged is found by its hash at a process's first use and written again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from echod.model.ids import VersionId
from echod.registry.archive import Archive, archived, version_of

KEPT_S = 600.0  # no folder is removed that was asked for since: its version, or a worker, may be on its way


def write(versions: Path, version: VersionId, archive: Archive) -> Path:
    """The root folder of `version`: there already and intact, or written now."""
    root = versions / version
    if holds(root, version):
        touch(root)
        return root
    versions.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=versions))
    try:
        (fresh / archive.package).mkdir()
        for file in archive.files:
            path = fresh / archive.package / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)
        for path in (fresh, *fresh.rglob("*")):  # whatever our umask: a worker may have another uid than we
            path.chmod(0o755 if path.is_dir() else 0o644)
        _place(fresh, root, version)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return root


def holds(root: Path, version: VersionId) -> bool:
    """Whether `root` holds exactly the files that `version` names."""
    try:
        packages = [entry for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)]
        if len(packages) != 1:
            return False
        top = Path(packages[0].path)
        files = {
            str(path.relative_to(top)): path.read_bytes()
            for path in top.rglob("*")
            if path.is_file() or path.is_symlink()
        }
    except OSError:
        return False
    return version_of(archived(top.name, files)) == version


def touch(root: Path) -> bool:
    """Make a folder young again, as whoever asks for it will use it; False: it is not there any more."""
    try:
        os.utime(root)
    except OSError:
        return root.is_dir()  # another user's: what its owner keeps
    return True


def prune(versions: Path, keep: set[VersionId]) -> None:
    """Remove folders of versions that are not in `keep`, unless they are young, and what a killed writer left."""
    old = time.time() - KEPT_S
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(versions)):
            if entry.name not in keep and entry.stat().st_mtime < old:
                shutil.rmtree(entry.path, ignore_errors=True)


def remove(versions: Path, version: VersionId) -> None:
    """Remove the folder of `version`, at once for whoever looks."""
    with contextlib.suppress(OSError):
        gone = Path(tempfile.mkdtemp(prefix=".gone-", dir=versions))
        with contextlib.suppress(OSError):
            (versions / version).rename(gone / version)
        shutil.rmtree(gone, ignore_errors=True)


def _place(fresh: Path, root: Path, version: VersionId) -> None:
    """Rename `fresh` to `root`. Another process may have done so first; a damaged folder makes way."""
    try:
        fresh.rename(root)
    except OSError:
        if holds(root, version):
            return
        damaged = fresh.with_name(fresh.name + "-old")
        root.rename(damaged)
        fresh.rename(root)
        shutil.rmtree(damaged, ignore_errors=True)
