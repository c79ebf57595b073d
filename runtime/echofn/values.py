"""Readers of option values: what an author wrote in, what the manifest holds out, ValueError for anything else.

Every text says expected and got. A value can be any object at all; the caller takes care of a `repr` that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar, cast

from echofn import codec, manifest, masking
from echofn.backoff import Backoff
from echofn.children import instant_ms
from echofn.frames import MAX_PAYLOAD_BYTES
from echofn.quoting import quoted
from echofn.units import duration_ms, rate, rate_text, size_bytes
from echofn.verdicts import Verdict

T = TypeVar("T")

MIN_MEMORY_BYTES = 32 * 1024 * 1024
MIN_TMP_BYTES = 1024 * 1024
MAX_TMP_BYTES = 1024**4
MAX_PORTS = 64
MAX_PATHS = 100
MAX_JOBS = 1_000_000
MAX_WEIGHED = 100
MIN_PERIOD_MS = 100
BACKOFFS: tuple[Literal["exponential"], Literal["linear"], Literal["fixed"]] = ("exponential", "linear", "fixed")
_BACKOFF = (
    '"exponential", "linear", "fixed", Backoff("linear", base="10s"), one wait like "10s", or a list like ["1s", "1m"]'
)
MAX_WAIT_MS = 86_400_000
MAX_JITTER_MS = 7 * 86_400_000
MISSED: tuple[Literal["skip"], Literal["last"], Literal["all"]] = ("skip", "last", "all")
ISOLATIONS: tuple[manifest.Isolation, ...] = ("worker", "job")
CAP, CAP_OF_ALL = 100, 'expected missed="all" beside it; of "last" one instant is made good, of "skip" none'
OVERLAPS: tuple[manifest.Overlap, ...] = ("allow", "skip", "queue", "replace")


def whole(least: int, most: int) -> Callable[[Any], int]:
    """A reader of whole numbers in a range."""

    def read(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"expected a whole number from {least:,} to {most:,}, got {quoted(value)}")
        return value

    return read


weight = whole(1, 100)
cap = whole(1, 10_000)
at_once = whole(1, MAX_JOBS)


def optional(read: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """A reader that lets None through."""
    return lambda value: None if value is None else read(value)


def text(what: str, most: int = 500) -> Callable[[Any], str]:
    """A reader of printable text."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or not value or not value.isprintable():
            raise ValueError(f"expected {what}, got {quoted(value)}")
        if len(value) > most:
            raise ValueError(f"expected {what} of at most {most:,} characters, got {len(value):,}")
        return value

    return read


path = text('the path of a payload value, as in "tenant" or "order.customer"')


def redact(value: Any) -> tuple[str, ...]:
    """Paths to what nobody is shown, each once."""
    return _paths(value, "card.number", path)


def request_paths(value: Any) -> tuple[str, ...]:
    """The same into a webhook's request."""
    return _paths(value, "json.card.number", request_path)


def _paths(value: Any, example: str, read: Callable[[Any], str]) -> tuple[str, ...]:
    items = _items(value)
    if items is None or len(items) > MAX_PATHS:
        raise ValueError(f'expected a list of up to {MAX_PATHS} paths, as in ["{example}"], got {quoted(value)}')
    found = tuple(dict.fromkeys(read(item) for item in items))
    for each in found:
        masking.steps(each)
    return found


def request_path(value: Any) -> str:
    """A path into the request: `json.repository.full_name`, `headers.x-github-event`, `query.shop`, `params.tenant`."""
    written = path(value)
    root, _, rest = written.partition(".")
    if root not in masking.ROOTS or not rest:
        raise ValueError(
            f'expected a path into the request, as in "json.repository.full_name" or "headers.x-github-event" '
            f"({', '.join(f'{name}.' for name in masking.ROOTS)}), got {quoted(written)}"
        )
    return f"headers.{rest.lower()}" if root == "headers" else written


def function_name(value: Any) -> str:
    """A function's name: parts of letters, digits, _ @ - joined by dots."""
    name = text("a name", 200)(value)
    if not all(_is_part(part) for part in name.split(".")):
        raise ValueError(f"expected a name like billing.send (letters, digits, _ @ - and dots), got {quoted(name)}")
    return name


def _is_part(part: str) -> bool:
    return part.isidentifier() or (part.isascii() and part.translate({ord(char): "a" for char in "-@_"}).isalnum())


def recurrence_name(value: Any) -> str:
    """A recurrence's own name, which follows its function's after a slash."""
    name = text("a name", 200)(value)
    if "/" in name or name != name.strip():
        raise ValueError(f"expected a name without / and outer spaces, got {quoted(name)}")
    return name


