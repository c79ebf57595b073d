"""What type checkers know of `enqueue`, wherever it is: the payload belongs to the function. At run time nothing.

`Takes` and its like are protocols, and `Given` a union with a callable, for mypy's sake: it infers the type of a
payload before that of a `Callable`, but after that of a protocol, and postpones what holds a callable. So the
function's type is known when a dict that is written out is looked at, and it can be a TypedDict. No two of them stand
in one union: having met a function that one fits, mypy thinks that every other function fits it, too.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers read this name as true; a handler pays for no import of typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta
    from typing import Any, Concatenate, Never, Protocol, TypeAlias, TypedDict, TypeVar, overload

    from typing_extensions import Unpack  # known to type checkers everywhere; nothing imports it

    from echofn.context import Context

    PayloadT = TypeVar("PayloadT")
    TakenT = TypeVar("TakenT", contravariant=True)
    ResultT = TypeVar("ResultT", covariant=True)
    MintedT = TypeVar("MintedT", covariant=True)
    MadeT = TypeVar("MadeT")

    Given: TypeAlias = PayloadT | Callable[[PayloadT], Never]  # a payload of this type; nothing is such a callable

    class Takes(Protocol[TakenT, ResultT]):
        """A handler whose first parameter is the payload; what follows is its context, under whatever name."""

        def __call__(self, payload: TakenT, /, *rest: Any, **named: Any) -> ResultT: ...

    class TakesTurned(Protocol[TakenT, ResultT]):
        """One with a context and a payload."""

        def __call__(self, ctx: Context[Any], payload: TakenT, /) -> ResultT: ...

    class Alone(Protocol[ResultT]):
        """One that gets `ctx` by its name, and can be called without a payload."""

        def __call__(self, *, ctx: Context[Any]) -> ResultT: ...

    class Wishes(TypedDict, total=False):
        """How a job is minted."""

        lane: str | None
        delay: str | float | timedelta | None
        at: datetime | str | None
        unique: str | None
        priority: int | None

    class Enqueue(Protocol[MintedT]):  # type: ignore[misc] # to mypy overloads that overlap are not covariant
        """A call of `enqueue`: a function, or its name, and a payload that fits it."""

        @overload
        def __call__(self, function: str, payload: object = None, **wishes: Unpack[Wishes]) -> MintedT: ...
        @overload  # of one that can be called without a payload
        def __call__(
            self,
            function: Callable[[], Any]
            | Callable[[None], Any]
            | Callable[[Context[Any]], Any]
            | Callable[[None, Context[Any]], Any],
            **wishes: Unpack[Wishes],
        ) -> MintedT: ...
        @overload
        def __call__(self, function: Alone[Any], **wishes: Unpack[Wishes]) -> MintedT: ...
        @overload
        def __call__(
            self, function: Takes[PayloadT, Any], payload: Given[PayloadT], **wishes: Unpack[Wishes]
        ) -> MintedT: ...
        @overload
        def __call__(
            self, function: TakesTurned[PayloadT, Any], payload: Given[PayloadT], **wishes: Unpack[Wishes]
        ) -> MintedT: ...
        @overload  # of a batch function, which takes a list, one of its jobs
        def __call__(
            self, function: Takes[list[PayloadT], Any], payload: Given[PayloadT], **wishes: Unpack[Wishes]
        ) -> MintedT: ...
        @overload
        def __call__(
            self, function: TakesTurned[list[PayloadT], Any], payload: Given[PayloadT], **wishes: Unpack[Wishes]
        ) -> MintedT: ...

    class Enqueues(Protocol[MintedT]):
        """A method that is such a call."""

        def __get__(self, instance: object, owner: type | None = None, /) -> Enqueue[MintedT]: ...

    def typed(method: Callable[Concatenate[Any, Callable[..., Any] | str, ...], MadeT], /) -> Enqueues[MadeT]: ...

else:

    def typed(method):
        """The method as it is; to type checkers an `Enqueue`."""
        return method
