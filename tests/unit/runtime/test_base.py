"""The base: workers come and go as told, and nothing of their trees is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import echofn.processes
from echofn import frames
from echofn.manifest import Policy
from unit.runtime.driving import (
    PATIENCE_S,
    WHOSE,
    Base,
    alive,
    discover,
    job,
    planted,
    processes,
    signal_of,
    until,
    write,
)  # fmt: skip

DAEMON = """
import os, signal, sys, time

def daemon():
    '''A process in a session of its own, whose parent is gone, and that ignores SIGTERM. Gives its pid.'''
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(write, str(os.getpid()).encode())
            os.close(write)
            while True: time.sleep(100)
        os._exit(0)
    os.close(write)
    return int(os.read(read, 20))
"""


# What clone(2) can do where no filter refuses it.
CLONE = (
    DAEMON
    + """
import ctypes
CLONE_PARENT, CALLS = 0x8000, {"x86_64": 56, "aarch64": 220}
libc = ctypes.CDLL(None, use_errno=True)

def cloned(flags):
    '''A process made with these flags, and a daemon that it starts, if it lives so long. Gives their pids.'''
    read, write = os.pipe()
    pid = libc.syscall(CALLS[os.uname().machine], ctypes.c_ulong(flags), 0, 0, 0, 0)
    if pid == 0:
        os.write(write, str(daemon()).encode())
        os.close(write)
        while True: time.sleep(100)
    os.close(write)
    return [pid, *map(int, os.read(read, 20).split())]

