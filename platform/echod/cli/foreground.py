"""The process behind `echod run`: imports a folder as it lies there and calls one function, once."""

from __future__ import annotations

import asyncio
import difflib
import inspect
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from echofn import codec
from echofn.annotations import marks_of, name_of
from echofn.children import Children
from echofn.context import Context
from echofn.frames import MAX_RESULT_BYTES, Job
from echofn.package import Folder
from echofn.signature import shape_of
from echofn.verdicts import Verdict


def main(folder: str, package: str, name: str, env: str, data: str) -> int:
    """Call `name` with the JSON `data`; print the result. 1: the handler failed, 2: there is no such function."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    finder = Folder(str(Path(folder).parent), package)
    finder.path = folder  # the package's name may be the folder's made an identifier
    finder.install()
    function = _found(finder, name)
    if function is None:
        return 2
    shape = shape_of(function)
    payload = msgspec.json.decode(data)
    if shape.takes_payload and shape.payload_type is not Any:
        try:
            payload = codec.convert(payload, shape.payload_type)
        except codec.Unfit as error:
            print(f"echod: payload does not fit {name}: {error}", file=sys.stderr)
            return 2
    children = Children(0, package)
    try:
        result = shape.call(payload, _context(name, env, children) if shape.takes_context else None)
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        stored = codec.encode(result, MAX_RESULT_BYTES, "result")
    except (Verdict, codec.Unfit) as error:
        print(f"echod: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    for child in children.close():
        print(f"echod: would enqueue {child.function} {_json(child.payload)}", file=sys.stderr)
    print(_json(stored))
    return 0


def _found(finder: Folder, name: str) -> Callable[..., Any] | None:
    """The function called `name`: in the module that its name says, else in any (`@queue(name=…)`)."""
    from echod.deploy.snapshot import module_of

    paths = (str(path.relative_to(finder.path)) for path in sorted(Path(finder.path).rglob("*.py")))
    modules = [module for path in paths if (module := module_of(path))]
    likely = [module for module in modules if name == module or name.startswith(f"{module}.")]
    names: list[str] = []
    for module in likely or modules:
        for value in vars(finder.load(module)).values():
            if inspect.isfunction(value) and marks_of(value):
                names.append(name_of(value, finder.package))
                if names[-1] == name:
                    return value
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}?" if near else f"found: {', '.join(sorted(set(names))) or 'none'}"
    print(f"echod: no function {name!r} in {finder.path}; {hint}", file=sys.stderr)
    return None


def _json(packed: bytes) -> str:
    return msgspec.json.encode(codec.decode(packed)).decode()


def _context(name: str, env: str, children: Children) -> Context:
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
    session = SimpleNamespace(function=SimpleNamespace(name=name), version="", env=env, logger=logging.getLogger(name))
    run: Any = SimpleNamespace(job=job, session=session, now_ms=now_ms, children=children, progress=_progress)
    return Context(run)


def _progress(fraction: float, note: str, *, at_once: bool) -> None:
    if at_once:
        print(f"echod: {fraction:.0%} {note}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
