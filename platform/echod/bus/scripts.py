"""The verbs' scripts: each file's header is its signature, and arguments are bound by name.

A header names KEYS, ARGV, RETURNS, ERRORS, FLAGS and INCLUDE, one a line; other comment lines are prose. A script gets
two keys, the queue's base and the global one, as `q` and `g`; each name in ARGV becomes a local of that name. What a
header says and what the body uses is compared by a test.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from importlib import resources

import msgspec

from echod.bus.wire import Argument

_FIELD = re.compile(r"-- (KEYS|ARGV|RETURNS|ERRORS|FLAGS|INCLUDE)\s+(.*)\Z")
_DRIVEN_PLACE = "--<driven>"
DRIVEN_ONLY = frozenset({"clock"})  # verbs that only a driven clock has


class Header(msgspec.Struct, frozen=True):
    """What a verb's file says about itself."""

    purpose: str
    keys: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    returns: str = ""
    errors: tuple[str, ...] = ()
    flags: str = ""
    include: tuple[str, ...] = ()
    prose: tuple[str, ...] = ()


class Script(msgspec.Struct, frozen=True):
    """A script as it is loaded, under one head."""

    name: str
    argv: tuple[str, ...]
    source: bytes
    sha: bytes

    def bound(self, arguments: Mapping[str, Argument]) -> list[Argument]:
        """Arguments by name, as the header orders them."""
        return [arguments[name] for name in self.argv]


def parse(text: str) -> tuple[Header, str]:
    """A file's header and body. Raises ValueError where the first line is no sentence."""
    lines = text.split("\n")
    if not re.match(r"-- [A-Z].*\.\Z", lines[0]):
        raise ValueError(f"expected a first line that is one sentence, got {lines[0]!r}")
    fields: dict[str, str] = {}
    errors: list[str] = []
    prose: list[str] = []
    end = 1
    while end < len(lines) and lines[end].startswith("--"):
        if found := _FIELD.match(lines[end]):
            if found[1] == "ERRORS":
                errors.append(found[2])
            else:
                fields[found[1]] = found[2]
        else:
            prose.append(lines[end][2:].strip())
        end += 1
    return Header(
        purpose=lines[0][3:],
        keys=tuple(fields.get("KEYS", "").split()),
        argv=tuple(fields.get("ARGV", "").split()),
        returns=fields.get("RETURNS", ""),
        errors=tuple(errors),
        flags=fields.get("FLAGS", ""),
        include=tuple(fields.get("INCLUDE", "").split()),
        prose=tuple(prose),
    ), "\n".join(lines[end:])


def read(name: str) -> str:
    """The text of `lua/<name>.lua`."""
    return resources.files("echod.bus").joinpath("lua", f"{name}.lua").read_text()


def names() -> list[str]:
    """Every verb."""
    folder = resources.files("echod.bus").joinpath("lua")
    return sorted(entry.name[:-4] for entry in folder.iterdir() if entry.name.endswith(".lua"))


def includes_of(header: Header) -> tuple[str, ...]:
    """What a verb includes, and what that includes, each once and after what it stands on."""
    found: dict[str, None] = {}
    for name in header.include:
        found |= dict.fromkeys((*includes_of(parse(read(f"include/{name}"))[0]), name))
    return tuple(found)


def compose(name: str, *, freeing: bool = False, driven: bool = False) -> Script:
    """A verb with its includes, ready to load. `freeing`: under the head that runs when memory is out.

    `driven`: with a driven clock (`dev --clock`, tests); production never asks for it.
    """
    header, body = parse(read(name))
    flag = header.flags.split(" ")[0]
    two_heads = has_second_head(header)
    head = "#!lua" if not flag or (two_heads and not freeing) else f"#!lua flags={flag}"
    parts = [head, parse(read("include/keys"))[1], "local q, g = space(KEYS[1]), space(KEYS[2])"]
    if header.argv:
        parts.append(f"local {', '.join(header.argv)} = unpack(ARGV)")
    if two_heads:
        parts.append(f"local memory_is_out = {'true' if freeing else 'false'}")
    parts += [_included(include, driven=driven) for include in includes_of(header)]
    raw = "\n".join([*parts, body]).encode()
    return Script(name, header.argv, raw, hashlib.sha1(raw).hexdigest().encode())


def has_second_head(header: Header) -> bool:
    """Whether the verb is loaded twice: a script is not told that memory is out, so the head it runs under says it."""
    return "second head" in header.flags


def _included(name: str, *, driven: bool) -> str:
    """An include's body; the one place where the clock is read is where it may be driven."""
    body = parse(read(f"include/{name}"))[1]
    if driven and name == "time":
        return parse(read("include/driven"))[1] + body.replace(_DRIVEN_PLACE, "ms = driven_clock(ms)")
    return body


@functools.cache
def library(*, driven: bool = False) -> dict[str, Script]:
    """All scripts by verb; `settle!` is settle under its freeing head."""
    found = {name: compose(name, driven=driven) for name in names() if driven or name not in DRIVEN_ONLY}
    two = [name for name in found if has_second_head(parse(read(name))[0])]
    return found | {f"{name}!": compose(name, freeing=True, driven=driven) for name in two}
