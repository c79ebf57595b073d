"""`@lifespan`: what a module's workers have from before their first job until after their last.

A generator that yields once, sync or async. It is entered in each worker of the module's functions, behind the walls,
on the loop that the handlers run on, before the worker is ready; what it yields is `ctx.state`. It is left when the
worker has run its share, was idle for long or drains, and not when it crashes or is killed.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from echofn.annotations import Mark, recorded
from echofn.faults import MAX_MESSAGE, message_of, raw, safe, traceback_of, type_of
from echofn.frames import Left
from echofn.options import Reading
from echofn.values import some_time

if TYPE_CHECKING:
    import asyncio
    import contextlib

    from echofn.masking import Mask
    from echofn.package import Folder
    from echofn.run import Loop

STARTUP_MS = 30_000
_YIELDED_NOT = "generator didn't yield"  # contextlib's own words
NOBODYS = (
    "expected a function beside @lifespan: it serves the functions of its own module, and this one has none; "
    "to share it write `clients = lifespan(lib.clients)` in the modules that need it"
)


# ---- at load ------------------------------------------------------------------------------------------------------


def read_lifespan(marks: Sequence[Mark]) -> tuple[int | None, list[tuple[int, str]]]:
    """How long the start of a module's lifespan may take (None: it has none), and what is wrong with it, by line."""
    startup_ms, refusals = None, list[tuple[int, str]]()
    for mark in marks:
        if mark is not marks[0]:
            first = marks[0].line
            refusals.append(
                (mark.line, f"expected one @lifespan in a module, got another (the first is in line {first})")
            )
            continue
        reading = Reading(mark)
        startup_ms = reading.take("startup_timeout", STARTUP_MS, some_time)
        why = 'expected keywords, as in @lifespan(startup_timeout="1m")' if mark.arguments else _misfit(mark.target)
        refusals += [(mark.line, text) for text in (*reading.refusals, *([why] if why else ()))]
    return startup_ms, refusals


def _misfit(target: Any) -> str | None:
    inner = inspect.unwrap(target) if callable(target) else target
    if not (inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)):
        return 'expected a generator that yields once, as in `async def clients(): … yield {"http": client}`'
    try:
        inspect.signature(inner).bind()
    except TypeError:
        return f"expected a lifespan without parameters, got {inspect.signature(inner)}"
    return None


# ---- in a worker --------------------------------------------------------------------------------------------------


class State(types.SimpleNamespace):
    """What a lifespan yielded, by name."""

    __slots__ = ("__file",)  # not among what it shows of itself

    def __init__(self, file: str, values: Mapping[str, Any]) -> None:
        super().__init__(**values)
        self.__file = file

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        known = ", ".join(vars(self))
        has = f"yielded {known}" if known else "has no @lifespan that yielded anything"
        raise AttributeError(f"ctx.state has no {name!r}: {self.__file} {has}", name=name, obj=self)


def state_of(file: str, value: Any) -> Any:
    """What ctx.state is when the lifespan of `file` yields this: a mapping's values by name, or the object itself."""
    return State(file, cast("Mapping[str, Any]", value or {})) if value is None or isinstance(value, Mapping) else value


def has_lifespan(module: types.ModuleType) -> bool:
    return any(mark.kind == "lifespan" and mark.scope is vars(module) for mark in recorded)


class Lifespan:
    """One module's lifespan in one worker."""

    def __init__(self, module: types.ModuleType, file: str) -> None:
        import asyncio  # discovery only reads annotations

        mark = next((mark for mark in recorded if mark.kind == "lifespan" and mark.scope is vars(module)), None)
        if mark is None:
            raise LookupError(f"{file} has no @lifespan any more: its code depends on where it runs")
        self.place = f"{file}:{mark.line}"
        self._file = file
        self._target = mark.target
        self._manager: contextlib.AbstractContextManager[Any] | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    def enter(self, loop: Loop) -> Any:
        """Run it up to its yield; gives what ctx.state is. Raises what it raises."""
        try:
            return state_of(self._file, self._entered(_managed(self._target()), loop))
        except RuntimeError as error:
            if str(error) != _YIELDED_NOT:
                raise
            told = f"@lifespan ({self.place}): expected a generator that yields once, got one that ended without"
            raise RuntimeError(f"{told}; let each way through it yield") from None

    def _entered(self, manager: Any, loop: Loop) -> Any:
        """What it yields."""
        value: Any
        if hasattr(manager, "__aenter__"):
            # One task for its whole life: task groups, timeouts and cancel scopes must be left where they were entered.
            entered: asyncio.Future[tuple[Any, BaseException | None]] = loop.get().create_future()
            self._task = loop.get().create_task(self._live(manager, entered))
            value, error = loop.get().run_until_complete(entered)
            if error is not None:
                raise error
        else:
            self._manager = manager
            value = manager.__enter__()
        return value

    def leave(self, loop: Loop, folder: Folder, mask: Mask) -> Left | None:
        """Run the part after `yield`. Returns what went wrong, or None."""
        try:
            if self._manager is not None:
                self._manager.__exit__(None, None, None)
            if self._task is not None:
                self._over.set()
                loop.get().run_until_complete(self._task)
        except BaseException as error:
            trace = traceback_of(error, folder, mask)
            raw(2, f"@lifespan ({self.place}) did not end well:\n{trace}")
            message = f"@lifespan ({self.place}) did not end well: {message_of(error, mask)}"
            return Left(type_of(error, mask), safe(message, MAX_MESSAGE), trace)
        return None

    async def _live(
        self,
        manager: contextlib.AbstractAsyncContextManager[Any],
        entered: asyncio.Future[tuple[Any, BaseException | None]],
    ) -> None:
        try:
            async with manager as value:
                entered.set_result((value, None))
                await self._over.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_result((None, error))  # not as its exception: a loop does not stop for a future's SystemExit


def _managed(made: Any) -> Any:
    """A lifespan's generator as a context manager; one that is made by contextlib is that already."""
    import contextlib

    def again() -> Any:
        return made

    if inspect.isgenerator(made):
        return contextlib.contextmanager(again)()
    return contextlib.asynccontextmanager(again)() if inspect.isasyncgen(made) else made
