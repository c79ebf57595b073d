"""What type checkers know of a client's calls: the payload belongs to the function, and a job has its result's type.

As in `echofn.enqueueing`, which says why the protocols are what they are; and there is an overload for each, as mypy
mistakes one for another in a union. Those of a coroutine come first: it would be the result. At run time nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence
    from typing import Protocol, TypeAlias, TypeVar, Unpack, overload

    from echod.client.asynchronous import AsyncJob
    from echod.client.orders import ManyOptions, Options
    from echod.client.repeats import CronOptions, EveryOptions
    from echod.client.synchronous import Job
    from echofn.context import Context
    from echofn.enqueueing import Alone, Given, Takes, TakesTurned

    P = TypeVar("P")
    R = TypeVar("R")
    MadeT = TypeVar("MadeT", covariant=True)
    CallT = TypeVar("CallT", covariant=True)
    # Not `Alone`: beside it a handler of a `ctx` fits two overloads of `enqueue`, and to mypy its result is Any.
    Bare: TypeAlias = (
        Callable[[], R] | Callable[[None], R] | Callable[[Context[Any]], R] | Callable[[None, Context[Any]], R]
    )
    # Of a batch function, which may return an exception in a job's place: that is its error, and never its result.
    Results: TypeAlias = Sequence[R | Exception] | None

    class Enqueue(Protocol):
        """`Client.enqueue`."""

        @overload
        def __call__(self, function: str, payload: object = None, **options: Unpack[Options]) -> Job[Any]: ...
        @overload  # of one that can be called without a payload
        def __call__(self, function: Bare[Coroutine[Any, Any, R]], **options: Unpack[Options]) -> Job[R]: ...
        @overload
        def __call__(self, function: Bare[R], **options: Unpack[Options]) -> Job[R]: ...
        @overload  # of one with a payload
        def __call__(
            self, function: Takes[P, Coroutine[Any, Any, R]], payload: Given[P], **options: Unpack[Options]
        ) -> Job[R]: ...
        @overload
        def __call__(self, function: Takes[P, R], payload: Given[P], **options: Unpack[Options]) -> Job[R]: ...
        @overload
        def __call__(
            self, function: TakesTurned[P, Coroutine[Any, Any, R]], payload: Given[P], **options: Unpack[Options]
        ) -> Job[R]: ...
        @overload
        def __call__(self, function: TakesTurned[P, R], payload: Given[P], **options: Unpack[Options]) -> Job[R]: ...
        @overload  # of a batch function, which takes a list, one of its jobs
        def __call__(
            self,
            function: Takes[list[P], Coroutine[Any, Any, Results[R]]],
            payload: Given[P],
            **options: Unpack[Options],
        ) -> Job[R]: ...
        @overload
        def __call__(
            self, function: Takes[list[P], Results[R]], payload: Given[P], **options: Unpack[Options]
        ) -> Job[R]: ...
        @overload
        def __call__(
            self,
            function: TakesTurned[list[P], Coroutine[Any, Any, Results[R]]],
            payload: Given[P],
            **options: Unpack[Options],
        ) -> Job[R]: ...
        @overload
        def __call__(
            self, function: TakesTurned[list[P], Results[R]], payload: Given[P], **options: Unpack[Options]
        ) -> Job[R]: ...

    class AsyncEnqueue(Protocol):
        """`AsyncClient.enqueue`."""

        @overload
        def __call__(
            self, function: str, payload: object = None, **options: Unpack[Options]
        ) -> Coroutine[Any, Any, AsyncJob[Any]]: ...
        @overload  # of one that can be called without a payload
        def __call__(
            self, function: Bare[Coroutine[Any, Any, R]], **options: Unpack[Options]
        ) -> Coroutine[Any, Any, AsyncJob[R]]: ...
        @overload
        def __call__(self, function: Bare[R], **options: Unpack[Options]) -> Coroutine[Any, Any, AsyncJob[R]]: ...
        @overload  # of one with a payload
        def __call__(
            self, function: Takes[P, Coroutine[Any, Any, R]], payload: Given[P], **options: Unpack[Options]
        ) -> Coroutine[Any, Any, AsyncJob[R]]: ...
        @overload
        def __call__(
            self, function: Takes[P, R], payload: Given[P], **options: Unpack[Options]
        ) -> Coroutine[Any, Any, AsyncJob[R]]: ...
        @overload
        def __call__(
            self, function: TakesTurned[P, Coroutine[Any, Any, R]], payload: Given[P], **options: Unpack[Options]
        ) -> Coroutine[Any, Any, AsyncJob[R]]: ...
        @overload
        def __call__(
            self, function: TakesTurned[P, R], payload: Given[P], **options: Unpack[Options]
        ) -> Coroutine[Any, Any, AsyncJob[R]]: ...
        @overload  # of a batch function, which takes a list, one of its jobs
        def __call__(
            self,
            function: Takes[list[P], Coroutine[Any, Any, Results[R]]],
            payload: Given[P],
            **options: Unpack[Options],
        ) -> Coroutine[Any, Any, AsyncJob[R]]: ...
        @overload
        def __call__(
            self, function: Takes[list[P], Results[R]], payload: Given[P], **options: Unpack[Options]
        ) -> Coroutine[Any, Any, AsyncJob[R]]: ...
        @overload
        def __call__(
            self,
            function: TakesTurned[list[P], Coroutine[Any, Any, Results[R]]],
            payload: Given[P],
            **options: Unpack[Options],
        ) -> Coroutine[Any, Any, AsyncJob[R]]: ...
        @overload
        def __call__(
            self, function: TakesTurned[list[P], Results[R]], payload: Given[P], **options: Unpack[Options]
        ) -> Coroutine[Any, Any, AsyncJob[R]]: ...

    class EnqueueMany(Protocol):
        """`Client.enqueue_many`."""

        @overload
        def __call__(
            self, function: str, payloads: Iterable[object], **options: Unpack[ManyOptions]
        ) -> list[Job[Any]]: ...
        @overload  # of one that can be called without a payload
        def __call__(
            self,
            function: Bare[Coroutine[Any, Any, R]],
            payloads: Iterable[None],
            **options: Unpack[ManyOptions],
        ) -> list[Job[R]]: ...
        @overload
        def __call__(
            self, function: Bare[R], payloads: Iterable[None], **options: Unpack[ManyOptions]
        ) -> list[Job[R]]: ...
        @overload  # of one with a payload
        def __call__(
            self,
            function: Takes[P, Coroutine[Any, Any, R]],
            payloads: Iterable[Given[P]],
            **options: Unpack[ManyOptions],
        ) -> list[Job[R]]: ...
        @overload
        def __call__(
            self, function: Takes[P, R], payloads: Iterable[Given[P]], **options: Unpack[ManyOptions]
        ) -> list[Job[R]]: ...
        @overload
        def __call__(
            self,
            function: TakesTurned[P, Coroutine[Any, Any, R]],
            payloads: Iterable[Given[P]],
            **options: Unpack[ManyOptions],
        ) -> list[Job[R]]: ...
        @overload
        def __call__(
            self, function: TakesTurned[P, R], payloads: Iterable[Given[P]], **options: Unpack[ManyOptions]
        ) -> list[Job[R]]: ...
        @overload  # of a batch function, which takes a list, one of its jobs
        def __call__(
            self,
            function: Takes[list[P], Coroutine[Any, Any, Results[R]]],
            payloads: Iterable[Given[P]],
            **options: Unpack[ManyOptions],
        ) -> list[Job[R]]: ...
        @overload
        def __call__(
            self, function: Takes[list[P], Results[R]], payloads: Iterable[Given[P]], **options: Unpack[ManyOptions]
        ) -> list[Job[R]]: ...
        @overload
        def __call__(
            self,
            function: TakesTurned[list[P], Coroutine[Any, Any, Results[R]]],
            payloads: Iterable[Given[P]],
            **options: Unpack[ManyOptions],
        ) -> list[Job[R]]: ...
        @overload
        def __call__(
            self,
            function: TakesTurned[list[P], Results[R]],
            payloads: Iterable[Given[P]],
            **options: Unpack[ManyOptions],
        ) -> list[Job[R]]: ...

    class AsyncEnqueueMany(Protocol):
        """`AsyncClient.enqueue_many`."""

        @overload
        def __call__(
            self, function: str, payloads: Iterable[object], **options: Unpack[ManyOptions]
        ) -> Coroutine[Any, Any, list[AsyncJob[Any]]]: ...
        @overload  # of one that can be called without a payload
        def __call__(
            self,
            function: Bare[Coroutine[Any, Any, R]],
            payloads: Iterable[None],
            **options: Unpack[ManyOptions],
        ) -> Coroutine[Any, Any, list[AsyncJob[R]]]: ...
        @overload
        def __call__(
            self, function: Bare[R], payloads: Iterable[None], **options: Unpack[ManyOptions]
        ) -> Coroutine[Any, Any, list[AsyncJob[R]]]: ...
        @overload  # of one with a payload
        def __call__(
            self,
            function: Takes[P, Coroutine[Any, Any, R]],
            payloads: Iterable[Given[P]],
            **options: Unpack[ManyOptions],
        ) -> Coroutine[Any, Any, list[AsyncJob[R]]]: ...
        @overload
        def __call__(
            self, function: Takes[P, R], payloads: Iterable[Given[P]], **options: Unpack[ManyOptions]
        ) -> Coroutine[Any, Any, list[AsyncJob[R]]]: ...
        @overload
        def __call__(
            self,
            function: TakesTurned[P, Coroutine[Any, Any, R]],
            payloads: Iterable[Given[P]],
            **options: Unpack[ManyOptions],
        ) -> Coroutine[Any, Any, list[AsyncJob[R]]]: ...
        @overload
        def __call__(
            self, function: TakesTurned[P, R], payloads: Iterable[Given[P]], **options: Unpack[ManyOptions]
        ) -> Coroutine[Any, Any, list[AsyncJob[R]]]: ...
        @overload  # of a batch function, which takes a list, one of its jobs
        def __call__(
            self,
            function: Takes[list[P], Coroutine[Any, Any, Results[R]]],
            payloads: Iterable[Given[P]],
            **options: Unpack[ManyOptions],
        ) -> Coroutine[Any, Any, list[AsyncJob[R]]]: ...
        @overload
        def __call__(
            self, function: Takes[list[P], Results[R]], payloads: Iterable[Given[P]], **options: Unpack[ManyOptions]
        ) -> Coroutine[Any, Any, list[AsyncJob[R]]]: ...
        @overload
        def __call__(
            self,
            function: TakesTurned[list[P], Coroutine[Any, Any, Results[R]]],
            payloads: Iterable[Given[P]],
            **options: Unpack[ManyOptions],
        ) -> Coroutine[Any, Any, list[AsyncJob[R]]]: ...
        @overload
        def __call__(
            self,
            function: TakesTurned[list[P], Results[R]],
            payloads: Iterable[Given[P]],
            **options: Unpack[ManyOptions],
        ) -> Coroutine[Any, Any, list[AsyncJob[R]]]: ...

    class Repeat(Protocol[MadeT]):  # type: ignore[misc] # to mypy overloads that overlap are not covariant
        """`repeat` of either client: by `cron` or `every`, with what goes with it."""

        @overload
        def __call__(
            self, name: str, function: str, *, payload: object = None, **options: Unpack[CronOptions]
        ) -> MadeT: ...
        @overload
        def __call__(self, name: str, function: Bare[Any], **options: Unpack[CronOptions]) -> MadeT: ...
        @overload
        def __call__(self, name: str, function: Alone[Any], **options: Unpack[CronOptions]) -> MadeT: ...
        @overload
        def __call__(
            self, name: str, function: Takes[P, Any], *, payload: Given[P], **options: Unpack[CronOptions]
        ) -> MadeT: ...
        @overload
        def __call__(
            self, name: str, function: TakesTurned[P, Any], *, payload: Given[P], **options: Unpack[CronOptions]
        ) -> MadeT: ...
        @overload
        def __call__(
            self, name: str, function: Takes[list[P], Any], *, payload: Given[P], **options: Unpack[CronOptions]
        ) -> MadeT: ...
        @overload
        def __call__(
            self, name: str, function: TakesTurned[list[P], Any], *, payload: Given[P], **options: Unpack[CronOptions]
        ) -> MadeT: ...
        @overload
        def __call__(
            self, name: str, function: str, *, payload: object = None, **options: Unpack[EveryOptions]
        ) -> MadeT: ...
        @overload
        def __call__(self, name: str, function: Bare[Any], **options: Unpack[EveryOptions]) -> MadeT: ...
        @overload
        def __call__(self, name: str, function: Alone[Any], **options: Unpack[EveryOptions]) -> MadeT: ...
        @overload
        def __call__(
            self, name: str, function: Takes[P, Any], *, payload: Given[P], **options: Unpack[EveryOptions]
        ) -> MadeT: ...
        @overload
        def __call__(
            self, name: str, function: TakesTurned[P, Any], *, payload: Given[P], **options: Unpack[EveryOptions]
        ) -> MadeT: ...
        @overload
        def __call__(
            self, name: str, function: Takes[list[P], Any], *, payload: Given[P], **options: Unpack[EveryOptions]
        ) -> MadeT: ...
        @overload
        def __call__(
            self, name: str, function: TakesTurned[list[P], Any], *, payload: Given[P], **options: Unpack[EveryOptions]
        ) -> MadeT: ...

    class Method(Protocol[CallT]):
        """A method that is such a call."""

        def __get__(self, instance: object, owner: type | None = None, /) -> CallT: ...

    def enqueue(method: Callable[..., Any], /) -> Method[Enqueue]: ...
    def async_enqueue(method: Callable[..., Any], /) -> Method[AsyncEnqueue]: ...
    def enqueue_many(method: Callable[..., Any], /) -> Method[EnqueueMany]: ...
    def async_enqueue_many(method: Callable[..., Any], /) -> Method[AsyncEnqueueMany]: ...
    def repeat(method: Callable[..., MadeT], /) -> Method[Repeat[MadeT]]: ...

else:

    def _as_it_is(method: Any) -> Any:
        return method

    enqueue = async_enqueue = enqueue_many = async_enqueue_many = repeat = _as_it_is
