"""A request to a webhook's path becomes a job: verified over its raw bytes, kept as it came.

A sender has no token: its signature is one, and who does not verify learns that and no more. 2xx means minted. The
same delivery again, at once or within 24 hours, is answered with the first job's id. What only sorts a job (a lane that
is an object) never refuses one: a lost webhook is worse than one in the wrong lane, so it is counted instead.

The manifest names the secrets; their values come from this process's own environment and go nowhere.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from echod.errors import EchodError, Refused
from echod.gateway import problems
from echod.gateway.desk import Desk, answer
from echod.gateway.invoke import accepted
from echod.gateway.problems import Problem
from echod.model.ids import JobId
from echod.model.job import NO_LANE, Mint, Unique
from echod.policy import addresses, deliveries, paths, signatures
from echod.policy.deliveries import METHODS, challenge_of, delivery_of
from echofn import request as raw
from echofn.frames import MAX_PAYLOAD_BYTES
from echofn.manifest import Function, Manifest, WebhookTrigger

DELIVERY_MS = 24 * 3_600_000
MAX_ENVELOPE_BYTES = MAX_PAYLOAD_BYTES + 64 * 1024  # a body, and what came around it


class Hook(NamedTuple):
    """One webhook of the active version."""

    function: Function
    trigger: WebhookTrigger


class Found(NamedTuple):
    """The webhook at a path, and what the names in its pattern stand for."""

    hook: Hook
    params: dict[str, str]


def hooks_of(manifest: Manifest) -> tuple[Hook, ...]:
    """Every webhook of a version."""
    return tuple(
        Hook(function, trigger)
        for function in manifest.functions
        for trigger in function.triggers
        if isinstance(trigger, WebhookTrigger)
    )


def found_at(desk: Desk, request: Request) -> Found | None:
    """The webhook whose path this is. Before any version is known nobody can tell: 503, and the sender comes again."""
    if request.method in METHODS:
        desk.active()
    active = desk.registry.active
    return found_among(hooks_of(active.manifest) if active else (), request)


def found_among(hooks: Sequence[Hook], request: Request) -> Found | None:
    """The one of these whose path a request came to."""
    asked = _decoded_segments(request)
    match = addresses.match([hook.trigger.path for hook in hooks], asked) if asked is not None else None
    return Found(hooks[match.index], match.params) if match else None


async def take(desk: Desk, request: Request, found: Found) -> Response:
    """Answer a request to a webhook's path, and count how it went."""
    outcome = "failed"
    try:
        response, outcome = await _taken(desk, request, found)
    except EchodError as error:
        outcome = problems.of(error).slug
        raise
    finally:
        desk.counts.deliveries[found.hook.function.name, outcome] += 1
    return response


async def _taken(desk: Desk, request: Request, found: Found) -> tuple[Response, str]:
    function, trigger = found.hook
    version = desk.active().version
    check_form(request)
    secrets = _secrets(desk, trigger)
    withheld = signatures.withheld(trigger.verify)
    delivered = Delivered(request, found.params, await request.body(), withheld)
    now_s = desk.bus.clock.now_ms() / 1000
    proof = signatures.verify(trigger.verify, delivered.body, delivered.headers, secrets, now_s)
    if isinstance(proof, signatures.Unverified):
        raise Problem("unverified", proof.why, headers=_asked_for(trigger))
    if (challenge := challenge_of(trigger.verify, delivered.said)) is not None:
        return answer({"challenge": challenge}), "challenge"
    mint = mint_of(found.hook, delivered, desk.bus.new_job_id(), desk.counts.unfit)
    minted = await desk.bus.mint_outside(function.name, mint)
    told = {"Echo-Version": version} if trigger.verify else {}  # whoever verifies is no stranger
    return await accepted(desk, function.name, minted, False, told), "repeated" if minted.duplicate else "minted"


def mint_of(hook: Hook, delivered: Delivered, id: JobId, unfit: Counter[tuple[str, str]]) -> Mint:
    """The job of a request that may come in; `unfit` counts the functions and options whose path led to no text."""
    return Mint(
        id=id,
        payload=delivered.envelope(),
        lane=_picked(hook, delivered, "lane", unfit) or NO_LANE,
        priority=hook.function.policy.priority,
        unique=_unique(hook, delivered, unfit),
    )


def check_form(request: Request) -> None:
    """Raise the problem of a method that no webhook takes."""
    if request.method not in METHODS:
        said = f"expected {', '.join(METHODS)}, got {request.method[:20]}: this is the address of a webhook"
        raise Problem("wrong-method", said, headers={"Allow": ", ".join(METHODS)})


def _secrets(desk: Desk, trigger: WebhookTrigger) -> list[str]:
    """The secrets that are set here; while one is rotated, one is enough."""
    if trigger.verify is None:
        return []
    found = [value for name in trigger.secrets if (value := desk.environ.get(name))]
    usable = [value for value in found if signatures.is_usable(trigger.verify, value)]
    if not usable:
        names = ", ".join(trigger.secrets)
        lack = "a secret of base64" if found else "its secret in the environment"
        raise Problem("webhook-disabled", f"{trigger.path} expects {lack}: set {names} where the gateway runs")
    return usable


