"""One root, stable codes, messages "expected …, got …; do …". Foreign exceptions become these at the boundary."""

from __future__ import annotations


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


class LeaseGone(EchodError):
    """This node's number is no longer ours (a pause longer than its lease): no ids until it is leased again."""

    code = "lease-gone"


class NothingListens(EchodError):
    """No echod at the address."""

    code = "nothing-listens"
    exit_code = 3


class TimedOut(EchodError):
    """Not ended within the time asked for."""

    code = "timed-out"
    exit_code = 4
