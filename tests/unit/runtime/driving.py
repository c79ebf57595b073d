"""A supervisor small enough to read: it drives the real base and real workers over real sockets, and nothing else."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import msgspec

from echofn import discovery_protocol as discovery
from echofn import frames, sealed
from echofn.manifest import Function, Policy

PATIENCE_S = 60
CLEAN = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


# Whose planted secrets can be found, in bytes and in everything that is mapped here; without naming what it looks for.
WHOSE = r"""
import re
MARK = b"-detnalp"[::-1]
def whose(data):
    return sorted({found.decode() for found in re.findall(MARK + rb"of-(\w+)-s{4}", data)})
def in_memory():
    parts = []
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
        for where, how, *_ in [line.split() for line in maps if "[v" not in line]:
            first, last = (int(end, 16) for end in where.split("-"))
            if how.startswith("rw"):
                memory.seek(first)
                parts += whose(memory.read(last - first))
    return sorted(set(parts))
"""


def planted(whose: str) -> dict[str, str]:
    """Secrets of sizes that Python, malloc and the kernel keep, and leave behind, each its own way."""
    sizes = (*range(20, 520, 10), 600, 1_000, 3_000, 10_000, 40_000)
    return {f"{whose.upper()}_{size}": f"planted-of-{whose}-".ljust(size, "s") for size in sizes}


def write(folder: Path, **files: str) -> None:
    """Modules by name; `a__b` is a/b.py."""
    for name, source in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def until(fact: Any, what: str = "it", patience_s: float = PATIENCE_S) -> Any:
    """The first true answer of `fact`."""
    end = time.monotonic() + patience_s
    while not (answer := fact()):
        assert time.monotonic() < end, f"{what} did not come true in {patience_s} s"
        time.sleep(0.005)
    return answer


class Answer:
    """What came back for one job."""

    def __init__(self) -> None:
        self.output: list[frames.Output] = []
        self.progress: list[frames.Progress] = []
        self.parts: dict[int, frames.Part] = {}
        self.said: list[frames.Listens | frames.Extend] = []
        self.ended: frames.Ended | None = None

    @property
    def outcome(self) -> str:
        assert self.ended is not None
        return self.ended.outcome

    @property
    def fault(self) -> frames.Fault:
        assert self.ended is not None
        assert self.ended.fault is not None
        return self.ended.fault

    @property
    def result(self) -> Any:
        assert self.ended is not None
        assert self.ended.outcome == "done", self.ended.fault
        return msgspec.msgpack.decode(self.ended.result)

    def text(self, stream: str) -> str:
        return "\n".join(line.text for line in self.output if line.stream == stream)


def job(payload: Any = None, **fields: Any) -> frames.Job:
    told: dict[str, Any] = {
        "id": "JOB0KHTOWnGLuC",
        "payload": msgspec.msgpack.encode(payload),
        "attempt": 1,
        "last_attempt": False,
        "fence": 1,
        "lane": "-",
        "due_ms": 1_000,
        "previous_ms": None,
        "next_ms": None,
        "timeout_ms": 60_000,
        "first_child": 5_000,
    }
    return frames.Job(**{**told, **fields})


def batch(*payloads: Any, **fields: Any) -> frames.Job:
    """A batch of jobs JOB…0, JOB…1, …; what is given for a field is the batch's own, a list each job's."""
    each = {name: value for name, value in fields.items() if isinstance(value, list)}
    members = tuple(
        job(payload, id=f"JOB0000000000{number}", **{name: values[number] for name, values in each.items()})
        for number, payload in enumerate(payloads)
    )
    own = {name: value for name, value in fields.items() if name not in each}
    return job(None, id=members[0].id, members=members, **own)


class Worker:
    """The supervisor's view of one worker."""

    def __init__(self, base: Base, number: int, channel: socket.socket, pipes: list[int]) -> None:
        self.base = base
        self.number = number
        self.channel = channel
        self.pipes = pipes
        self.pid = 0
        self.exited: frames.Exited | None = None
        self.handed = 0
        self.at_once = 1
        self.outside: list[frames.Output] = []  # what no run wrote
        self._received = b""

    def send(self, message: frames.ToWorker) -> None:
        self.channel.sendall(frames.framed(message))

    def read(self, patience_s: float = PATIENCE_S) -> frames.FromWorker | None:
        """The next frame, but for what no run wrote; None at the channel's end."""
        while isinstance(message := self._read(patience_s), frames.Output) and message.index == frames.OUTSIDE:
            self.outside.append(message)
        return message

    def _read(self, patience_s: float) -> frames.FromWorker | None:
        self.channel.settimeout(patience_s)
        while True:
            if len(self._received) >= 4:
                end = 4 + frames.HEADER.unpack_from(self._received)[0]
                if len(self._received) >= end:
                    body, self._received = self._received[4:end], self._received[end:]
                    return frames.decode_from_worker(body)
            try:
                data = self.channel.recv(1 << 18)
            except ConnectionError:
                return None
            if not data:
                assert not self._received, "the channel ended within a frame"
                return None
            self._received += data

    def start(self) -> frames.Ready:
        ready = self.read()
        assert isinstance(ready, frames.Ready), ready
        return ready

    def run(self, *jobs: frames.Job, now_ms: int = 2_000) -> list[Answer]:
        """Run the jobs and check the order that frames promise."""
        self.hand(*jobs, now_ms=now_ms)
        return self.collect(len(jobs))

    def hand(self, *jobs: frames.Job, now_ms: int = 2_000) -> int:
        """Give it jobs; the position of the first."""
        first, self.handed = self.handed, self.handed + len(jobs)
        self.send(frames.Run(jobs, now_ms))
        return first

    def collect(self, count: int) -> list[Answer]:
        """The answers to the last `count` jobs, in the order in which they were handed over."""
        return self._collect(self.handed - count, set())

    def collect_rest(self, first: int, begun: int | None = None) -> list[Answer]:
        """The answers to the jobs from this one on, of which the first `begun` (all) were seen to begin."""
        return self._collect(first, set(range(first, self.handed if begun is None else first + begun)))

    def _collect(self, first: int, running: set[int]) -> list[Answer]:
        answers = {index: Answer() for index in range(first, self.handed)}
        line = list(range(first + len(running), self.handed))
        while running or line:
            match message := self.read():
                case frames.Begun(index=index):
                    assert index == line.pop(0), "out of turn"
                    running.add(index)
                    assert len(running) <= self.at_once, "Begun within a run"
                case frames.Skipped(index=index):
                    line.remove(index)
                case frames.Ended(index=index):
                    running.remove(index)
                    answers[index].ended = message
                case frames.Output(index=index):
                    assert index in running, "output of a run that does not run"
                    answers[index].output.append(message)
                case frames.Progress(index=index):
                    assert index in running
                    answers[index].progress.append(message)
                case frames.Part(index=index, member=member):
                    assert index in running, "a part of a run that does not run"
                    assert member not in answers[index].parts, "two ends of one job"
                    answers[index].parts[member] = message
                case frames.Listens(index=index) | frames.Extend(index=index):
                    assert index in running
                    answers[index].said.append(message)
                case _:
                    raise AssertionError(f"unexpected {message}")
        return list(answers.values())

    def one(self, payload: Any = None, **fields: Any) -> Answer:
        return self.run(job(payload, **fields))[0]

    def begin(self, payload: Any = None, **fields: Any) -> None:
        """Hand one job over and see it begun."""
        self.hand(job(payload, **fields))
        assert isinstance(self.read(), frames.Begun)

    def printed(self) -> str:
        """The next line of output."""
        message = self.read()
        assert isinstance(message, frames.Output), message
        return message.text

    def raw(self) -> bytes:
        """What is in the pipes of stdout and stderr now, but for marks."""
        data = b""
        for pipe in self.pipes:
            while select.select([pipe], [], [], 0)[0] and (more := os.read(pipe, 1 << 16)):
                data += more
        first, *rest = data.split(frames.MARK)
        return b"".join([first, *(part[frames.POSITION.size :] for part in rest)])

    def end(self) -> frames.Exited:
        """Wait for the base's word that nothing is left of it."""
        while self.exited is None:
            self.base.hear()
        return self.exited

    def close(self) -> None:
        self.channel.close()
        for pipe in self.pipes:
            os.close(pipe)


