"""What every handler works with: the bus, the registry, the settings, and the answers' common form."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, cast

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from echod.bus import Bus
from echod.bus.waiting import Waiting
from echod.config import Config
from echod.errors import UnknownFunction
from echod.gateway import pages
from echod.gateway.counting import Counts
from echod.gateway.keyring import NOBODY, Caller, Keyring
from echod.gateway.limits import Intake
from echod.gateway.live import Live
from echod.gateway.problems import Problem
from echod.gateway.views import View, instant
from echod.model.ids import VersionId
from echod.policy.plan import Deployed
from echod.registry.registry import ActiveVersion, Registry
from echod.registry.schemas import Schemas
from echofn.manifest import Function

T = TypeVar("T")


class Deploys(Protocol):
    """What a node does with versions from outside."""

    async def deployed(self, body: AsyncIterable[bytes], *, only_plan: bool = False) -> Deployed:
        """Switch to a packed folder, or say what that would change. Raises Refused."""
        ...

    async def activated(self, version: VersionId, *, only_plan: bool = False) -> Deployed:
        """The same of a stored version. Raises Refused."""
        ...


@dataclass
class Desk:
    """One gateway's state."""

    bus: Bus
    registry: Registry
    config: Config
    status: Callable[[], Mapping[str, object]]
    level: str
    deploys: Deploys | str  # a text: why this node takes none
    waiting: Waiting
    live: Live
    keyring: Keyring
    intake: Intake
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)  # where the secrets of webhooks are
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    counts: Counts = field(default_factory=Counts)
    schemas: Schemas = field(default_factory=Schemas)

    def active(self) -> ActiveVersion:
        """The version being served; a problem without one."""
        if self.registry.active is None:
            expected = "expected a deployed version, got none; run `echod deploy FOLDER`"
            raise Problem("no-version", self.registry.unreadable or expected)
        return self.registry.active

    def function(self, name: str) -> Function:
        """The active function of this name; a problem with suggestions without one."""
        self.active()
        function = self.registry.function(name)
        if function is None:
            raise self.registry.unknown(name)
        return function

    async def known(self, name: str) -> str:
        """This name: of an active function, or of one that is gone while its jobs lie there. Else a problem."""
        if name not in self.registry.names():
            queues = await self.bus.queues()
            if name not in queues:
                raise UnknownFunction.near(name, sorted({*self.registry.names(), *queues}))
        return name

    def shell(self, request: Request) -> dict[str, object]:
        """What every page's frame shows."""
        return {
            "version": self.registry.active.version if self.registry.active else None,
            "sandbox": self.level,
            "mode": str(self.status().get("mode", "")),
            "degraded": self.degraded(),
            "signed_in": caller_of(request).by == "session",
            "clock": ("frozen" if self.bus.clock.frozen else "driven") if self.bus.driven else None,
        }

    def degraded(self) -> list[str]:
        """What works less well than it should, as sentences."""
        return [str(text) for text in cast("Sequence[object]", self.status().get("degraded", ()))]

    def close(self) -> None:
        """End the streams and the waiting; the server stops."""
        self.live.close()
        self.waiting.close()
        self.closing.set()


def caller_of(request: Request) -> Caller:
    """Who asks; nobody where that is not known (any more), as in the answer to an unexpected error."""
    caller: Caller = getattr(request.state, "caller", NOBODY)
    return caller


def shortened(text: str, length: int = 100) -> str:
    """`text`, cut where a stranger may have sent any amount of it."""
    return text if len(text) <= length else f"{text[:length]}…"


def wants_page(request: Request) -> bool:
    """Whether a browser asks: its Accept names HTML."""
    return "text/html" in request.headers.get("accept", "")


def answer(view: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A view as JSON."""
    return Response(msgspec.json.encode(view), status_code=status, headers=headers, media_type="application/json")


async def body_of(request: Request, decoder: msgspec.json.Decoder[T]) -> T:
    """The JSON body of a request as its type."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Problem("unsupported-media-type", "expected Content-Type application/json")
    body = await request.body()
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise Problem("invalid-parameter", str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem("invalid-body", f"expected JSON: {error}") from None


def shown(desk: Desk, request: Request, page: str, view: View, *, status: int = 200) -> Response:
    """A view as the page of that name, or as JSON: the same object."""
    if wants_page(request):
        frame = {"now": instant(desk.bus.clock.now_ms()), "shell": desk.shell(request)}
        html = pages.render(page, **{**view, **frame})
        return HTMLResponse(html, status_code=status, headers={"Vary": "Accept"})
    return answer(view, status=status, headers={"Vary": "Accept"})
