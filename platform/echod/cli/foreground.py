"""The process behind `echod run`: imports a folder as it lies there and calls one function, once."""

from __future__ import annotations

import contextlib
import contextvars
import difflib
import inspect
import logging
import sys
import time
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

import msgspec

from echod.cli.given import Call, job_of
from echod.deploy.checks import checked
from echod.deploy.defaults import FILE, defaults_of
from echod.deploy.snapshot import module_of
from echod.errors import Refused
from echod.model.job import Mint
from echofn import codec, delivery
from echofn.batches import results
from echofn.children import Children
from echofn.context import Context
from echofn.describe import Given, describe
from echofn.discovery_protocol import Described, Module, declared
from echofn.frames import MAX_RESULT_BYTES, Job
from echofn.lifespans import Lifespan, has_lifespan, state_of
from echofn.manifest import Function, Manifest
from echofn.masking import Mask
from echofn.package import Folder
from echofn.run import Loop
from echofn.signature import Shape, shape_of
from echofn.units import duration_text
from echofn.verdicts import Verdict


def main(folder: str, package: str, call: Call) -> int:
    """Make the call; print the result. 1: the handler failed, 2: there is no such function, or none to call so."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    finder = Folder(str(Path(folder).parent), package)
    finder.path = folder  # the package's name may be the folder's made an identifier
    finder.install()
    _from_the_folder(folder)
    try:
        function = _found(finder, call)
        shape = shape_of(getattr(sys.modules[f"{package}.{function.module}"], function.attribute))
        mint = job_of(call, function, shape)
        payload = _payload(mint, shape)
    except codec.Unfit as error:
        print(f"echod: payload does not fit {call.name}: {error}", file=sys.stderr)
        return 2
    except Refused as error:
        print(f"echod: {error}", file=sys.stderr)
        return 2
    children, loop = Children(0, package, int(time.time() * 1000)), Loop()
    try:
        with _lived(function, finder, loop) as state:
            ctx = _context(function, mint, call.env, children, state) if shape.takes_context else None
            result = shape.call([payload] if shape.is_batched else payload, ctx)
            if inspect.iscoroutine(result):
                result = loop.run(result, contextvars.copy_context())
        stored = codec.encode(_result(result) if shape.is_batched else result, MAX_RESULT_BYTES, "result")
    except (Verdict, codec.Unfit) as error:
        print(f"echod: {_said(error)}", file=sys.stderr)
        return 1
    for child in children.close():
        print(f"echod: would enqueue {child.function} {_json(child.payload)}", file=sys.stderr)
    print(_json(stored))
    return 0


def _said(error: Verdict | codec.Unfit) -> str:
    """How a run ended that has no result: "Snooze after 10m: the oven is cold"."""
    after_ms = getattr(error, "after_ms", None)
    told = type(error).__name__ + (f" after {duration_text(after_ms)}" if isinstance(after_ms, int) else "")
    return f"{told}: {error}" if str(error) else told


def _result(value: Any) -> Any:
    """The one result of a batch of one. Raises Unfit, and the exception that stands for it."""
    [result] = results(value, 1)
    if isinstance(result, BaseException):
        raise result
    return result


def _payload(mint: Mint, shape: Shape) -> Any:
    """The job's payload as a worker makes it the handler's. Raises Unfit."""
    payload = codec.decode(mint.payload)
    if not shape.takes_payload:
        return None
    if delivery.is_request(payload):
        return delivery.delivered(payload, shape.payload_type)
    return payload if shape.payload_type is Any else codec.convert(payload, shape.payload_type)


def _found(finder: Folder, call: Call) -> Function:
    """The function that is called, as a version has it: looked for in the module that its name says, then in the others
    (`@queue(name=…)`). Raises Refused, and what the import of its module raises.
    """
    name, folder = call.name, Path(finder.path)
    toml = folder / FILE
    defaults = defaults_of({FILE: toml.read_bytes()} if toml.exists() else {})
    files = {module: path for path in sorted(folder.rglob("*.py")) if (module := module_of(_inside(path, folder)))}
    names, wrong = set[str](), list[str]()
    for module in sorted(files, key=lambda module: not _is_likely(module, name)):
        try:
            loaded = finder.load(module)
        except Exception as error:
            if _is_likely(module, name):
                raise
            wrong.append(f"{module} does not load: {type(error).__name__}: {error}")
            continue
        path = files[module]
        given = Given(finder, declared(path.read_bytes()).secrets, defaults.policy, call.env)
        found = describe(loaded, Module(module, _inside(path, folder)), given)
        manifest = checked(Manifest("", found.functions, found.errors))
        for function in manifest.functions:
            if function.name == name:
                return function
        _refuse_if_off(found, call)
        names |= {function.name for function in manifest.functions}
        wrong += [f"{error.file}:{error.line or '?'}: {error.message}" for error in manifest.errors]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"found: {', '.join(sorted(names)) or 'none'}"
    raise Refused("\n".join([f"no function {name!r} in {folder}; {hint}", *wrong]))


def _inside(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _is_likely(module: str, name: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def _refuse_if_off(found: Described, call: Call) -> None:
    off = next((off for off in found.off if off.function == call.name), None)
    if off is not None:
        said = f"{call.name} is off in {call.env}: @{off.kind} ({off.file}:{off.line}) has {off.why}"
        raise Refused(f"{said}; name another with --env" if "env=" in off.why else said)


def _json(packed: bytes) -> str:
    return msgspec.json.encode(codec.decode(packed)).decode()


@contextlib.contextmanager
def _lived(function: Function, finder: Folder, loop: Loop) -> Generator[Any]:
    """What the function's context has as its state, while its module's lifespan lasts."""
    module = sys.modules[f"{finder.package}.{function.module}"]
    if not has_lifespan(module):
        yield state_of(function.file, None)
        return
    lifespan = Lifespan(module, function.file)
    try:
        yield lifespan.enter(loop)
    finally:
        lifespan.leave(loop, finder, Mask(()))


def _context(function: Function, mint: Mint, env: str, children: Children, state: object) -> Context:
    """A context that stands on nothing: this is the first attempt of a job that is in no bus."""
    now_ms, policy = int(time.time() * 1000), function.policy
    job = Job(
        id=mint.id,
        payload=mint.payload,
        attempt=1,
        last_attempt=policy.retries == 0,
        fence=1,
        lane=mint.lane,
        due_ms=now_ms,
        previous_ms=None,
        next_ms=None,
        timeout_ms=policy.timeout_ms,
        first_child=0,
    )
    session = SimpleNamespace(
        function=function, version="", env=env, logger=logging.getLogger(function.name), state=state
    )
    run: Any = SimpleNamespace(
        job=job, session=session, now_ms=now_ms, children=children, progress=_progress,
        extend=_extend, extended_ms=0, is_asked=lambda: False, members=((None, job),),
    )  # fmt: skip
    return Context(run)


def _from_the_folder(folder: str) -> None:
    """Have what is not caught told from the author's own code on, and nothing of a debugger that was left by `q`."""

    def told(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
        inner = at
        while inner is not None and not inner.tb_frame.f_code.co_filename.startswith(folder):
            inner = inner.tb_next
        if inner is None and kind is KeyboardInterrupt:
            print("echod: interrupted", file=sys.stderr)
        elif kind.__name__ != "BdbQuit":
            sys.__excepthook__(kind, error.with_traceback(inner or at), inner or at)

    sys.excepthook = told


def _extend(_by_ms: int) -> None:
    """Nothing ends this run but its caller."""


def _progress(fraction: float, note: str, *, at_once: bool) -> None:
    if at_once:
        print(f"echod: {fraction:.0%} {note}", file=sys.stderr)


if __name__ == "__main__":
    with open(int(sys.argv[3]), "rb") as given:
        wanted = msgspec.msgpack.decode(given.read(), type=Call)
    sys.exit(main(sys.argv[1], sys.argv[2], wanted))
