"""A node that has no bus yet: it says why, once for each reason, and answers for its gateway meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from echod.config import Config
from echod.errors import BusAway, EchodError
from echod.node import terminal

if TYPE_CHECKING:
    from echod.gateway.server import Server


class Standby:
    """From the first trouble until `end`. `serves`: the node is to have a gateway."""

    def __init__(self, config: Config, level: str, *, serves: bool) -> None:
        self._config = config
        self._level = level
        self._serves = serves
        self._trouble: EchodError = BusAway("not connected yet")
        self._server: Server | None = None

    async def tell(self, trouble: EchodError) -> None:
        """Why the node is not ready. Raises Refused when its port cannot be had."""
        if str(trouble) != str(self._trouble):
            terminal.waiting(str(trouble))
        self._trouble = trouble
        if self._serves and self._server is None:
            from echod.gateway.server import Server  # a node that finds its bus loads this beside its other work
            from echod.gateway.standby import create_standby

            server = Server(create_standby(lambda: self._trouble, self._level), self._config)
            await server.start()
            self._server = server

    async def end(self) -> None:
        """Leave the port to the gateway."""
        if self._server is not None:
            await self._server.stop()
            self._server = None