def rule(value: Any) -> str:
    """A cron rule as written; tabs and line ends are not spaces here, so that the parser can refuse them."""
    if not isinstance(value, str) or len(value) > 1_000:
        raise ValueError(f'expected a rule like "0 6 * * mon", got {quoted(value)}')
    return " ".join(part for part in value.split(" ") if part)


def some_time(value: Any) -> int:
    """Milliseconds of a duration above zero."""
    if not (ms := duration_ms(value)):
        raise ValueError(f"expected a duration above zero, got {quoted(value)}")
    return ms


def wait(value: Any) -> int:
    """Milliseconds that a job may be kept waiting for others."""
    if (ms := duration_ms(value)) > MAX_WAIT_MS:
        raise ValueError(f"expected at most 1d, got {quoted(value)}")
    return ms


def rate_of(value: Any) -> str:
    """How many may start in a window, in its shortest spelling."""
    count, period_ms = rate(value)
    if count > MAX_JOBS:
        raise ValueError(f"expected a rate of at most {MAX_JOBS:,} a window, got {quoted(value)}")
    return rate_text(count, period_ms)


def lane_weight(value: Any) -> int | dict[str, int]:
    """The weight of every lane, or weights by lane; others have 1 then."""
    if not isinstance(value, Mapping):
        return weight(value)
    if len(value) > MAX_WEIGHED or not all(isinstance(name, str) for name in value):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        raise ValueError(
            f'expected up to {MAX_WEIGHED} weights by lane, as in {{"acme": 5}}, got {quoted(cast("object", value))}; '
            "`echod set NAME --lane LANE --weight N` sets any number of them"
        )
    return {name: weight(each) for name, each in value.items()}  # pyright: ignore[reportUnknownVariableType]


def period(value: Any) -> int:
    """Milliseconds of an `@every`."""
    if (ms := duration_ms(value)) < MIN_PERIOD_MS:
        raise ValueError(f"expected a period of at least {MIN_PERIOD_MS} ms, got {quoted(value)}")
    return ms


def anchor(value: Any) -> int:
    """Milliseconds of an instant, or of a duration since the epoch."""
    if isinstance(value, datetime) or (isinstance(value, str) and "-" in value):
        return instant_ms(value)
    return duration_ms(value)


def memory(value: Any) -> int:
    """Bytes that a worker can start in, at least."""
    if (size := size_bytes(value)) < MIN_MEMORY_BYTES:
        raise ValueError(f"expected at least 32MB, got {quoted(value)}")
    return size


def scratch(value: Any) -> int:
    """Bytes of /tmp."""
    if not MIN_TMP_BYTES <= (size := size_bytes(value)) <= MAX_TMP_BYTES:
        raise ValueError(f"expected from 1MB to 1TB, got {quoted(value)}")
    return size


def network(value: Any) -> bool | tuple[int, ...]:
    """False, True, or TCP ports."""
    if isinstance(value, bool):
        return value
    items = _items(value)
    if items is not None and len(items) <= MAX_PORTS and all(type(each) is int and 0 < each < 65536 for each in items):
        return tuple(sorted({*items})) or False
    raise ValueError(f"expected True, or a list of up to {MAX_PORTS} TCP ports, as in [443], got {quoted(value)}")


def workers(value: Any) -> tuple[int, int | None]:
    """The least and the most workers a node keeps."""
    items = _items(value)
    if items is not None and len(items) == 2:
        least, most = items
        if type(least) is int and type(most) is int and 0 <= least <= most <= 1024 and most:
            return least, most
    raise ValueError(f"expected (least, most), as in (0, 4), got {quoted(value)}")


def unique(value: Any) -> str | bool | None:
    """None, True (the whole payload), or a path."""
    if value is None or value is False:
        return None
    return True if value is True else path(value)


def until(value: Any) -> Literal["done", "started"] | int:
    """How long a unique key holds."""
    if value == "done":
        return "done"
    if value == "started":
        return "started"
    with _told_whole('"done", "started" or a time above zero from the mint on, as in "1h"', ("done", "started"), value):
        return some_time(value)


def missed(value: Any) -> Literal["skip", "last", "all"]:
    """What becomes of instants at which no pump ran."""
    for known in MISSED:
        if value == known:
            return known
    raise ValueError(f'expected "skip", "last" or "all", got {quoted(value)}')


def overlap(value: Any) -> manifest.Overlap:
    """What becomes of an instant at which an earlier job of the recurrence has not ended."""
    for known in OVERLAPS:
        if value == known:
            return known
    raise ValueError(f'expected "allow", "skip", "queue" or "replace", got {quoted(value)}')


