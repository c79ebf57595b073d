"""What one function has opened in its walls, as its worker is told."""

from __future__ import annotations

from typing import NamedTuple

MEBIBYTE = 1024 * 1024


class Openings(NamedTuple):
    """Closed is the default: no network, no process of its own, 512 MB of memory, 64 MB of /tmp."""

    network: bool | tuple[int, ...] = False  # False; True: everything; ports: TCP to these
    processes: int = 0  # how many it may have at once
    memory_bytes: int = 512 * MEBIBYTE
    tmp_bytes: int = 64 * MEBIBYTE

    @property
    def ports(self) -> tuple[int, ...] | None:
        """TCP ports it may connect to; None for any."""
        if self.network is True:
            return None
        return self.network or ()
