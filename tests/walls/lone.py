"""Runs one hostile handler behind the walls of a level without some of them: `python -c <this> SPEC`, SPEC as JSON.

SPEC: level, root, tmp, file; `without`: names of walls to leave out (["all"]: no walls whatever); `opened`: openings.
Prints what the handler gives, or how it failed.
"""

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import time

from echofn.walls import gate, keep_descriptors, kernel, landlock, levels, namespaces, privileges, process, seccomp
from echofn.walls.openings import Openings

spec = json.loads(sys.argv[1])
without = set(spec["without"])
opened = Openings(**{key: tuple(value) if isinstance(value, list) else value for key, value in spec["opened"].items()})
restrict, prctl, private_root = landlock.restrict, kernel.prctl, namespaces.private_root
EVERYTHING = landlock.Rule("/", landlock.WRITE | landlock.EXECUTE)


def nothing(*_, **__):
    return 0


def prctl_but(option):
    return lambda number, *values: None if number == option else prctl(number, *values)


def only_tmp(place, _reach, tmp_bytes):
    """The host's root as it is; a /tmp of its own, elsewhere."""
    namespaces._mount("none", "/", None, namespaces.MS_REC | namespaces.MS_PRIVATE)
    namespaces._mount("tmpfs", place, "tmpfs", namespaces.MS_NOSUID, f"size={tmp_bytes},mode=1777")


WITHOUT = {
    "session": [(os, "setsid", nothing)],
    "environment": [(process, "replace_environment", nothing)],
    "parent-death": [(process, "die_with_parent", nothing)],
    "rlimits": [(process, "limit", nothing)],
    "not-dumpable": [(kernel, "prctl", prctl_but(kernel.PR_SET_DUMPABLE))],
    "no-new-privs": [(kernel, "prctl", prctl_but(kernel.PR_SET_NO_NEW_PRIVS))],
    "capabilities": [(privileges, "drop_capabilities", nothing)],
    "uid": [(privileges, "can_read_as", lambda *_: False)],
    "thread-count": [(process, "count_threads", nothing)],
    "landlock": [(landlock, "restrict", nothing)],
    "files": [(landlock, "restrict", lambda rules, ports: restrict([*rules, EVERYTHING], ports))],
    "ports": [(landlock, "restrict", lambda rules, _ports: restrict(rules, None))],
    "signals": [(landlock, "SCOPE_SIGNAL", 0)],
    "calls": [(seccomp, "confine", nothing)],
    "private-root": [(namespaces, "private_root", only_tmp), (namespaces, "TMP", spec["tmp"])],
    "private-tmp": [(namespaces, "private_root", lambda place, reach, _: private_root(place, reach, 1 << 30))],
    "private-pids": [(namespaces, "NEWPID", 0)],
    "private-ipc": [(namespaces, "NEWIPC", 0), (namespaces, "NEWUTS", 0), (socket, "sethostname", nothing)],
    "private-network": [(namespaces, "NEWNET", 0)],
    "descriptors": [],  # below
    "process-count": [],  # below
}


def confined(parent, line):
    if "descriptors" not in without:
        keep_descriptors(os.dup(1), (os.dup(1), os.dup(1)), line)
        line = None if line is None else process.LINE
    for each in without:
        for where, name, instead in WITHOUT[each]:
            setattr(where, name, instead)
    order = levels.Order(spec["level"], spec["root"], spec["tmp"], {}, opened, line)
    levels.raise_walls(order, parent)


def serve(pid, line):
    """Count its processes as the base would, until it has ended."""
    counting = gate.Gate(line, pid, opened.processes, own=int(spec["level"] == "strict"))
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if counting.descriptor < 0 or not select.select([counting.descriptor], [], [], 0.01)[0]:
            continue
        if not counting.is_open:
            counting.take()
            continue
        counting.look(time.monotonic())
        while counting.again is not None and not counting.resume(time.monotonic()):
            time.sleep(0.001)


source = os.path.join(spec["root"], spec["file"])
parent = os.getpid()
secret = os.open(source, os.O_RDONLY)
os.dup2(secret, 50, inheritable=True)
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
counted = opened.processes and "process-count" not in without
pid = os.fork()
if pid == 0:
    if without != {"all"}:
        confined(parent, theirs.fileno() if counted else None)
    try:
        print(runpy.run_path(source)["handler"](), flush=True)
    except BaseException as error:
        print(type(error).__name__, error, flush=True)
    with contextlib.suppress(OSError):
        os.kill(parent, signal.SIGCONT)  # ptrace(2) may have left it stopped
    os._exit(0)
theirs.close()
if counted:
    serve(pid, ours)
else:
    os.waitpid(pid, 0)
