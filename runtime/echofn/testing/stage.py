"""What the tests of a session share: one server, and one event loop on a thread of its own.

The loop is apart so that the kit's calls are plain calls, in plain tests and in those that run a loop themselves; only
the bus lives on it, handlers run where the test runs. The server keeps nothing on disk and ends with this process,
however that ends.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import tempfile
import threading
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from echod import log
from echod.bus import Bus as EchodBus
from echod.errors import BusAway
from echod.model.ids import NodeId
from echod.node.embedded import Embedded, find_binary
from echofn.children import instant_ms
from echofn.testing.fake import START
from echofn.testing.kit import Bus

T = TypeVar("T")
NODE = NodeId("NOD00000000001")
PATIENCE_S = 30.0


class Stage:
    """See the module. Raises Refused where no server can be had."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._folder = Path(tempfile.mkdtemp(prefix="echofn-"))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="echofn-testing", daemon=True)
        self._thread.start()
        try:
            self._server = Embedded(
                self._folder, find_binary(os.environ.get("ECHOD_VALKEY_SERVER"), os.environ), durable=False
            )
            self.call(self._server.start())
        except BaseException:
            self._end()
            raise

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` answers, once it has run on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def emptied(self) -> EchodBus:
        """A connection to the server with nothing in it, its clock standing still at `START`."""
        bus = await self._opened()
        bus.link.patience_s = PATIENCE_S
        await bus.link.command("FLUSHALL")
        await bus.drive("start", instant_ms(START))
        await bus.join(NODE)
        return bus

    async def _opened(self) -> EchodBus:
        """The server is there; where it does not answer in time, the machine is busy."""
        end = self._loop.time() + PATIENCE_S
        while True:
            try:
                return await EchodBus.open(self._server.address, driven=True)
            except BusAway:
                if self._loop.time() > end:
                    raise

    def close(self) -> None:
        """End the server and the thread."""
        if self._thread.is_alive():
            self.call(self._server.stop())
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self._folder, ignore_errors=True)


_stage: Stage | None = None


def stage() -> Stage:
    """The stage of this process, set up on the first call and struck at its end."""
    global _stage
    if _stage is None or _stage.pid != os.getpid():
        log.configure(as_json=False, level=log.ERROR)  # what a test wants to know of a missed instant it can ask
        _stage = Stage()
        atexit.register(_stage.close)
    return _stage


@contextmanager
def running_bus() -> Generator[Bus]:
    """The `bus` of the fixture, for tests that pytest does not run: `with running_bus() as bus: …`. One at a time."""
    here = stage()
    inner = here.call(here.emptied())
    bus = Bus(inner, here.call)
    try:
        yield bus
    finally:
        bus.close()
        here.call(inner.close())