def isolation(value: Any) -> manifest.Isolation:
    """What has a process of its own."""
    for known in ISOLATIONS:
        if value == known:
            return known
    raise ValueError(f'expected "worker" or "job", got {quoted(value)}')


def jitter(value: Any) -> int:
    """Milliseconds by which a recurrence's jobs may be later than their instants."""
    if (ms := duration_ms(value)) > MAX_JITTER_MS:
        raise ValueError(f"expected at most 7d, got {quoted(value)}")
    return ms


def variable_names(value: Any) -> tuple[str, ...]:
    """Names of environment variables, each once."""
    items = _items(value)
    if items is None or not all(isinstance(name, str) and name.isidentifier() and name.isascii() for name in items):
        raise ValueError(f'expected names of variables, as in ["STRIPE_KEY"], got {quoted(value)}')
    return tuple(dict.fromkeys(items))


def some_variable_names(value: Any) -> tuple[str, ...]:
    """One name of an environment variable, or several."""
    names = variable_names([value] if isinstance(value, str) else value)
    if not names:
        raise ValueError(f"expected the name of a variable, got {quoted(value)}")
    return names


def switch(value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"expected True or False, got {quoted(value)}")
    return value


def environments(value: Any) -> tuple[str, ...]:
    """One name of an environment, or several."""
    items = [value] if isinstance(value, str) else _items(value)
    if not items or not all(isinstance(name, str) and name.isprintable() and name for name in items):
        raise ValueError(
            f'expected "dev", "prod" or another name that --env has, or a list of them, got {quoted(value)}'
        )
    return tuple(dict.fromkeys(items))


def exceptions(value: Any) -> tuple[type[BaseException], ...]:
    """Classes of exceptions, each once."""
    items = [value] if isinstance(value, type) else _items(value)
    if items is None or not all(isinstance(each, type) and issubclass(each, BaseException) for each in items):
        raise ValueError(f"expected classes of exceptions, as in (ValueError, KeyError), got {quoted(value)}")
    if verdicts := [each.__name__ for each in items if issubclass(each, Verdict)]:
        raise ValueError(f"expected exceptions that are no verdict already, got {', '.join(verdicts)}")
    return tuple(dict.fromkeys(items))


def payload(value: Any) -> bytes:
    """msgpack of what a recurrence's jobs carry."""
    return codec.encode(value, MAX_PAYLOAD_BYTES, "payload")


def backoff(value: Any) -> manifest.Backoff:
    """A kind; a `Backoff`, or a table of what it takes, as TOML has it; one wait; or a list of waits."""
    if isinstance(value, str) and value in BACKOFFS:
        return _backoff(Backoff(value))
    if isinstance(value, Mapping):
        fields: dict[str, Any] = {**value}
        if fields.keys() <= {"kind", "base", "cap"}:
            return _backoff(Backoff(**fields))
    elif isinstance(value, Backoff):
        return _backoff(value)
    elif isinstance(value, (str, int, float, timedelta)):
        with _told_whole(_BACKOFF, BACKOFFS, value):
            return manifest.Constant(duration_ms(value))
    elif (items := _items(value)) and len(items) <= 100:
        return manifest.Waits(tuple(duration_ms(item) for item in items))
    raise ValueError(f"expected {_BACKOFF}, got {quoted(cast('object', value))}")


def _backoff(written: Backoff) -> manifest.Backoff:
    if written.kind not in BACKOFFS:
        raise ValueError(f"expected a kind of {', '.join(BACKOFFS)}, got {quoted(written.kind)}")
    base_ms = some_time(written.base)
    if written.kind == "fixed":
        if written.cap is not None:
            raise ValueError(f"expected no cap for a fixed wait, got {quoted(written.cap, 50)}; remove it")
        return manifest.Constant(base_ms)
    cap_ms = some_time("10m" if written.cap is None else written.cap)
    if base_ms > cap_ms:
        raise ValueError(
            f"expected a base of at most the cap, got {quoted(written.base, 50)} and {quoted(written.cap or '10m', 50)}"
        )
    if written.kind == "linear":
        return manifest.Linear(base_ms, cap_ms)
    return manifest.Exponential(base_ms, cap_ms)


@contextmanager
def _told_whole(expected: str, words: Sequence[str], value: Any) -> Generator[None]:
    """Where a duration may stand and words may, what is neither is told of both, and of the word that is like it."""
    try:
        yield
    except ValueError:
        near = [word for word in words if isinstance(value, str) and value and word.startswith(value.lower())]
        hint = f'; did you mean "{near[0]}"?' if near else ""
        raise ValueError(f"expected {expected}, got {quoted(value)}{hint}") from None


def _items(value: Any) -> list[Any] | None:
    if not isinstance(value, (list, tuple)):
        return None
    items: list[Any] = [*value]
    return items
