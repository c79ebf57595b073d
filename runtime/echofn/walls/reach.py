"""What a worker may read: its version, the interpreter and its packages, system libraries, certificates, zones.

Nothing else: no home folder, no /proc, no other version, no state. A folder on Python's path that is a project of its
own (an editable install) is not opened whole: it may hold secrets beside its packages. Of it, the packages are opened.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

# Of what may hold a project as well (/usr/src/app, a virtual environment made in the project's own folder), the parts
# that an interpreter and its libraries are made of. Of /etc/ssl and /etc/pki, the public half.
_PARTS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec", "share", "include")
_OF_PREFIX = (*("bin", "lib", "lib64", "include", "share"), *("ssl", "pyvenv.cfg"))  # ssl: where conda has certificates
SYSTEM = (
    *(f"{folder}/{part}" for folder in ("/usr", "/usr/local") for part in _PARTS),
    *("/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt/lib", "/nix/store", "/gnu/store"),
)
SETTINGS = (
    *("/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/ca-bundle.pem", "/etc/ssl/openssl.cnf", "/etc/pki/ca-trust"),
    *(f"/etc/pki/tls/{each}" for each in ("certs", "cert.pem", "openssl.cnf", "openssl.d")),
    *("/etc/ca-certificates", "/etc/ca-certificates.conf", "/etc/crypto-policies"),
    *("/etc/localtime", "/etc/timezone", "/etc/ld.so.cache", "/etc/alternatives", "/etc/mime.types"),
    *("/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/gai.conf"),
    *("/etc/services", "/etc/protocols", "/etc/os-release"),
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_MODULES = (".py", ".pyc", ".so", ".zip", ".egg", ".pth")
_RECORDS = (".dist-info", ".egg-info", ".libs")


class Reach(NamedTuple):
    """Paths that exist."""

    whole: tuple[str, ...]  # files, and folders with all that is below
    listed: tuple[str, ...]  # folders of which only names can be seen


def readable(root: str) -> Reach:
    """What a worker of the version in `root` may read."""
    whole = [root, *(path for path in (*SYSTEM, *SETTINGS, *interpreter()) if os.path.exists(path))]
    listed: list[str] = []
    for entry in sys.path:
        if not os.path.isabs(entry) or not os.path.exists(entry) or _is_below(entry, whole):
            continue
        if not os.path.isdir(entry):
            whole.append(entry)
            continue
        listed.append(entry)
        whole += [each.path for each in os.scandir(entry) if _is_importable(each)]
    return Reach(tuple(dict.fromkeys(whole)), tuple(listed))


def interpreter() -> tuple[str, ...]:
    """The parts of the running interpreter, and of the one that its virtual environment was made with."""
    prefixes = dict.fromkeys((sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix))
    return tuple(os.path.join(prefix, part) for prefix in prefixes for part in _OF_PREFIX)


def exposed(folders: Sequence[str]) -> str:
    """Which of these folders, meant for nobody's eyes, workers may read all the same, and why; empty: none."""
    whole = [os.path.realpath(path) for path in readable("").whole if path]
    for folder in map(os.path.realpath, folders):
        above = next((path for path in whole if _is_below(folder, [path])), None)
        if above is not None:
            return f"workers read {folder} with all that is in it: they need {above}; move it elsewhere"
    return ""


def needed(root: str) -> tuple[str, ...]:
    """Samples of what a worker could not run without: where these can be read, the rest can."""
    codec = importlib.util.find_spec("msgspec")
    files = (os.__file__, __file__, sys.executable, codec.origin if codec is not None else None)
    return (root, *(path for path in files if path), *(path for path in sys.path if os.path.exists(path)))


def _is_below(path: str, folders: list[str]) -> bool:
    return any(path == folder or path.startswith(folder + os.sep) for folder in folders)


def _is_importable(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith("."):
        return False
    if entry.is_dir():
        is_package = entry.name.isidentifier() and os.path.exists(os.path.join(entry.path, "__init__.py"))
        return is_package or entry.name.endswith(_RECORDS)
    return entry.name.endswith(_MODULES)