def forsaken():
    '''A daemon that its worker does not adopt any more. Gives its pid, if it lives so long.'''
    libc.prctl(36, 0, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    try: return [daemon()]
    except ValueError: return []
"""
)
BESIDE = {
    "a sibling": "cloned(CLONE_PARENT | signal.SIGCHLD)",
    "a child without SIGCHLD": "cloned(0)",
    "a daemon that falls to the base": "forsaken()",
}


def test_a_base_tells_its_pid_and_python(base: Base) -> None:
    assert base.up == frames.Up(base.up.pid, sys.version)
    assert processes()[base.up.pid] == base.process.pid  # its keeper


def test_no_other_functions_secret_is_in_the_memory_of_a_worker(base: Base) -> None:
    """Nor what its base freed of one that was forked before; its own shows that the search finds."""
    write(base.folder, m=WHOSE + "def f(): return in_memory()\n")
    for name in ("a", "b", "a", "b"):
        assert base.ready(level="off", secrets=planted(name)).one().result == [name]
    assert base.ready(level="off").one().result == []


def test_a_worker_stands_behind_the_minimal_walls(base: Base) -> None:
    worker = base.serve(
        """
        import os, resource
        def f():
            status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
            names = ("DATA", "AS", "CORE", "NOFILE", "FSIZE")
            limits = {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name)) for name in names}
            return {
                "ppid": os.getppid(), "sid": os.getsid(0), "pid": os.getpid(), "cwd": os.getcwd(),
                "env": dict(os.environ),
                "nnp": status["NoNewPrivs"].strip(), "fds": sorted(os.listdir("/proc/self/fd")), "limits": limits,
                "in": os.readlink("/proc/self/fd/0"), "blocked": status["SigBlk"].strip(),
                "ignored": status["SigIgn"].strip(),
            }
        """,
        policy=Policy(memory_bytes=300 << 20),
        secrets={"STRIPE_KEY": "s", "PATH": "/evil"},
    )
    told = worker.one().result
    assert told["ppid"] == base.up.pid
    assert told["sid"] == told["pid"] == worker.pid
    assert told["cwd"] == base.tmp
    assert told["nnp"] == "1"
    assert told["fds"] == ["0", "1", "2", "3", "4", "5", "6"]  # 4, 5: for marks; 6 is the listing itself
    assert told["in"] == "/dev/null"
    fixed = {"PATH", "HOME", "TMPDIR", "LANG", "TZ", "OPENBLAS_NUM_THREADS", "STRIPE_KEY"}
    assert set(told["env"]) == fixed
    assert told["env"]["PATH"] != "/evil"
    assert told["limits"]["DATA"] == [300 << 20] * 2
    assert told["limits"]["AS"] == [(1200 << 20) + (1 << 30)] * 2
    assert told["limits"]["CORE"] == [0, 0]
    assert told["limits"]["NOFILE"] == [256, 256]
    assert int(told["blocked"], 16) == 0
    assert not int(told["ignored"], 16) & 1 << (signal.SIGTERM - 1)


def test_a_level_that_cannot_be_given_is_refused(base: Base) -> None:
    write(base.folder, m="def f(): pass\n")
    worker = base.spawn(level="steel")
    failed = worker.read()
    assert isinstance(failed, frames.Failed)
    assert "strict, got 'steel'" in failed.message
    assert os.waitstatus_to_exitcode(worker.end().status) == 70


@pytest.mark.parametrize(
    ("act", "status"),
    [
        ("os.abort()", -signal.SIGABRT),
        ("os._exit(0)", 0),
        ("os._exit(3)", 3),
        ("__import__('ctypes').string_at(0)", -signal.SIGSEGV),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os.close(3) or os.abort()", -signal.SIGABRT),
        ("os.killpg(os.getpgid(0), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_a_crash_is_told_with_its_status_and_hurts_no_neighbour(base: Base, act: str, status: int) -> None:
    write(base.folder, m=f"import os, signal\ndef f():\n    {act}\ndef g(payload): return payload\n")
    neighbour, worker = base.ready("g"), base.ready("f")
    worker.begin()
    assert worker.read() is None  # no answer: that is what makes it a crash
    assert os.waitstatus_to_exitcode(worker.end().status) == status
    assert neighbour.one(1).result == 1


def test_a_segfault_leaves_its_python_lines_in_the_pipe(base: Base) -> None:
    worker = base.serve("import ctypes\ndef f():\n    ctypes.string_at(0)\n")
    worker.begin()
    worker.end()
    text = worker.raw().decode()
    assert "Segmentation fault" in text
    assert "m.py" in text


@pytest.mark.parametrize(
    "hang",
    [
        "while True: pass",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); ctypes.CDLL(None).sleep(100)",
        "threading.Thread(target=loop).start(); loop()",
        "os.kill(os.getpid(), signal.SIGSTOP)",
    ],
)
def test_a_kill_ends_a_run_whatever_it_does(base: Base, hang: str) -> None:
    worker = base.serve(
        "import ctypes, os, signal, threading\ndef loop():\n    while True: pass\n" + f"def f():\n    {hang}\n"
    )
    worker.begin()
    base.kill(worker)
    assert signal_of(worker.end()) == signal.SIGKILL
    base.kill(worker)  # a kill that comes late is no fault
    assert base.ready("f").pid


def test_a_kill_takes_daemons_along_before_the_exit_is_told(base: Base) -> None:
    worker = base.serve(DAEMON + "def f():\n    print(daemon(), daemon())\n    while True: pass\n")
    worker.begin()
    pids = [int(pid) for pid in worker.printed().split()]
    assert all(map(alive, pids))
    base.kill(worker)
    worker.end()
    assert not any(map(alive, pids))
    assert base.children() == []


def test_a_crash_takes_its_daemons_along_and_spares_a_neighbours(base: Base) -> None:
    write(
        base.folder,
        m=DAEMON + "def f():\n    print(daemon())\n    sys.stdin.readline()\n    os.abort()\n"
        "def g():\n    print(daemon())\n    time.sleep(100)\n",
    )
    crasher, neighbour = base.ready("f"), base.ready("g")
    neighbour.begin()
    spared = int(neighbour.printed())
    crasher.begin()
    doomed = int(crasher.printed())
    assert signal_of(crasher.end()) == signal.SIGABRT
    assert not alive(doomed)
    assert alive(spared)
    assert alive(neighbour.pid)
    base.kill(neighbour)
    neighbour.end()
    assert not alive(spared)


def test_no_process_outlives_the_run_that_started_it(base: Base) -> None:
    worker = base.serve(
        DAEMON + "import subprocess\ndef f():\n    return [daemon(), subprocess.Popen(['sleep', '100']).pid]\n"
    )
    for _ in range(3):
        assert not any(map(alive, worker.one().result))
    assert [pid for pid, parent in processes().items() if parent == worker.pid] == []


LEAVES = {
    "a thread": "threading.Thread(target=forever.wait).start()",
    "a timer": "threading.Timer(100, print).start()",
    "a thread of a daemon's": "threading.Thread(target=lambda: threading.Thread(target=forever.wait, daemon=False)"
    ".start() or begun.set() or forever.wait(), daemon=True).start(); begun.wait()",
}
KEEPS = {
    "a daemon": "threading.Thread(target=forever.wait, daemon=True).start()",
    "a pool": "pool.submit(int).result(); loose.append(concurrent.futures.ThreadPoolExecutor(1).submit(int))",
    "one just about to end": "threading.Thread(target=lambda: begun.set() or time.sleep(0.001)).start(); begun.wait()",
}
THREADS = (
    "import concurrent.futures, threading, time\nforever, begun, loose = threading.Event(), threading.Event(), []\n"
)
THREADS += "pool = concurrent.futures.ThreadPoolExecutor(2)\nthreading.Thread(target=forever.wait).start()\n"


@pytest.mark.parametrize("level", ["minimal", "standard", "strict"])
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_thread_that_a_run_leaves_ends_with_its_worker_and_the_run_is_answered(
    shared: Base, level: str, kind: str
) -> None:
    for how in LEAVES.values():
        worker = shared.serve(THREADS + f"{kind} f():\n    {how}\n    return 1\n", level=level)
        assert worker.one().result == 1
        assert worker.read() is None
        assert os.waitstatus_to_exitcode(worker.end().status) == 0
    assert shared.children() == []


FILLS = """
import os
def put(name, size):
    with open(os.environ["TMPDIR"] + "/" + name, "wb") as file:
        file.write(bytes(size))
