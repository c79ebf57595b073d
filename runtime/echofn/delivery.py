"""A webhook job's payload as its handler's parameter: the raw `Request`, or its body as the type asked for."""

from __future__ import annotations

import types
import typing
from typing import Any

from echofn import codec, request
from echofn.request import Request

_SHAPES: dict[str, type | tuple[type, ...]] = {
    "method": str, "path": str, "params": dict, "query": dict, "headers": dict, "body": bytes,
}  # fmt: skip


def takes_request(kind: Any) -> bool:
    """Whether a parameter of this type gets the raw request: one typed so, or not typed at all."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return Request in typing.get_args(kind)
    return kind is Any or kind is object or kind is Request


def names_request(kind: Any) -> bool:
    """Whether the type says `Request`, by itself or in a union."""
    return kind is Request or (kind is not Any and kind is not object and takes_request(kind))


def is_request(payload: Any) -> bool:
    """Whether a payload is a raw request, as the gateway mints them; JSON cannot say one, as it has no bytes."""
    if not isinstance(payload, dict):
        return False
    fields: dict[Any, Any] = {**payload}
    return fields.keys() == request.ENVELOPE and all(isinstance(fields[name], shape) for name, shape in _SHAPES.items())


def delivered(payload: dict[str, Any], kind: Any) -> Any:
    """A raw request as `kind`. Raises Unfit when its body is not that."""
    got = Request(
        payload["method"],
        payload["path"],
        params=payload["params"],
        query=payload["query"],
        headers=payload["headers"],
        body=payload["body"],
    )
    if takes_request(kind):
        return got
    if kind is bytes:
        return got.body
    content_type = got.headers.get("content-type", "")
    try:
        if kind is str:
            return got.text()
        value = request.decoded(got.body, content_type)
    except ValueError as error:
        raise codec.Unfit(f"the body: {error}") from None
    return codec.convert(value, kind, strict=request.media_type(content_type) != request.FORM)
