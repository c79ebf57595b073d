"""`processes=4` is four: whoever runs the handler, however it starts them; and threads are not in its way."""

from __future__ import annotations

import errno

import pytest

from echofn.manifest import Policy
from unit.runtime.driving import Base

WALLED = ["standard", "strict"]
POLICY = Policy(processes=4)
STARTING = {
    "subprocess": "started.append(subprocess.Popen(['sleep', '60']))",
    "fork": "started.append(os.fork() or time.sleep(60) or os._exit(0))",
    "posix_spawn": "started.append(os.posix_spawn('/bin/sleep', ['sleep', '60'], os.environ))",
    "daemons": "started.append(daemon())",
    "zombies": "started.append(os.fork() or os._exit(0))",
}
SOURCE = """
import os, subprocess, threading, time

def daemon():
    pid = os.fork()
    if pid == 0:
        try:
            os.fork() or time.sleep(60)
        except BlockingIOError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        raise BlockingIOError

def f(payload):
    started = []
    try:
        while len(started) < 40:
            {start}
    except BlockingIOError:
        pass
    return len(started)
"""


@pytest.mark.parametrize("level", WALLED)
@pytest.mark.parametrize("how", STARTING)
def test_no_more_are_started_than_were_opened(base: Base, level: str, how: str) -> None:
    worker = base.serve(SOURCE.replace("{start}", STARTING[how]), level=level, policy=POLICY)
    wanted = 3 if how == "daemons" else 4  # one in between starts each, and must be one of the four
    assert worker.one().result == wanted


@pytest.mark.parametrize("level", WALLED)
@pytest.mark.parametrize("processes", [1, 4])
def test_none_is_started_beside_its_worker(base: Base, level: str, processes: int) -> None:
    """CLONE_PARENT of clone(2): below the base, not the worker, it would not be counted, and would outlive the run."""
    source = """
    import ctypes, os, signal, time
    CLONE_PARENT, CALLS = 0x8000, {"x86_64": 56, "aarch64": 220}
    def f():
        libc = ctypes.CDLL(None, use_errno=True)
        pid = libc.syscall(CALLS[os.uname().machine], ctypes.c_ulong(CLONE_PARENT | signal.SIGCHLD), 0, 0, 0, 0)
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        return ctypes.get_errno() if pid < 0 else "started"
    """
    worker = base.serve(source, level=level, policy=Policy(processes=processes))
    assert worker.one().result == errno.EPERM


def test_nothing_counts_them_where_no_wall_says_so(base: Base) -> None:
    worker = base.serve(SOURCE.replace("{start}", STARTING["subprocess"]), level="off", policy=POLICY)
    assert worker.one().result == 40


@pytest.mark.parametrize("level", WALLED)
def test_many_threads_that_fork_at_once_do_not_share_a_place(base: Base, level: str) -> None:
    source = """
    import concurrent.futures, os, threading, time
    gate = threading.Barrier(32)
    def start(_):
        gate.wait()
        try:
            pid = os.fork()
        except BlockingIOError:
            return 0
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        return 1
    def f():
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            return sum(pool.map(start, range(32)))
    """
    assert base.serve(source, level=level, policy=POLICY).one().result == 4


@pytest.mark.parametrize("level", WALLED)
def test_a_fork_that_takes_long_does_not_let_the_next_ones_by(base: Base, level: str) -> None:
    """50,000 mappings, or a gigabyte, to copy: the process is not there before that is done."""
    source = """
    import concurrent.futures, ctypes, mmap, os, signal, threading, time
    PAGE, CLONE = 4096, {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    libc = ctypes.CDLL(None, use_errno=True)  # unlike os.fork it lets go of the interpreter's lock
    gate = threading.Barrier(8)
    def start(_):
        gate.wait()
        pid = libc.syscall(CLONE, ctypes.c_ulong(signal.SIGCHLD), 0, 0, 0, 0)
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        return pid > 0
    def f():
        held = mmap.mmap(-1, 50_000 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        first = ctypes.addressof(ctypes.c_char.from_buffer(held))
        for at in range(0, 50_000, 2):
            held[at * PAGE] = 1
            assert libc.mprotect(ctypes.c_void_p(first + at * PAGE), PAGE, mmap.PROT_READ) == 0
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            return sum(pool.map(start, range(8)))
    """
    assert base.serve(source, level=level, policy=Policy(processes=1)).one().result == 1


@pytest.mark.parametrize("level", WALLED)
def test_a_place_is_free_again_once_its_process_was_waited_for(base: Base, level: str) -> None:
    source = """
    import concurrent.futures, subprocess
    def one(_): return subprocess.run(["true"]).returncode
    def f():
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            return sum(pool.map(one, range(24)))
    """
    assert base.serve(source, level=level, policy=POLICY).one().result == 0


@pytest.mark.parametrize("level", WALLED)
def test_threads_start_beside_processes(base: Base, level: str) -> None:
    source = """
    import subprocess, threading, time
    def f():
        sleepers = [subprocess.Popen(["sleep", "60"]) for _ in range(4)]
        threads = [threading.Thread(target=time.sleep, args=(0.2,)) for _ in range(40)]
        for each in threads: each.start()
        for each in threads: each.join()
        for each in sleepers: each.kill(); each.wait()
        return len(threads)
    """
    assert base.serve(source, level=level, policy=POLICY).one().result == 40


@pytest.mark.parametrize("level", WALLED)
def test_a_refusal_names_how_many_there_may_be(base: Base, level: str) -> None:
    source = "import subprocess\ndef f():\n    held = [subprocess.Popen(['sleep', '60']) for _ in range(9)]\n"
    answer = base.serve(source, level=level, policy=POLICY).one()
    assert answer.outcome == "dead"
    assert answer.fault.cause == "wall:processes"
    told = "blocked by echod: more than 4 at once of its own processes. Add processes=8 to @queue (m.py:1)"
    assert answer.fault.message.startswith(told)


@pytest.mark.parametrize("level", WALLED)
def test_a_loop_of_forks_leaves_the_base_free_for_others(base: Base, level: str) -> None:
    """Refused forks are heard at a pace of ours, and the bomb is dead once it was killed."""
    source = """
    import os
    def f():
        while True:
            try:
                os.fork()
            except OSError:
                pass
    """
    bomb = base.serve(source, level=level, policy=POLICY)
    bomb.begin()
    neighbour = base.serve("def f(): return 'well'", level=level)
    assert neighbour.one().result == "well"
    base.kill(bomb)
    bomb.end()
    assert len(base.children()) == 1