def listed():
    return sorted(name for name in os.listdir(os.environ["TMPDIR"]) if not name.startswith("pytest"))
put("cache", 1 << 20)
"""


@pytest.mark.parametrize("level", ["off", "standard", "strict"])
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_what_runs_leave_in_tmp_ends_their_worker_before_it_costs_the_next_its_room(
    shared: Base, level: str, kind: str
) -> None:
    policy = Policy(tmp_bytes=16 << 20)
    wrote = f"{kind} f(payload):\n    put(str(payload), 800_000)\n    return listed()\n"
    worker = shared.serve(FILLS + wrote, level=level, policy=policy)
    assert worker.one(1).result == ["1", "cache"]
    assert worker.one(2).result == ["1", "2", "cache"]  # a worker is warm, and its files with it
    assert worker.one(3).result == ["1", "2", "3", "cache"]
    assert worker.read() is None  # more than an eighth of tmp= is left
    assert os.waitstatus_to_exitcode(worker.end().status) == 0
    many = FILLS + f"{kind} f():\n    for n in range(600): put(f'empty {{n}}', 0)\n    return 1\n"
    worker = shared.serve(many, level=level, policy=policy)
    assert worker.one().result == 1
    assert worker.read() is None  # a file takes room though it is empty
    assert os.waitstatus_to_exitcode(worker.end().status) == 0
    tidy = (
        FILLS + f"{kind} f():\n    put('own', 12 << 20)\n    os.unlink(os.environ['TMPDIR'] + '/own')\n    return 1\n"
    )
    worker = shared.serve(tidy, level=level, policy=policy)
    for _ in range(3):
        assert worker.one().result == 1


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_threads_that_may_go_on_keep_their_worker(shared: Base, kind: str) -> None:
    """A daemon, a pool's, one of the import's, and one that has a moment to go, be that as long as it may here."""
    patient = "import echofn.serving\nechofn.serving.THREAD_ENDS_S = 30.0\n"
    for how in KEEPS.values():
        worker = shared.serve(patient + THREADS + f"{kind} f():\n    {how}\n    return 1\n")
        for _ in range(3):
            assert worker.one().result == 1
        assert alive(worker.pid)


@pytest.mark.parametrize("level", ["minimal", "off"])
@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("how", BESIDE)
def test_no_process_beside_its_worker_outlives_the_run(shared: Base, level: str, kind: str, how: str) -> None:
    """It is a child of the base, or one that wait(2) does not show by itself; and the worker goes on."""
    write(shared.folder, m=CLONE + f"{kind} f():\n    return {BESIDE[how]}\ndef g():\n    time.sleep(100)\n")
    neighbour = shared.ready("g", level=level)
    neighbour.begin()
    worker = shared.ready("f", level=level, is_async=kind == "async def")
    for _ in range(3):
        pids = worker.one().result
        until(lambda pids=pids: not any(map(alive, pids)), how)
    assert all(map(alive, (worker.pid, neighbour.pid)))
    until(lambda: sorted(shared.children()) == sorted((worker.pid, neighbour.pid)))


@pytest.mark.parametrize("level", ["minimal", "off"])
@pytest.mark.parametrize("how", BESIDE)
def test_a_kill_takes_along_what_is_beside_its_worker(shared: Base, level: str, how: str) -> None:
    worker = shared.serve(CLONE + f"def f():\n    print(*{BESIDE[how]})\n    while True: pass\n", level=level)
    worker.begin()
    pids = [int(pid) for pid in worker.printed().split()]
    assert all(map(alive, pids))
    shared.kill(worker)
    worker.end()
    assert not any(map(alive, pids))
    assert shared.children() == []


def test_a_worker_that_is_just_being_made_is_nobodys_litter(shared: Base) -> None:
    """Runs that leave a process beside their worker, again and again, while workers are forked."""
    sibling = BESIDE["a sibling"]
    write(shared.folder, m=CLONE + f"def f():\n    return {sibling}\ndef g():\n    return os.getpid()\n")
    worker = shared.ready("f")
    for _ in range(20):
        worker.hand(job())
        fresh = shared.spawn("g")
        [left] = worker.collect(1)
        fresh.start()
        assert fresh.one().result == fresh.pid
        until(lambda pids=left.result: not any(map(alive, pids)))


def test_whoever_has_the_number_of_a_process_that_is_gone_is_spared() -> None:
    """Between the look at /proc and the signal a process can end, and its number go to another."""
    with subprocess.Popen(["sleep", "100"]) as other:
        echofn.processes._signal(other.pid, signal.SIGKILL, {1}, 1)  # as if it had been found below process 1
        assert other.poll() is None
        echofn.processes._signal(other.pid, signal.SIGKILL, {1}, os.getpid())
        assert other.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_process_started_at_import_belongs_to_the_module(base: Base) -> None:
    worker = base.serve(
        "import subprocess\nhelper = subprocess.Popen(['sleep', '100'])\n"
        "def f():\n    return [helper.pid, subprocess.Popen(['sleep', '100']).pid]\n"
    )
    for _ in range(2):
        helper, child = worker.one().result
        assert alive(helper)
        assert not alive(child)
    worker.send(frames.Stop())
    worker.end()
    assert not alive(helper)


def test_a_fork_bomb_is_killed_whole(base: Base) -> None:
    worker = base.serve(
        """
        import os, time
        def f():
            print("go")
            for _ in range(5):
                os.fork()          # 32 processes, each forking on
            end = time.monotonic() + 30
            while time.monotonic() < end:
                if os.fork() == 0: os._exit(0)
                os.wait()
        """
    )
    worker.begin()
    worker.printed()
    until(lambda: len(tree(base)) > 20)
    pids = tree(base)
    base.kill(worker)
    worker.end()
    assert not any(map(alive, pids))
    assert base.children() == []


HOPPER = f"hop-{os.getpid()}"  # the other processes of the tests have hoppers of their own
HOPS = f"""
import ctypes, os, time
def f():
    for _ in range(12):
        if os.fork() == 0:
            os.setsid()
            ctypes.CDLL(None).prctl(15, b"{HOPPER}", 0, 0, 0)  # PR_SET_NAME, which a fork inherits
            end = time.monotonic() + 60
            while time.monotonic() < end:
                if os.fork(): os._exit(0)
                time.sleep(0.001)
            os._exit(0)
    time.sleep(0.1)
