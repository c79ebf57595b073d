"""How a handler is called: which parameter takes the payload, which the context, and of what types."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from echofn.annotations import is_batched, marks_of
from echofn.context import Context
from echofn.quoting import hidden, quoted

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
EMPTY = inspect.Parameter.empty
_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Refused(Exception):
    """Why a function cannot be taken; the text says expected, got, do."""


class Shape(NamedTuple):
    """`call(payload, ctx)` calls the function with the parameters it has.

    `default` is what the payload's parameter says (`= Invoice(0)`), else inspect's `empty`: it is the payload of a job
    that is minted without one. A batched one is called with a list of payloads and returns a list of results; the types
    are those of one of them, and it has no default.
    """

    call: Callable[[Any, Any], Any]
    takes_payload: bool
    takes_context: bool
    payload_type: Any  # typing.Any where nothing is said
    result_type: Any
    is_batched: bool = False
    default: Any = EMPTY

    @property
    def has_default(self) -> bool:
        return self.default is not EMPTY


def why_no_function(target: Any) -> str | None:
    """Why something annotated is no plain function of a module; None where it is one."""
    if inspect.isclass(target):
        return "expected a plain function, got a class; annotate a function of the module"
    if not inspect.isfunction(target):
        return f"expected a plain function, got {type(target).__name__:.100}; annotate a function of the module"
    inner = inspect.unwrap(target)
    for function in (target, inner):
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            return "expected a plain function, got a generator; return a value instead of yielding"
    if target.__name__ == "<lambda>":
        return "expected a plain function, got a lambda; write it with def"
    if "<locals>" in target.__qualname__:
        return (
            "expected a function of the module, got a nested one; move it out, or use functools.wraps in its decorator"
        )
    if "." in target.__qualname__:
        return "expected a function of the module, got a method; move it out of its class"
    return None


def shape_of(function: Callable[..., Any]) -> Shape:
    """The shape of a handler: no parameter, a payload, a context, or both, in either order. Raises Refused."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise Refused(f"expected a plain function, got one without a signature ({error})") from None
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    payload: inspect.Parameter | None = None
    context: inspect.Parameter | None = None
    payload_type: Any = Any
    for parameter in signature.parameters.values():
        if parameter.kind in _STARRED:
            raise Refused(f"expected a payload and a ctx at most, got {parameter}; name them, or use functools.wraps")
        try:
            kind = resolved(parameter.annotation, scope)
        except Exception as error:
            if parameter.name != "ctx":
                raise Refused(
                    f"expected a type known at run time for {parameter.name}, got {quoted(parameter.annotation)} "
                    f"({error}); import it outside TYPE_CHECKING"
                ) from None
            kind = Context
        if context is None and (parameter.name == "ctx" or _is_context(kind)):
            context = parameter
        elif payload is None:
            payload, payload_type = parameter, kind
        else:
            raise Refused(f"expected 0, 1 or 2 parameters (payload and ctx), got {signature}")
    try:
        result_type = resolved(signature.return_annotation, scope)
    except Exception:
        result_type = Any  # only shown to people; a run does not depend on it
    call = _caller(function, payload, context, list(signature.parameters.values()))
    if is_batched(function):
        if payload is None:
            raise Refused("batch=: expected a parameter for the list of payloads, got none")
        payload_type, result_type = _member(payload_type, payload.name), _member_or_any(result_type)
        return Shape(call, True, context is not None, payload_type, result_type, is_batched=True)
    default = EMPTY if payload is None else payload.default
    if default is None and payload_type is not Any:
        payload_type = typing.Optional[payload_type]  # noqa: UP045 # of any type, as text of one may be
    return Shape(call, payload is not None, context is not None, payload_type, result_type, default=default)


def own_payload(function: Callable[..., Any]) -> Any:
    """What jobs of a function carry that are made without a payload: `@queue(payload=…)`, else the parameter's default.

    Raises Refused.
    """
    for mark in marks_of(function):
        if mark.kind == "queue" and "payload" in mark.options:
            return mark.options["payload"]
    default = shape_of(function).default
    return None if default is EMPTY else default


def _member(kind: Any, name: str) -> Any:
    """What a list holds."""
    if kind is Any or kind is list:
        return Any
    if typing.get_origin(kind) is not list:
        shown = kind.__name__ if isinstance(kind, type) else str(kind)
        raise Refused(
            f"batch=: expected list[…] or no type for {name}, got {hidden(shown, 100)}; a batch comes as a list"
        )
    return typing.get_args(kind)[0]


def _member_or_any(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is list else Any


def resolved(annotation: Any, scope: dict[str, Any]) -> Any:
    """An annotation as a type: text is evaluated in the handler's module. Raises whatever that raises."""
    if annotation is inspect.Parameter.empty:
        return Any

    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    return typing.get_type_hints(holder, globalns=scope, include_extras=True)["it"]


def _is_context(kind: Any) -> bool:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return any(map(_is_context, typing.get_args(kind)))
    return kind is Context or typing.get_origin(kind) is Context


def _caller(
    function: Callable[..., Any],
    payload: inspect.Parameter | None,
    context: inspect.Parameter | None,
    order: list[inspect.Parameter],
) -> Callable[[Any, Any], Any]:
    if any(parameter.kind is _KEYWORD for parameter in order):
        return lambda p, c: function(
            *[p if parameter is payload else c for parameter in order if parameter.kind is not _KEYWORD],
            **{parameter.name: p if parameter is payload else c for parameter in order if parameter.kind is _KEYWORD},
        )
    if payload and context:
        if order[0] is payload:
            return function
        return lambda p, c: function(c, p)
    if payload:
        return lambda p, _: function(p)
    if context:
        return lambda _, c: function(c)
    return lambda _p, _c: function()
