"""`.env`: settings of a developer's machine, `NAME=value` a line. What the environment has already wins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def parsed(text: str) -> dict[str, str]:
    """The settings in a `.env` file's text: `#` comments, optional `export`, values bare or in quotes, as shells have
    them without expansion. Lines that are none are passed over."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name.isidentifier():
            continue
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        else:
            value = value.partition(" #")[0].rstrip()
        found[name] = value
    return found


def loaded(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` and what `.env` files add: the served folder's, its parent's, the current directory's."""
    added: dict[str, str] = {}
    for place in (folder, folder.parent, Path.cwd()):
        try:
            text = (place / ".env").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        added = {**parsed(text), **added}
    return {**added, **environ}
