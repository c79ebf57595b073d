"""echod: the control plane, and the client for other programs. Handlers import `echofn`, never this.

Importing it loads nothing; each name is loaded when it is used.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers read this name as true
if TYPE_CHECKING:
    from echod.client.asynchronous import AsyncClient, AsyncJob
    from echod.client.orders import Record
    from echod.client.repeats import Schedule
    from echod.client.synchronous import Client, Job
    from echod.errors import (
        BusAway,
        EchodError,
        InvalidPayload,
        InvalidSchedule,
        JobFailed,
        KeyConflict,
        NameTaken,
        NotCallable,
        NothingListens,
        OrdersRefused,
        QueueFull,
        Refused,
        UnknownFunction,
    )

__all__ = ["AsyncClient", "AsyncJob", "Client", "Job", "Record", "Schedule"]
__all__ += ["BusAway", "EchodError", "InvalidPayload", "InvalidSchedule", "JobFailed", "KeyConflict", "NameTaken"]
__all__ += ["NotCallable", "NothingListens", "OrdersRefused", "QueueFull", "Refused", "UnknownFunction"]

_PLACES = {
    "AsyncClient": "client.asynchronous",
    "AsyncJob": "client.asynchronous",
    "Client": "client.synchronous",
    "Job": "client.synchronous",
    "Record": "client.orders",
    "Schedule": "client.repeats",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'echod' has no attribute {name!r}")
    import importlib

    found: object = getattr(importlib.import_module(f"echod.{_PLACES.get(name, 'errors')}"), name)
    globals()[name] = found
    return found