class Base:
    """A base of its own, as a supervisor starts one; by another interpreter, or as another user, where told."""

    def __init__(
        self, root: Path, *, python: str = sys.executable, libraries: str | None = None, user: int | None = None
    ) -> None:
        self.root = root
        self.folder = root / "functions"
        self.folder.mkdir(exist_ok=True)
        self._user = user
        self.tmp = self._fresh()
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(PATIENCE_S)
        command = [python, "-I", "-B", "-m", "echofn.base", str(theirs.fileno())]
        environment = {**CLEAN, "PLANTED": "x"} | ({"LD_LIBRARY_PATH": libraries} if libraries else {})
        who: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, **who)
        theirs.close()
        self.workers: dict[int, Worker] = {}
        self._spawned = 0
        up = frames.decode_from_base(self.control.recv(1 << 16))
        assert isinstance(up, frames.Up)
        self.up = up

    def hear(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self.control, 1 << 16, 4)
        assert data, "the base ended"
        message = frames.decode_from_base(data)
        if isinstance(message, frames.Spawned):
            self.workers[message.number].pid = message.pid
            os.close(descriptors[0])
        elif isinstance(message, frames.Exited):
            self.workers[message.number].exited = message

    def spawn(self, attribute: str = "f", module: str = "m", **fields: Any) -> Worker:
        """A worker, once the base has forked it."""
        self._spawned += 1
        number = self._spawned
        ours, theirs = socket.socketpair()
        pipes = [os.pipe(), os.pipe()]
        function = Function(
            f"{module}.{attribute}", module, attribute, module.replace(".", "/") + ".py", 1,
            fields.pop("policy", Policy()), (),
            is_async=fields.pop("is_async", False), startup_ms=fields.pop("startup_ms", None),
        )  # fmt: skip
        told: dict[str, Any] = {
            "number": number,
            "function": function,
            "package": "functions",
            "root": str(self.root),
            "version": "DEP0KHTOWnGLuC",
            "generation": 1,
            "tmp": self.tmp,
            "env": "dev",
            "level": "minimal",
        }
        secrets = fields.pop("secrets", {})
        spawn = frames.Spawn(**{**told, **fields})
        worker = self.workers[number] = Worker(self, number, ours, [reading for reading, _ in pipes])
        worker.at_once = spawn.function.at_once
        with sealed.new() as file:
            files = [file.fileno()] if secrets and sealed.put(file, secrets) else []
            socket.send_fds(
                self.control, [frames.encode(spawn)], [theirs.fileno(), *(writing for _, writing in pipes), *files]
            )
        theirs.close()
        for _, writing in pipes:
            os.close(writing)
        while not worker.pid:
            self.hear()
        return worker

    def ready(self, attribute: str = "f", module: str = "m", **fields: Any) -> Worker:
        worker = self.spawn(attribute, module, **fields)
        worker.start()
        return worker

    def serve(self, source: str, attribute: str = "f", **fields: Any) -> Worker:
        """A ready worker of the module `m` with this source."""
        write(self.folder, m=source)
        is_async = f"async def {attribute}(" in source  # as discovery would say
        return self.ready(attribute, **{"is_async": is_async, **fields})

    def kill(self, worker: Worker) -> None:
        self.control.send(frames.encode(frames.Kill(worker.number)))

    def dismiss(self) -> None:
        """End all workers and forget the code they ran and what they left, for the next test on this base."""
        for worker in self.workers.values():
            self.kill(worker)
            worker.end()
            worker.close()
        self.workers.clear()
        for entry in self.folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        shutil.rmtree(self.tmp, ignore_errors=True)
        self.tmp = self._fresh()

    def _fresh(self) -> str:
        tmp = tempfile.mkdtemp(dir=self.root)
        if self._user is not None:
            os.chown(tmp, self._user, self._user)
        return tmp

    def children(self) -> list[int]:
        return [pid for pid, parent in processes().items() if parent == self.up.pid]

    def close(self) -> None:
        self.control.close()
        for worker in self.workers.values():
            worker.close()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()


