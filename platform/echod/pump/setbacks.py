"""What one queue alone fails of keeps no other waiting; what everybody would fail of is raised, and ends the turn."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from echod import log
from echod.errors import BusAway, BusError, BusUnfit, Refused

_log = log.get("pump")
T = TypeVar("T")


class Setbacks:
    """Tells of each queue's in the log, once a beat."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def beaten(self) -> None:
        """What is still so is told again."""
        self._told.clear()

    async def alone(self, queue: str, work: Awaitable[T]) -> list[T]:
        """What work on a queue answers; nothing where it fails of that queue. Raises BusAway, BusUnfit, LeaseGone."""
        try:
            return [await work]
        except (BusAway, BusUnfit):
            raise
        except (BusError, Refused) as error:
            if self._told.get(queue) != str(error):
                self._told[queue] = str(error)
                _log.warning("queue.put_off", queue=queue, error=str(error))
            return []
