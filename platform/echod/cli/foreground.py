"""The process behind `echod run`: imports a folder as it lies there and calls one function, once."""

from __future__ import annotations

import contextlib
import contextvars
import difflib
import inspect
import logging
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import msgspec

from echod.policy import addresses, deliveries
from echod.policy.signatures import withheld
from echofn import codec, delivery
from echofn.annotations import marks_of, name_of
from echofn.batches import results
from echofn.children import Children
from echofn.context import Context
from echofn.frames import MAX_PAYLOAD_BYTES, MAX_RESULT_BYTES, Job
from echofn.lifespans import Lifespan, has_lifespan, state_of
from echofn.manifest import WebhookTrigger
from echofn.masking import Mask
from echofn.options import Reading
from echofn.package import Folder
from echofn.run import Loop
from echofn.signature import own_payload, shape_of
from echofn.verdicts import Verdict
from echofn.webhooks import read_webhook


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


class Unusable(Exception):
    """Why this cannot be called so; the text says expected, got, do."""


def main(folder: str, package: str, call: Call) -> int:
    """Make the call; print the result. 1: the handler failed, 2: there is no such function, or none to call so."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    finder = Folder(str(Path(folder).parent), package)
    finder.path = folder  # the package's name may be the folder's made an identifier
    finder.install()
    function = _found(finder, call.name)
    if function is None:
        return 2
    shape = shape_of(function)
    try:
        payload = _payload(call, function, shape.payload_type)
    except codec.Unfit as error:
        print(f"echod: payload does not fit {call.name}: {error}", file=sys.stderr)
        return 2
    except Unusable as error:
        print(f"echod: {error}", file=sys.stderr)
        return 2
    children, loop = Children(0, package), Loop()
    try:
        with _lived(function, finder, loop) as state:
            ctx = _context(call.name, call.env, children, state) if shape.takes_context else None
            result = shape.call([payload] if shape.is_batched else payload, ctx)
            if inspect.iscoroutine(result):
                result = loop.run(result, contextvars.copy_context())
        stored = codec.encode(_result(result) if shape.is_batched else result, MAX_RESULT_BYTES, "result")
    except (Verdict, codec.Unfit) as error:
        print(f"echod: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    for child in children.close():
        print(f"echod: would enqueue {child.function} {_json(child.payload)}", file=sys.stderr)
    print(_json(stored))
    return 0


def _result(value: Any) -> Any:
    """The one result of a batch of one. Raises Unfit, and the exception that stands for it."""
    [result] = results(value, 1)
    if isinstance(result, BaseException):
        raise result
    return result


def _payload(call: Call, function: Callable[..., Any], kind: Any) -> object:
    """What the handler gets: a request where nothing but a webhook starts it, or one was asked for.

    Raises Unusable, Unfit.
    """
    marks = marks_of(function)
    hooks = [read_webhook(Reading(mark), frozenset()) for mark in reversed(marks) if mark.kind == "webhook"]
    if call.is_request and not hooks:
        raise Unusable(f"--header, --method, --path, --query: expected a @webhook on {call.name}, got none")
    if hooks and (call.is_request or len(hooks) == len(marks) or delivery.names_request(kind)):
        return delivery.delivered(_request(call, hooks), kind)
    data = b"null" if call.data is None else call.data
    try:
        payload = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unusable(f"--data: expected JSON, got {data[:60].decode(errors='replace')!r} ({error})") from None
    if payload is None:
        payload = codec.decode(codec.encode(own_payload(function), MAX_PAYLOAD_BYTES, "payload"))
    return payload if kind is Any else codec.convert(payload, kind)


def _request(call: Call, hooks: Sequence[WebhookTrigger]) -> dict[str, Any]:
    """The raw request, as the gateway would mint it once it was verified. Raises Unusable."""
    patterns = [hook.path for hook in hooks]
    if call.path is None and "{" in patterns[0]:
        raise Unusable(f"--path: expected one like {patterns[0]}, with its names filled in")
    path = patterns[0] if call.path is None else call.path
    segments = [unquote(segment) for segment in addresses.segments(path)]
    match = addresses.match(patterns, segments) if path.startswith("/") else None
    if match is None:
        raise Unusable(f"--path: expected {' or '.join(patterns)}, got {path!r}")
    method = (call.method or deliveries.METHODS[0]).upper()
    if method not in deliveries.METHODS:
        raise Unusable(f"--method: expected {', '.join(deliveries.METHODS)}, got {method!r}")
    try:
        query = deliveries.query_of(call.query or "")
    except ValueError as error:
        raise Unusable(f"--query: {error}") from None
    return {
        "method": method,
        "path": "/" + "/".join(segments),
        "params": match.params,
        "query": query,
        "headers": deliveries.kept(call.headers, withheld(hooks[match.index].verify)),
        "body": call.data or b"",
    }


def _found(finder: Folder, name: str) -> Callable[..., Any] | None:
    """The function called `name`: in the module that its name says, else in any (`@queue(name=…)`)."""
    from echod.deploy.snapshot import module_of

    paths = (str(path.relative_to(finder.path)) for path in sorted(Path(finder.path).rglob("*.py")))
    modules = [module for path in paths if (module := module_of(path))]
    likely = [module for module in modules if name == module or name.startswith(f"{module}.")]
    names: list[str] = []
    for module in likely or modules:
        for value in vars(finder.load(module)).values():
            if inspect.isfunction(value) and any(mark.kind != "lifespan" for mark in marks_of(value)):
                names.append(name_of(value, finder.package))
                if names[-1] == name:
                    return value
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"found: {', '.join(sorted(set(names))) or 'none'}"
    print(f"echod: no function {name!r} in {finder.path}; {hint}", file=sys.stderr)
    return None


def _json(packed: bytes) -> str:
    return msgspec.json.encode(codec.decode(packed)).decode()


@contextlib.contextmanager
def _lived(function: Callable[..., Any], finder: Folder, loop: Loop) -> Generator[Any]:
    """What the function's context has as its state, while its module's lifespan lasts."""
    module = sys.modules[function.__module__]
    file = finder.relative(str(module.__file__)) or function.__module__
    if not has_lifespan(module):
        yield state_of(file, None)
        return
    lifespan = Lifespan(module, file)
    try:
        yield lifespan.enter(loop)
    finally:
        lifespan.leave(loop, finder, Mask(()))


def _context(name: str, env: str, children: Children, state: object) -> Context:
    """A context that stands on nothing: this is the first attempt of a job that is in no bus."""
    now_ms = int(time.time() * 1000)
    job = Job(
        id="JOB00000000000",
        payload=codec.NIL,
        attempt=1,
        last_attempt=True,
        fence=1,
        lane="-",
        due_ms=now_ms,
        previous_ms=None,
        next_ms=None,
        timeout_ms=60_000,
        first_child=0,
    )
    session = SimpleNamespace(
        function=SimpleNamespace(name=name), version="", env=env, logger=logging.getLogger(name), state=state
    )
    run: Any = SimpleNamespace(
        job=job, session=session, now_ms=now_ms, children=children, progress=_progress,
        extend=_extend, extended_ms=0, is_asked=lambda: False, members=((None, job),),
    )  # fmt: skip
    return Context(run)


def _extend(_by_ms: int) -> None:
    """Nothing ends this run but its caller."""


def _progress(fraction: float, note: str, *, at_once: bool) -> None:
    if at_once:
        print(f"echod: {fraction:.0%} {note}", file=sys.stderr)


if __name__ == "__main__":
    with open(int(sys.argv[3]), "rb") as given:
        wanted = msgspec.msgpack.decode(given.read(), type=Call)
    sys.exit(main(sys.argv[1], sys.argv[2], wanted))
