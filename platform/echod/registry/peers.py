"""The worker nodes of a bus, by what they told of themselves: what they must not serve, and what they have ready."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from echod.bus import Bus
from echod.bus.answers import NodeRow


class About(msgspec.Struct, frozen=True):
    """What of a node's words at its join counts for others. `open_port`: where functions reach the bus unasked."""

    verb: str = ""
    roles: tuple[str, ...] = ()
    host: str = ""
    sandbox: str = "off"
    open_port: int | None = None


class Peer(NamedTuple):
    row: NodeRow
    about: About


_about = msgspec.msgpack.Decoder(About).decode


async def workers(bus: Bus) -> list[Peer]:
    """The nodes that run jobs and whose lease has not ended, this one too. Raises BusError."""
    peers = [Peer(row, _read(row.info)) for row in await bus.nodes()]
    return [peer for peer in peers if "worker" in peer.about.roles]


def _read(info: bytes) -> About:
    try:
        return _about(info) if info else About()
    except msgspec.MsgspecError:
        return About()