"""


def hopping() -> list[str]:
    found: list[str] = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{name}/stat").read_text() if name.isdigit() else ""
            if f"({HOPPER})" in stat and stat.rpartition(")")[2].split()[0] != "Z":
                found.append(name)
    return found


@pytest.mark.parametrize("level", ["off", "minimal"])
def test_processes_that_hop_from_fork_to_fork_end_with_their_run(base: Base, level: str) -> None:
    """Each is there for a millisecond: a look at all of /proc meets none of them twice."""
    write(base.folder, m=HOPS)
    worker = base.ready(level=level)
    for _ in range(3):
        assert worker.one().ended
        assert not any(hopping() for _ in range(20))


def tree(base: Base) -> list[int]:
    parents, found = processes(), [base.up.pid]
    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)
    return found[1:]


def test_many_killed_runs_leave_no_zombie_and_no_descriptor(base: Base) -> None:
    write(base.folder, m=DAEMON + "def f():\n    daemon()\n    print('x')\n    while True: pass\n")
    descriptors: set[int] = set()
    for _ in range(12):
        worker = base.ready()
        worker.begin()
        worker.printed()
        base.kill(worker)
        worker.end()
        descriptors.add(len(os.listdir(f"/proc/{base.up.pid}/fd")))
    assert base.children() == []
    assert len(descriptors) == 1


def test_a_stop_ends_an_idle_worker_and_a_closed_channel_too(base: Base) -> None:
    write(base.folder, m="def f(): pass\n")
    stopped, abandoned = base.ready(), base.ready()
    stopped.send(frames.Stop())
    assert stopped.read() is None
    abandoned.channel.shutdown(2)
    for worker in (stopped, abandoned):
        assert os.waitstatus_to_exitcode(worker.end().status) == 0


def test_a_stop_finishes_what_has_begun_and_begins_nothing_more(base: Base) -> None:
    worker = base.serve("import os\ndef f(payload):\n    while not os.path.exists('go'): pass\n    return payload\n")
    worker.send(frames.Run((job(0), job(1), job(2)), 1))
    assert worker.read() == frames.Begun(0)
    worker.send(frames.Stop())
    Path(base.tmp, "go").touch()
    ended = worker.read()
    assert isinstance(ended, frames.Ended)
    assert ended.outcome == "done"
    assert worker.read() is None
    assert os.waitstatus_to_exitcode(worker.end().status) == 0


def test_the_exit_tells_cpu_and_memory(base: Base) -> None:
    worker = base.serve("def f():\n    b = bytearray(50 << 20)\n    return sum(range(3_000_000))\n")
    ended = worker.one().ended
    assert ended is not None
    worker.send(frames.Stop())
    exited = worker.end()
    assert exited.cpu_us >= ended.cpu_us > 10_000
    assert exited.peak_bytes >= ended.peak_bytes > 50 << 20


def test_an_import_that_fails_is_told_and_ends_the_worker(base: Base) -> None:
    write(base.folder, m="x = 1\ndef g():\n    return 1 / 0\ng()\n")
    worker = base.spawn()
    failed = worker.read()
    assert isinstance(failed, frames.Failed)
    assert failed.exception == "ZeroDivisionError"
    assert failed.traceback.startswith('Traceback (most recent call last):\n  File "m.py", line 4')
    assert worker.read() is None
    assert os.waitstatus_to_exitcode(worker.end().status) == 70


def test_an_import_that_exits_or_dies_is_told_too(base: Base) -> None:
    write(base.folder, m="import sys; sys.exit(0)", n="import os; os._exit(0)")
    worker = base.spawn(module="m")
    failed = worker.read()
    assert isinstance(failed, frames.Failed)
    assert failed.exception == "SystemExit"
    worker = base.spawn(module="n")
    assert worker.read() is None
    assert os.waitstatus_to_exitcode(worker.end().status) == 0


@pytest.mark.parametrize("ending", ["close", "terminate"])
def test_a_base_takes_everything_along(base: Base, ending: str) -> None:
    worker = base.serve(DAEMON + "def f():\n    print(daemon())\n    while True: pass\n")
    worker.begin()
    daemon = int(worker.printed())
    if ending == "close":
        base.control.close()
    else:
        base.process.terminate()
    assert base.process.wait(PATIENCE_S) == 0
    assert not alive(daemon)
    assert not alive(worker.pid)


SUPERVISOR = """
import sys
from pathlib import Path
from unit.runtime.driving import Base
base = Base(Path(sys.argv[1]))
pids = [base.process.pid, base.up.pid]
for _ in range(2):
    worker = base.ready()
    worker.begin()
    pids += [worker.pid, int(worker.printed())]
