"""What a handler imports: annotations record, verdicts end a run, a context tells about it. Nothing else loads.

from echofn import queue, Context

@queue(lane="tenant", retries=5)
def send_invoice(payload: dict, ctx: Context) -> str: ...
"""

from __future__ import annotations

from echofn.annotations import cron, every, queue
from echofn.verdicts import Cancel, Fail, Retry, Snooze

TYPE_CHECKING = False  # type checkers read this name as true; a handler pays for no import of typing
if TYPE_CHECKING:
    from echofn.context import Context

__all__ = ["Cancel", "Context", "Fail", "Retry", "Snooze", "cron", "every", "queue"]

_LATER = {"webhook", "lifespan", "Request", "hmac", "bearer", "basic"}


def __getattr__(name: str) -> object:
    if name == "Context":
        from echofn.context import Context

        globals()["Context"] = Context
        return Context
    if name in _LATER:
        raise ImportError(f"echofn.{name} is not in this version of echofn", name="echofn")
    raise AttributeError(f"module 'echofn' has no attribute {name!r}")
