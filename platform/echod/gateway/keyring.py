"""Who asks, and what they may do: ECHOD_TOKEN, the bus's tokens and sessions, or nobody, where no token is required.

It holds a copy of the bus's list, read when a token is shown, and read again once the bus says that it changed or the
copy is older than a beat: a revoked token is refused at once everywhere, and within a beat by a gateway that missed
the news. What is not in the copy is looked up on its own: no stranger's guess has the list read again. ECHOD_TOKEN
needs no bus. What is no token by its own checksum is refused without a look-up.

Asked for a token: with ECHOD_TOKEN set, beyond loopback, and, but for `dev`, once a token was made on this bus.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Literal, Protocol

import msgspec

from echod.bus.clock import BEAT_S
from echod.bus.tokens import TokenRow, TokensHeld
from echod.config import Config, is_loopback
from echod.errors import BusError
from echod.gateway.session import is_token, session_digest
from echod.model.token import SCOPES, Scope, digest_of, is_shaped

RIGHTS: frozenset[Scope] = frozenset(SCOPES)
AWAY_S = 1.0  # between two looks for whom a bus that is away cannot vouch
USED_EVERY_S = 60.0
_AGAIN_S = 0.1  # past an end, so that it is over by the bus's clock
_MOST_USED = 4096


class Caller(msgspec.Struct, frozen=True):
    """Who asks. `by`: nobody we know, anybody (none is asked for), ECHOD_TOKEN, a named token, a session.

    `name` is that of the token, of a session the one that it came of, and empty for ECHOD_TOKEN.
    """

    by: Literal["nobody", "anybody", "main", "token", "session"]
    rights: frozenset[Scope] = frozenset()
    name: str = ""
    expires_ms: int | None = None


NOBODY = Caller("nobody")
ANYBODY = Caller("anybody", RIGHTS)
MAIN = Caller("main", RIGHTS)


class Bus(Protocol):
    """What of the bus is needed."""

    async def tokens(self) -> TokensHeld: ...

    async def token_row(self, digest: str) -> TokenRow | None: ...

    async def used_token(self, digest: str) -> None: ...


class Keyring:
    """The tokens that one gateway accepts."""

    def __init__(self, config: Config, bus: Bus, *, now_ms: Callable[[], int], is_dev: Callable[[], bool]) -> None:
        self._main = config.token
        self._is_local = is_loopback(config.host)
        self._bus = bus
        self._now_ms = now_ms
        self._is_dev = is_dev
        self._held: TokensHeld | None = None
        self._by_digest: dict[str, TokenRow] = {}
        self._read_at, self._read_news = -BEAT_S, -1
        self._news = 0
        self._told = asyncio.Event()  # set and replaced with each piece of news
        self._reading: asyncio.Task[None] | None = None
        self._used: OrderedDict[str, float] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def heard(self, *_: object) -> None:
        """The bus's list changed, or may have."""
        self._news += 1
        self._wake()

    def reconnected(self, *_: object) -> None:
        """News may have been lost."""
        self._read_at = -BEAT_S
        self._keep(self._fresh())
        self._wake()

    async def caller(self, authorization: str, cookie: str) -> Caller:
        """Who sends these headers. Raises BusError where only the bus can tell and does not."""
        kind, _, given = authorization.partition(" ")
        if kind.lower() == "bearer" and (found := await self._known(given.strip())) is not NOBODY:
            return found
        if not authorization and is_shaped("session", cookie) and (found := await self._session(cookie)) is not NOBODY:
            return found
        return NOBODY if await self._asks() else ANYBODY

    async def lost(self, authorization: str, cookie: str, right: Scope) -> None:
        """Return once whoever sends these headers has this right no more: at the news of it, else within a beat.

        While the bus is away nobody can tell, and nothing is lost.
        """
        while True:
            told, wait_s = self._told, BEAT_S
            try:
                caller = await self.caller(authorization, cookie)
                if right not in caller.rights:
                    return
                if caller.expires_ms is not None:
                    wait_s = min(wait_s, max(0.0, caller.expires_ms - self._now_ms()) / 1000 + _AGAIN_S)
            except BusError:
                wait_s = AWAY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await told.wait()

    async def holder(self, token: str) -> Caller:
        """Who has this token, sent other than in a header."""
        return await self._known(token)

    async def link(self, text: str) -> TokenRow | None:
        """The login link of this text, as the bus has it now; None where there is none."""
        if not is_shaped("link", text):
            return None
        digest = digest_of(text)
        row = self._in_force(await self._bus.token_row(digest), digest)
        return row if row is not None and row.kind == "link" else None

    async def prime(self) -> None:
        """Read the list, so that a bus that goes away later leaves us with what it held; away already: nothing."""
        with contextlib.suppress(BusError):
            await self._fresh()

    async def close(self) -> None:
        """End what is under way."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _wake(self) -> None:
        told, self._told = self._told, asyncio.Event()
        told.set()

    async def _known(self, given: str) -> Caller:
        if self._main is not None and is_token(given, self._main):
            return MAIN
        if not is_shaped("token", given):
            return NOBODY
        row = await self._row(digest_of(given))
        if row is None or row.kind != "token":
            return NOBODY
        self._note_use(row.digest)
        return Caller("token", row.scopes, row.name, row.expires_ms)

    async def _session(self, cookie: str) -> Caller:
        for main in (None, self._main) if self._main is not None else (None,):
            row = await self._row(session_digest(cookie, main))
            if row is not None and row.kind == "session":
                return Caller("session", row.scopes, row.parent, row.expires_ms)
        return NOBODY

    async def _asks(self) -> bool:
        """Whether a token is asked for. Without news an old copy will do: what it guards is the bus itself."""
        if self._main is not None or not self._is_local:
            return True
        if self._is_dev():
            return False
        if self._held is None or self._read_news != self._news:
            await self._fresh()
        elif self._is_stale():
            self._keep(self._fresh())
        return self._held is not None and self._held.closed

    async def _row(self, digest: str) -> TokenRow | None:
        """A row that is in force."""
        await self._fresh()
        row = self._by_digest.get(digest)
        if row is None:  # made a moment ago, and shown before its news came; or a stranger's guess
            row = await self._bus.token_row(digest)
        return self._in_force(row, digest)

    def _in_force(self, row: TokenRow | None, digest: str) -> TokenRow | None:
        if row is None or row.is_over(self._now_ms()) or not hmac.compare_digest(row.digest, digest):
            return None
        return row

    def _is_stale(self) -> bool:
        age_s = asyncio.get_running_loop().time() - self._read_at
        return self._held is None or self._read_news != self._news or age_s > BEAT_S

    async def _fresh(self) -> None:
        """Read the list, once for all who wait for it, until it is as new as the news."""
        while self._is_stale():
            if self._reading is None:
                self._reading = self._keep(self._read())
            await asyncio.shield(self._reading)

    async def _read(self) -> None:
        news = self._news
        try:
            held = await self._bus.tokens()
        finally:
            self._reading = None
        self._held, self._by_digest = held, {row.digest: row for row in held.rows}
        self._read_at, self._read_news = asyncio.get_running_loop().time(), news

    def _note_use(self, digest: str) -> None:
        """Tell the bus, once a minute and without making the caller wait."""
        now = asyncio.get_running_loop().time()
        if now - self._used.get(digest, -USED_EVERY_S) < USED_EVERY_S:
            return
        self._used[digest] = now
        if len(self._used) > _MOST_USED:
            self._used.popitem(last=False)
        self._keep(self._tell(digest))

    async def _tell(self, digest: str) -> None:
        with contextlib.suppress(BusError):
            await self._bus.used_token(digest)

    def _keep(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits gets it; a read that nobody waits for is made again
