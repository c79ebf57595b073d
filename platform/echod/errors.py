"""One root, stable codes, messages "expected …, got …; do …". Foreign exceptions become these at the boundary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class EchodError(Exception):
    """Root of everything echod raises on purpose. `code` is stable; the text is for people."""

    code = "error"
    exit_code = 1


class Refused(EchodError):
    """Input that cannot be taken: a bad option, rule, folder, payload. Nothing was changed."""

    code = "refused"
    exit_code = 2


class BusError(EchodError):
    """The bus did not do what was asked."""

    code = "bus"


class BusAway(BusError):
    """No answer: not reachable, not yet loaded, timed out. Whether the call took effect is unknown; resend it."""

    code = "bus-away"
    exit_code = 3


class BusAbsent(BusAway):
    """Nobody listens at its address."""


class BusReadOnly(BusAway):
    """The server answers as a replica; a failover is under way or the address is wrong."""

    code = "bus-read-only"


class BusFull(BusError):
    """The server is at its maxmemory: nothing was written."""

    code = "bus-full"


class BusUnfit(BusError):
    """A server that cannot be used: wrong password, too old, another wire version. Waiting does not help."""

    code = "bus-unfit"
    exit_code = 2


class NotDurable(BusError):
    """An fsync was asked for and the server keeps no append-only file. Nothing was written."""

    code = "not-durable"


class Unconfirmed(BusError):
    """`job` is minted; whether it is on disk, the server did not say in time."""

    code = "unconfirmed"

    def __init__(self, job: str) -> None:
        super().__init__(f"{job} is minted, not confirmed: the server did not say in time that it is on disk")
        self.job = job


class LeaseGone(EchodError):
    """This node's number is no longer ours (a pause longer than its lease): no ids until it is leased again."""

    code = "lease-gone"


class NothingListens(EchodError):
    """No echod at the address."""

    code = "nothing-listens"
    exit_code = 3


class TimedOut(EchodError, TimeoutError):
    """Not ended within the time asked for."""

    code = "timed-out"
    exit_code = 4


class UnknownFunction(Refused):
    """No function of that name in the version being served. `suggestions`: names like it, best first."""

    code = "unknown-function"

    def __init__(self, text: str, suggestions: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.suggestions = tuple(suggestions)

    @classmethod
    def near(cls, name: str, names: Iterable[str]) -> UnknownFunction:
        """For a name that none of `names` is, with those like it."""
        import difflib

        found = difflib.get_close_matches(name[:200], list(names), n=3, cutoff=0.5)
        shown = name if len(name) <= 100 else f"{name[:100]}…"
        hint = f"; did you mean {found[0]}?" if found else "; GET /functions lists them"
        return cls(f"no function is called {shown!r}{hint}", found)


class UnknownVersion(Refused):
    """No version of that id is stored (any more)."""

    code = "unknown-version"

    def __init__(self, version: str) -> None:
        shown = version if len(version) <= 100 else f"{version[:100]}…"
        super().__init__(f"no version {shown!r} is stored; `echod versions` and GET /versions list them")


class NotCallable(Refused):
    """A function that its webhook alone may start."""

    code = "not-callable"


class InvalidPayload(Refused):
    """A payload that the function does not take. Each fault has a `path` ("$.items[0].sku") and a `message`."""

    code = "invalid-payload"

    def __init__(self, text: str, faults: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(text)
        self.faults = tuple(faults)


class KeyConflict(Refused):
    """The idempotency key was used with another payload; `job` is the one it made."""

    code = "key-conflict"

    def __init__(self, text: str, job: str = "") -> None:
        super().__init__(text)
        self.job = job


class OrdersRefused(Refused):
    """Some of many orders were refused, or got no answer; the others stand. `errors`: by the order's index; `jobs`:
    None for those. Whether one with BusAway or NothingListens was minted is unknown.
    """

    code = "orders-refused"

    def __init__(self, errors: Mapping[int, EchodError], jobs: Sequence[Any]) -> None:
        index, first = next(iter(sorted(errors.items())))
        unheard = sum(isinstance(error, BusAway | NothingListens) for error in errors.values())
        counts = ((len(errors) - unheard, "were refused"), (unheard, "got no answer"))
        told = " and ".join(f"{count} of {len(jobs)} orders {what}" for count, what in counts if count)
        rest = "the others stand" if len(errors) < len(jobs) else "none was minted"
        super().__init__(f"{told}, {rest}; order {index}: {first}")
        self.errors, self.jobs = dict(errors), list(jobs)


class QueueFull(EchodError):
    """The function has as many jobs waiting as its max_pending allows. Nothing was minted; try again later."""

    code = "full"


class JobFailed(EchodError):
    """A job ended without a result. `state`: dead or cancelled; `cause` as on its page; `type`, `message` and
    `traceback` are the handler's own."""

    code = "job-failed"

    def __init__(self, job: str, state: str, cause: str, type: str, message: str, traceback: str) -> None:
        super().__init__(f"{job} ended {state}: {type}: {message}" if type else f"{job} ended {state}")
        self.job, self.state, self.cause = job, state, cause
        self.type, self.message, self.traceback = type, message, traceback


class InvalidSchedule(Refused):
    """A schedule that cannot be: an impossible rule, an unknown zone, an unfit payload. Faults as in InvalidPayload."""

    code = "invalid-schedule"

    def __init__(self, faults: Sequence[Mapping[str, str]]) -> None:
        super().__init__("; ".join(f"{fault['path']}: {fault['message']}" for fault in faults))
        self.faults = tuple(faults)


class NameTaken(Refused):
    """Another has this name, and is not to be replaced."""

    code = "name-taken"