def _asked_for(trigger: WebhookTrigger) -> dict[str, str]:
    """A 401 says how to authenticate (RFC 9110, 15.5.2); signatures have no registered name."""
    scheme = {"bearer": "Bearer", "basic": "Basic"}.get(str(trigger.verify), "Signature")
    return {"WWW-Authenticate": f'{scheme} realm="webhook"'}


class Delivered:
    """A request that was read whole."""

    def __init__(self, request: Request, params: dict[str, str], body: bytes, withheld: frozenset[str]) -> None:
        self.headers: signatures.RawHeaders = request.headers.raw
        self.body = body
        self.segments = _decoded_segments(request) or ()
        self.query_string: bytes = request.scope["query_string"]
        self._request = request
        self._params = params
        self._withheld = withheld  # headers that nobody shall see
        self._decoded: tuple[object] | None = None

    def decoded(self) -> object:
        """The body as JSON or form; None where it is neither. Read at most once, and only if somebody asks."""
        if self._decoded is None:
            try:
                value = raw.decoded(self.body, self._request.headers.get("content-type", ""))
            except (ValueError, RecursionError):
                value = None
            self._decoded = (value,)
        return self._decoded[0]

    def said(self) -> object:
        """The body as JSON, whatever the headers call it, as they are not signed; None where it is none."""
        try:
            return raw.decoded(self.body, "")
        except (ValueError, RecursionError):
            return None

    @cached_property
    def place(self) -> str:
        """The path it came to in its one spelling, without spaces."""
        return "".join("/" + quote(segment, safe="") for segment in self.segments)

    @cached_property
    def query(self) -> dict[str, str | list[str]]:
        """By name: a value, or a list of what came several times."""
        try:
            return deliveries.query_of(self.query_string.decode("latin-1"))
        except ValueError as error:
            raise Problem("bad-request", str(error)) from None

    @cached_property
    def kept_headers(self) -> dict[str, str]:
        """Headers by name in lower case, without credentials; one that came several times is joined with commas."""
        return deliveries.kept(self.headers, self._withheld)

    def envelope(self) -> bytes:
        """The job's payload: the raw request."""
        packed = msgspec.msgpack.encode(
            {
                "method": self._request.method,
                "path": "/" + "/".join(self.segments),
                "params": self._params,
                "query": self.query,
                "headers": self.kept_headers,
                "body": self.body,
            }
        )
        if len(packed) > MAX_ENVELOPE_BYTES:
            raise Problem("too-large", f"expected at most {MAX_ENVELOPE_BYTES} bytes with headers, got {len(packed)}")
        return packed

    def at(self, path: str) -> str | None:
        """The text at a path into the request; None where nothing is there. Raises Refused for an object or a list."""
        root: object
        match path.partition(".")[0]:
            case "json":
                root = self.decoded()
            case "headers":
                root = self.kept_headers
            case "query":
                root = {name: value[-1] if isinstance(value, list) else value for name, value in self.query.items()}
            case _:
                root = self._params
        text = paths.walk({path.partition(".")[0]: root}, path)
        return None if text is None else text.encode("utf-8", "backslashreplace").decode()  # lone surrogates of JSON


def _picked(hook: Hook, delivered: Delivered, option: str, unfit: Counter[tuple[str, str]]) -> str | None:
    """What `lane` or `unique` finds; nothing, and counted, where an object or a list lies."""
    path = getattr(hook.trigger, option)
    if not isinstance(path, str):
        return None
    try:
        return delivered.at(path) or None
    except Refused:
        unfit[hook.function.name, option] += 1
        return None


def _unique(hook: Hook, delivered: Delivered, unfit: Counter[tuple[str, str]]) -> Unique | None:
    """The function's own key, else the sender's delivery id for 24 hours.

    Under the path it came to: what two tenants of `/hooks/{tenant}` send may have one id.
    """
    trigger = hook.trigger
    if trigger.unique is True:
        digest = hashlib.sha256(delivered.query_string + b" " + delivered.body).hexdigest()
        return Unique(f"hook:body:{delivered.place} {digest}", until=trigger.until)
    if (own := _picked(hook, delivered, "unique", unfit)) is not None:
        return Unique(f"hook:own:{delivered.place} {own}", until=trigger.until)
    delivery = delivery_of(trigger.verify, delivered.headers, delivered.body, delivered.said)
    return None if delivery is None else Unique(f"hook:id:{delivered.place} {delivery}", until=DELIVERY_MS)


def _decoded_segments(request: Request) -> tuple[str, ...] | None:
    """The path's segments as they read; None where they are no UTF-8."""
    try:
        return tuple(unquote(part, errors="strict") for part in addresses.segments(request.scope["path"]))
    except UnicodeDecodeError:
        return None