def processes() -> dict[int, int]:
    """Every process and its parent, zombies too."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    return found


def discover(
    folder: Path,
    secrets: dict[str, dict[str, str]] | None = None,
    time_limit_ms: int = 10_000,
    env: str = "dev",
    level: str = "minimal",
) -> dict[str, discovery.Described]:
    """Answers by module, as the real discovery gives them. Checks that each is announced, then answered once."""
    ours, theirs = socket.socketpair()
    file = sealed.new()
    command = [sys.executable, "-I", "-B", "-m", "echofn.discovery", str(theirs.fileno()), str(file.fileno())]
    with tempfile.TemporaryDirectory() as tmp, ours:
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno(), file.fileno()], env={**CLEAN, "PLANTED": "x"}, stdout=subprocess.DEVNULL
        )
        theirs.close()
        parts = {module: sealed.put(file, each) for module, each in (secrets or {}).items()}
        file.close()
        files = sorted(path.relative_to(folder) for path in folder.rglob("[!_]*.py"))
        modules = tuple(discovery.Module(".".join(file.with_suffix("").parts), file.as_posix()) for file in files)
        order = discovery.Discover(
            str(folder.parent), folder.name, modules, tmp, parts, time_limit_ms=time_limit_ms, env=env, level=level
        )
        ours.sendall(discovery.framed(order))
        ours.settimeout(60)
        answers: dict[str, discovery.Described] = {}
        announced: list[str] = []
        with ours.makefile("rb") as stream:
            while header := stream.read(4):
                message = discovery.decode_answer(stream.read(frames.HEADER.unpack(header)[0]))
                if isinstance(message, discovery.Importing):
                    announced.append(message.module)
                elif isinstance(message, discovery.Described):
                    assert announced[-1] == message.module
                    assert message.module not in answers
                    answers[message.module] = message
                else:
                    break
            else:
                raise AssertionError("discovery ended early")
        ours.close()
        assert process.wait(PATIENCE_S) == 0
    assert sorted(answers) == [module.name for module in modules]
    return answers


def signal_of(exited: frames.Exited) -> int:
    assert os.WIFSIGNALED(exited.status), exited
    return os.WTERMSIG(exited.status)
