"""`echod.toml` in the served folder: options that its `[defaults]` sets for every function that does not say otherwise.

It is part of the version like any file. What is wrong in it is refused with its line, an option at a time: the others
hold, and no function is left out for it.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from echod.errors import Refused
from echod.policy.paths import steps
from echofn.manifest import LoadError, Policy
from echofn.options import read_default

FILE = "echod.toml"
TABLE = "defaults"
MAX_BYTES = 64 * 1000
_MOST_ERRORS = 20
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


class Defaults(NamedTuple):
    """What functions have where their annotations say nothing, and what was refused."""

    policy: Policy = Policy()
    errors: tuple[LoadError, ...] = ()


def defaults_of(contents: Mapping[str, bytes]) -> Defaults:
    """The defaults that a folder's files set."""
    if (raw := contents.get(FILE)) is None:
        return Defaults()
    if len(raw) > MAX_BYTES:
        most = f"expected at most {MAX_BYTES // 1000} kB"
        return Defaults(errors=(_error(f"{most}, got {len(raw) / 1000:,.1f} kB; keep data in another file"),))
    try:
        text = raw.decode()
        tables = tomllib.loads(text)
    except UnicodeDecodeError as error:
        return Defaults(errors=(_error(f"expected UTF-8, got something else at byte {error.start}"),))
    except tomllib.TOMLDecodeError as error:
        return Defaults(errors=(_not_toml(str(error)),))
    except RecursionError:
        return Defaults(errors=(_error("expected TOML, got values nested too deeply"),))
    errors = [
        _error(f"expected the table [{TABLE}] alone, got {name!r:.100}", _line_of(text, name))
        for name in itertools.islice((name for name in tables if name != TABLE), _MOST_ERRORS)
    ]
    table = tables.get(TABLE, {})
    if not isinstance(table, dict):
        said = f"expected a table [{TABLE}], got {table!r:.100}"
        return Defaults(errors=(*errors, _error(said, _line_of(text, TABLE))))
    policy = Policy()
    for name, value in cast("dict[str, Any]", table).items():
        if len(errors) > _MOST_ERRORS:
            break
        policy, refusals = _with(policy, name, value)
        errors += [_error(f"[{TABLE}] {refusal}", _line_of(text, name)) for refusal in refusals]
    return Defaults(policy, tuple(errors))


def _with(base: Policy, name: str, value: Any) -> tuple[Policy, list[str]]:
    policy, refusals = read_default(name, value, base)
    path = {"lane": policy.lane, "unique": policy.unique}.get(name)
    if isinstance(path, str):
        try:
            steps(path)
        except Refused as error:
            return base, [f"{name}: {error}"]
    return policy, refusals


def _not_toml(message: str) -> LoadError:
    place = _PLACE.search(message)
    line, column = (int(spot) if spot else None for spot in place.groups()) if place else (None, None)
    return _error(f"expected TOML, got: {_PLACE.sub('', message)}", line, column)


def _line_of(text: str, name: str) -> int | None:
    """The line that a key or table is on, as far as it is written plainly."""
    written = re.compile(rf"""\s*\[*\s*["']?{re.escape(name)}["']?\s*[=.\]]""")
    return next((number for number, line in enumerate(text.splitlines(), 1) if written.match(line)), None)


def _error(message: str, line: int | None = None, column: int | None = None) -> LoadError:
    return LoadError("", FILE, message, line, column, kind="refused")