print(*pids, flush=True)
sys.stdin.read()
"""


def test_when_the_supervisor_is_killed_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "functions").mkdir()
    write(
        tmp_path / "functions",
        m=DAEMON
        + "def f():\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    print(daemon())\n    while True: pass\n",
    )
    command = [sys.executable, "-c", SUPERVISOR, str(tmp_path)]
    tests = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": tests}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as supervisor:
        assert supervisor.stdout
        pids = [int(pid) for pid in supervisor.stdout.readline().split()]
        assert len(pids) == 6
        assert all(map(alive, pids))
        supervisor.kill()
        until(lambda: not any(map(alive, pids)))


def test_discovery_takes_the_daemons_of_an_import_along(tmp_path: Path) -> None:
    folder = tmp_path / "functions"
    write(folder, a=DAEMON + f"open({str(tmp_path / 'pid')!r}, 'w').write(str(daemon()))\n")
    answers = discover(folder)
    assert answers["a"].errors == ()
    assert not alive(int((tmp_path / "pid").read_text()))


KILLS = "os.kill(os.getppid(), signal.SIGKILL)"
STOPS = "os.kill(os.getppid(), signal.SIGSTOP)"


@pytest.mark.parametrize(
    ("level", "start", "then"),
    [
        ("standard", "subprocess.Popen(['/bin/sleep', '100']).pid", "pass"),
        ("minimal", "daemon()", KILLS),
        ("off", "daemon()", KILLS),
        ("minimal", "daemon()", STOPS),
    ],
)
def test_nothing_of_a_run_outlives_a_base_that_is_killed(base: Base, level: str, start: str, then: str) -> None:
    """From outside, or by its own handler: its keeper ends once all is gone."""
    source = f"import subprocess\ndef f():\n    print({start})\n    {then}\n    while True: time.sleep(100)\n"
    worker = base.serve(DAEMON + source, level=level, policy=Policy(processes=4))
    worker.begin()
    pids = [base.up.pid, worker.pid, int(worker.printed())]
    if then == STOPS:
        base.process.terminate()
    elif then != KILLS:
        os.kill(base.up.pid, signal.SIGKILL)
    base.process.wait(PATIENCE_S)
    assert not any(map(alive, pids))


def test_workers_do_not_outlive_a_base_that_is_killed(base: Base) -> None:
    write(base.folder, m="import time\ndef f():\n    time.sleep(100)\n")
    workers = [base.ready(), base.ready()]
    workers[0].begin()
    base.process.kill()
    until(lambda: not any(alive(worker.pid) for worker in workers))
