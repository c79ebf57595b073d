"""A function that does as its payload says, and short words for tests of whoever runs it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec

from rig import Rig

SOURCE = """
import ctypes, logging, os, signal, subprocess, sys, threading, time
from echofn import Cancel, Fail, Retry, Snooze

served = 0

def act(payload, ctx):
    global served
    served += 1
    do = payload["do"]
    if do == "return": return payload["value"]
    if do == "pid": return [os.getpid(), served]
    if do == "attempt": return [ctx.attempt, ctx.last_attempt, ctx.fence, ctx.lane]
    if do == "raise": raise ValueError("not today")
    if do == "raise once":
        if ctx.attempt == 1: raise ValueError("not yet")
        return ctx.attempt
    if do == "fail": raise Fail("never")
    if do == "retry": raise Retry(after="10ms")
    if do == "snooze once":
        if ctx.fence == 1: raise Snooze("10ms")
        return [ctx.attempt, ctx.fence]
    if do == "cancel": raise Cancel("no need")
    if do == "sleep":
        time.sleep(payload["s"])
        return ctx.attempt
    if do == "stay once":
        if ctx.attempt == 1: time.sleep(1000)
        return ctx.attempt
    if do == "until":
        while not os.path.exists(payload["file"]): time.sleep(0.002)
        return ctx.attempt
    if do == "mark":
        open(payload["file"], "a").write(f"{ctx.job_id} {ctx.fence} {os.getpid()}\\n")
        time.sleep(payload.get("s", 0))
        while "until" in payload and not os.path.exists(payload["until"]): time.sleep(0.002)
        return ctx.attempt
    if do == "allocate":
        if ctx.attempt == 1: bytearray(1 << 30)
        return os.getpid()
    if do == "litter":
        os.makedirs("a/b"); open("a/b/file", "w").close(); os.symlink("/etc", "a/link"); os.chmod("a", 0)
        for _ in range(1200):
            os.mkdir("d"); os.chdir("d")
        return os.environ["HOME"]
    if do == "freeze the base":
        pid = subprocess.Popen(["/bin/sleep", "100"]).pid
        if ctx.attempt > 1: return
        open(payload["file"], "w").write(f"{os.getppid()} {os.getpid()} {pid}")
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(1000)
    if do == "hang":
        while True: pass
    if do == "hang deaf":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM): signal.signal(number, signal.SIG_IGN)
        daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        open(payload["file"], "w").write(f"{os.getpid()} {daemon.pid}")
        while True:
            try: time.sleep(1)
            except BaseException: pass
    if do == "channel":
        if ctx.attempt == 1:
            os.write(3, payload["bytes"])
            time.sleep(payload.get("s", 0))
        return ctx.attempt
    if do == "print":
        print("to stdout")
        print("to stderr", file=sys.stderr)
        logging.getLogger("shop").warning("logged %s", 1)
        ctx.log.info("by ctx")
        return None
    if do == "write":
        os.write(1, b"past python\\nand no end")
        return None
    if do == "write of each":
        os.write(1, b"out %d" % payload["n"])
        os.write(2, b"err %d\\nand no end" % payload["n"])
        return None
    if do == "flood":
        for n in range(payload["lines"]): print("x" * 1000)
        return None
    if do == "progress":
        ctx.progress(0.5, "half")
        while not os.path.exists(payload["file"]): time.sleep(0.002)
        return None
    if ctx.attempt > payload.get("times", 1): return ctx.attempt
    if do == "abort": os.abort()
    if do == "segv": ctypes.string_at(0)
    if do == "exit": os._exit(payload["code"])
    if do == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if do == "close":
        os.closerange(3, 100)
        time.sleep(1000)
    raise AssertionError(do)

def spread(payload, ctx):
    ids = [ctx.enqueue("jobs.act", {"do": "return", "value": n}) for n in range(payload["count"])]
    if payload.get("fail"): raise ValueError("after enqueue")
    if payload.get("unknown"): ctx.enqueue("jobs.nowhere", 1)
    return ids
"""

Make = Callable[..., AbstractAsyncContextManager[Rig]]


def result_of(job: Any) -> Any:
    return msgspec.msgpack.decode(job.result)


async def all_done(node: Rig, jobs: list[Any]) -> bool:
    return all([(await node.job("act", job)).state == "done" for job in jobs])


def heard_cancel(node: Rig) -> asyncio.Event:
    """Set once the node has heard of a cancel; behind the supervisor's own listener."""
    heard = asyncio.Event()
    node.bus.on("cancel", lambda *_: heard.set())
    return heard


def alive(pids: Sequence[str]) -> list[str]:
    """Which of them still run; the dead whom nobody has buried yet do not."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append(pid)
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
