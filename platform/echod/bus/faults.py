"""What the server's error replies mean, in one table."""

from __future__ import annotations

import hiredis

from echod.errors import BusAway, BusError, BusFull, BusReadOnly, BusUnfit, EchodError, LeaseGone, Refused

_KINDS: dict[str, type[EchodError]] = {
    "LOADING": BusAway,
    "MASTERDOWN": BusAway,
    "CLUSTERDOWN": BusAway,
    "TRYAGAIN": BusAway,
    "NOREPLICAS": BusAway,
    "BUSY": BusAway,
    "UNBLOCKED": BusAway,
    "READONLY": BusReadOnly,
    "OOM": BusFull,
    "MISCONF": BusFull,  # it cannot persist, and so takes no writes
    "NOAUTH": BusUnfit,
    "WRONGPASS": BusUnfit,
    "NOPERM": BusUnfit,
    # our scripts' own
    "NONODE": BusUnfit,
    "LEASE": LeaseGone,
    "UNKNOWN": Refused,
    "MALFORMED": Refused,
}
_WHERE = "--bus valkey://:PASSWORD@HOST:PORT (a user's of an ACL: USER:PASSWORD@), or ECHOD_BUS"
_SAID = {
    "OOM": "OOM the bus is at its memory limit and takes no new jobs; raise its maxmemory, or drain what waits",
    "READONLY": "READONLY the bus is a replica, and takes no writes; await its failover, or give the primary's address",
    "NOAUTH": f"NOAUTH the bus asks for a password; give it in its address: {_WHERE}",
    "WRONGPASS": f"WRONGPASS the bus does not take the user or password in its address; mend {_WHERE}",
}


def code_of(reply: hiredis.ReplyError) -> str:
    return str(reply).partition(" ")[0]


def translate(reply: hiredis.ReplyError) -> EchodError:
    """The error to raise for an error reply."""
    text = str(reply)
    if "AUTH" in text and "without any password configured" in text:
        return BusUnfit("the bus address has a password and the server expects none")
    if "replica instances" in text:  # WAITAOF's own word for it, with no code
        return BusReadOnly(f"READONLY {text.removeprefix('ERR ')}")
    code = code_of(reply)
    return _KINDS.get(code, BusError)(_SAID.get(code, text))


def means_another_server(error: EchodError) -> bool:
    """Whether this connection ends at a server that cannot serve us now: connect anew."""
    return isinstance(error, BusReadOnly)
