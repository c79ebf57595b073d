"""What the handler of an `echod run` is given: what it would get from the job that the same call makes over HTTP.

The gateway's own code judges the call and makes the job, so payload, lane and request are those that come that way.
Only a signature is not asked for, and nothing is minted.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from echod.errors import EchodError, InvalidPayload, Refused
from echod.model.ids import JobId
from echod.model.job import Mint
from echod.policy import calls, deliveries, signatures
from echofn import delivery
from echofn.manifest import Function, Manifest, WebhookTrigger
from echofn.signature import Shape

NO_JOB = JobId("JOB00000000000")  # it is in no bus


class Call(msgspec.Struct, frozen=True, array_like=True):
    """What is called, and with what. The fields of a request are None, or empty, where none were named."""

    name: str
    env: str
    data: bytes | None
    headers: list[tuple[bytes, bytes]]
    method: str | None
    path: str | None
    query: str | None

    @property
    def is_request(self) -> bool:
        return bool(self.headers) or (self.method, self.path, self.query) != (None, None, None)


def job_of(call: Call, function: Function, shape: Shape) -> Mint:
    """The job that the call would make: of a request where only a webhook starts the function, or one was asked for.

    Raises Refused.
    """
    hooks = [trigger for trigger in function.triggers if isinstance(trigger, WebhookTrigger)]
    if call.is_request and not hooks:
        raise Refused(f"--header, --method, --path, --query: expected a @webhook on {call.name}, got none")
    if hooks and (
        call.is_request or len(hooks) == len(function.triggers) or delivery.names_request(shape.payload_type)
    ):
        return _of_request(call, function, [hook.path for hook in hooks])
    return _of_payload(call, function)


def _of_payload(call: Call, function: Function) -> Mint:
    from echod.gateway.payloads import payload_in, stored
    from echod.registry.schemas import Schemas
    from echofn.codec import NIL

    data = b"null" if call.data is None else call.data
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise Refused(f"--data: expected JSON, got {data[:60].decode(errors='replace')!r} ({error})") from None
    try:
        given = payload_in(value, is_json=True)
        payload = stored(function.default_payload) if given.packed == NIL else given
        Schemas().check("", function, payload.seen, len(payload.packed))
        return calls.mint_of(function, calls.Call(value=payload.value, packed=payload.packed), NO_JOB)
    except InvalidPayload as error:
        raise Refused(f"payload does not fit {call.name}: {error}") from None
    except EchodError as error:
        raise Refused(f"--data: {error}") from None


def _of_request(call: Call, function: Function, patterns: list[str]) -> Mint:
    from starlette.requests import Request

    from echod.gateway.webhooks import Delivered, found_among, hooks_of, mint_of

    if call.path is None and "{" in patterns[0]:
        raise Refused(f"--path: expected one like {patterns[0]}, with its names filled in")
    path, mark, query = (patterns[0] if call.path is None else call.path).partition("?")
    if mark and call.query is not None:
        raise Refused(f"--query: expected it here or in --path, got {call.query!r} and {query!r}")
    method = (call.method or deliveries.METHODS[0]).upper()
    if method not in deliveries.METHODS:
        raise Refused(f"--method: expected {', '.join(deliveries.METHODS)}, got {method!r}")
    query = query if call.query is None else call.query
    try:
        deliveries.query_of(query)
    except ValueError as error:
        raise Refused(f"--query: {error}") from None
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": call.headers}
    request = Request(scope)
    found = found_among(hooks_of(Manifest("", (function,))), request) if path.startswith("/") else None
    if found is None:
        raise Refused(f"--path: expected {' or '.join(patterns)}, got {path!r}")
    how = found.hook.trigger.verify
    delivered = Delivered(request, found.params, call.data or b"", signatures.withheld(how))
    if deliveries.challenge_of(how, delivered.said) is not None:
        raise Refused("--data: expected an event, got Slack's question who is there: it is answered without a job")
    try:
        return mint_of(found.hook, delivered, NO_JOB, Counter())
    except EchodError as error:  # too much of it
        raise Refused(f"the request: {error}") from None
