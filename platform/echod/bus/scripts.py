"""The verbs' scripts: each file's header is its signature, and arguments are bound by name.

A header names KEYS, ARGV, RETURNS, ERRORS, FLAGS and INCLUDE, one a line; other comment lines are prose. A script gets
two keys, the queue's base and the global one, as `q` and `g`; each name in ARGV becomes a local of that name. What a
header says and what the body uses is compared by a test.

A verb is loaded as a function's library, since a plain script makes each of its functions anew in every call, which
costs the server more than what they do (decision 0041). So what a file *defines* is made once, when it is loaded:
functions, and constants, whose names are upper case. What it *does* is done in each call, in the order of the text; a
variable that functions share with it begins anew there.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Container, Mapping
from importlib import resources

import msgspec

from echod.bus.wire import Argument

_FIELD = re.compile(r"-- (KEYS|ARGV|RETURNS|ERRORS|FLAGS|INCLUDE)\s+(.*)\Z")
_DRIVEN_PLACE = "--<driven>"
_DEFINITION = re.compile(
    r"^(?:local )?function [^\n]* end$|^(?:local )?function [^\n]*\n(?:.*?\n)?end$|^local [A-Z][A-Z0-9_, ]* = [^\n]*$",
    re.MULTILINE | re.DOTALL,
)
_LOCAL = re.compile(r"local ([\w, ]+) = ")
PREFIX = "echod_"  # of every library and function of ours
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
    """A verb as it is loaded, under one head: as a function's library, and as a plain script for who takes none."""

    name: str
    argv: tuple[str, ...]
    function: bytes
    library: bytes
    plain: bytes
    sha: bytes  # of `plain`

    def bound(self, arguments: Mapping[str, Argument]) -> list[Argument]:
        """Arguments by name, as the header orders them."""
        return [arguments[name] for name in self.argv]

    def call(self, as_plain: Container[bytes]) -> tuple[Argument, ...]:
        """The command up to the keys. `as_plain`: functions that the server did not take."""
        return (b"EVALSHA", self.sha, 2) if self.function in as_plain else (b"FCALL", self.function, 2)


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
    flags = flag if flag and (freeing or not two_heads) else ""
    parts = [parse(read("include/keys"))[1], "local q, g = space(KEYS[1]), space(KEYS[2])"]
    if header.argv:
        parts.append(f"local {', '.join(header.argv)} = unpack(ARGV)")
    if two_heads:
        parts.append(f"local MEMORY_IS_OUT = {'true' if freeing else 'false'}")
    parts += [_included(include, driven=driven) for include in includes_of(header)]
    defined, done = _parted("\n".join([*parts, body]))
    # In a function of its own, as in the library: one function has at most 200 locals.
    plain = f"#!lua{' flags=' + flags if flags else ''}\n{defined}return (function()\n{done}end)()\n".encode()
    digest = hashlib.sha1(plain).hexdigest()
    function = f"{PREFIX}{name}_{digest[:16]}"
    listed = f", flags = {{'{flags}'}}" if flags else ""
    registration = f"{{function_name = '{function}', callback = function(KEYS, ARGV)\n{done}end{listed}}}\n"
    library = f"#!lua name={function}\n{defined}redis.register_function{registration}"
    return Script(name, header.argv, function.encode(), library.encode(), plain, digest.encode())


def _parted(text: str) -> tuple[str, str]:
    """What a verb's text defines, and what it does; a local that both of them name is declared in the first."""
    defined = "\n".join(_DEFINITION.findall(text))
    shared = set(re.findall(r"\w+", re.sub(r"--[^\n]*", "", defined)))
    parts, done, end = list[str](), list[str](), 0

    def do(text: str) -> None:
        for line in text.splitlines():
            if (found := _LOCAL.match(line)) and (names := _names(found[1])) & shared:
                parts.append(f"local {', '.join(sorted(names & shared))}")
                if alone := names - shared:
                    done.append(f"local {', '.join(sorted(alone))}")
                line = line.removeprefix("local ")
            if line and not line.startswith("--"):
                done.append(line)

    for found in _DEFINITION.finditer(text):
        do(text[end : found.start()])
        parts.append(found[0])
        end = found.end()
    do(text[end:])
    return "\n".join([*parts, ""]), "\n".join([*done, ""])


def _names(listed: str) -> set[str]:
    return set(listed.split(", "))


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
