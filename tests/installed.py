"""echod as users have it: a wheel built from this tree in an environment of its own, `python tests/installed.py PLACE`.

Built once for each state of the tree, under build/installed, and copied: whoever gets a copy may install into it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "build"
SOURCES = ("platform", "runtime", "pyproject.toml", "constraints.txt", "README.md", "LICENSE")


def echod_in(place: Path) -> Path:
    """A fresh environment at `place` with the wheel of this tree and nothing else; its folder of programs."""
    return _copied(built("installed", ["-c", str(ROOT / "constraints.txt"), str(ROOT)], _digest()), place)


def built(name: str, wanted: Sequence[str], digest: str) -> Path:
    """The environment `name` with what pip is to install there, made if it is not there as `digest` says."""
    BUILT.mkdir(exist_ok=True)
    place, stamp = BUILT / name, BUILT / name / "digest"
    with (BUILT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes want it, too
        if not stamp.exists() or stamp.read_text() != digest:
            shutil.rmtree(place, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", place], check=True)
            pip = [place / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            subprocess.run([*pip, *wanted], check=True)
            stamp.write_text(digest)
    return place


def _digest() -> str:
    """Of all that the wheel is made of."""
    digest = hashlib.sha256(sys.version.encode())
    for file in _files():
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _files() -> Iterator[Path]:
    for source in map(ROOT.joinpath, SOURCES):
        yield from sorted(file for file in ([source] if source.is_file() else source.rglob("*")) if _counts(file))


def _counts(file: Path) -> bool:
    return file.is_file() and "__pycache__" not in file.parts


def _copied(built: Path, place: Path) -> Path:
    """A copy that shares its files' data and knows its own place; its folder of programs."""
    shutil.copytree(built, place, symlinks=True, copy_function=_linked)
    for file in [place / "pyvenv.cfg", *(place / "bin").iterdir()]:
        raw = b"" if file.is_symlink() else file.read_bytes()
        if os.fsencode(built) in raw:
            file.unlink()  # the original is not to change
            file.write_bytes(raw.replace(os.fsencode(built), os.fsencode(place)))
            file.chmod(0o755)
    return place / "bin"


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # on another file system
        shutil.copy2(source, target)


if __name__ == "__main__":
    echod_in(Path(sys.argv[1]).absolute())
