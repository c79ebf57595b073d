"""What a handler imports: annotations record, verdicts end a run, a context tells about it. Nothing else loads.

from echofn import queue, Context

@queue(lane="tenant", retries=5)
def send_invoice(payload: dict, ctx: Context) -> str: ...
"""

from __future__ import annotations

from echofn.annotations import cron, every, lifespan, queue, webhook
from echofn.backoff import Backoff
from echofn.verdicts import Cancel, Fail, Retry, Snooze
from echofn.verifiers import basic, bearer, hmac

TYPE_CHECKING = False  # type checkers read this name as true; a handler pays for no import of typing
if TYPE_CHECKING:
    from echofn.context import Context
    from echofn.request import Request

__all__ = ["Backoff", "Cancel", "Context", "Fail", "Request", "Retry", "Snooze"]
__all__ += ["basic", "bearer", "cron", "every", "hmac", "lifespan", "queue", "webhook"]


def __getattr__(name: str) -> object:
    if name == "Context":
        from echofn.context import Context

        globals()["Context"] = Context
        return Context
    if name == "Request":
        from echofn.request import Request

        globals()["Request"] = Request
        return Request
    raise AttributeError(f"module 'echofn' has no attribute {name!r}")
