"""Discovery: imports the modules of a folder behind walls and says what is in them. See `discovery_protocol`.

Two processes. The keeper (this one as started) runs no user code, and reads no secret, as its children have what was
ever in its memory: it forks a confined child that imports the modules in turn, watches its clock, kills it with
everything below it when a module takes too long, names the culprit, and forks another for the rest. Which module of the
folder is being executed the child says at each step; one that hung or crashed is not executed again when another
imports it, so a hanging helper costs its time limit once. What the files' syntax says, which is asked before, is a
child's work, too.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time

import msgspec

from echofn import processes, walls
from echofn.discovery_protocol import (
    MAX_ANSWER_BYTES,
    Described,
    Discover,
    Finished,
    FromDiscovery,
    Importing,
    Module,
    Parse,
    Said,
    decode_order,
    framed,
)
from echofn.frames import HEADER
from echofn.importing import Culprit, Entered, Told, import_modules
from echofn.manifest import LoadError
from echofn.parsing import say_all

GRACE_S = 1.0
LOOK_S = 0.1
MAX_TMP_BYTES = walls.Openings().tmp_bytes  # at `strict` a filesystem of its own is what bounds it
_FILE_BYTES = 4096  # what an empty one costs
_decode = msgspec.msgpack.Decoder[Told](Told).decode


class Keeper:
    """Forks a child for each group of modules and sees it through."""

    def __init__(self, control: socket.socket, order: Discover, sealed: int) -> None:
        self._control = control
        self._order = order
        self._sealed = sealed  # the file of secrets, for children to read
        self._blocked: dict[str, Culprit] = {}  # by full name

    def run(self) -> None:
        plain = [module for module in self._order.modules if module.name not in self._order.secrets]
        groups = [plain, *([module] for module in self._order.modules if module.name in self._order.secrets)]
        for group in groups:
            rest = group
            while rest:
                rest = self._through(rest)
        self._say(Finished())

    def _through(self, modules: list[Module]) -> list[Module]:
        """One child's life. Gives the modules that are left for the next."""
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            ours.close()
            import_modules(self._order, modules, self._blocked, theirs.detach(), self._sealed, parent)
        theirs.close()
        watch = Watch(ours, self._order.time_limit_ms / 1000, self._order.tmp)
        left = list(modules)
        with ours:
            while left and (message := watch.next(self._control)) is not None:
                if isinstance(message, Importing) and message.module == left[0].name:
                    self._say(message)
                elif isinstance(message, Described) and message.module == left[0].name:
                    self._say(message)
                    del left[0]
                else:
                    break  # a child that says anything else is not to be believed
        if left:
            if not watch.late and not watch.full:
                _await_end(pid, GRACE_S)  # its channel ended: the process is about to, and its status says how
            processes.kill_tree(pid)
        else:
            os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        processes.end_below()
        if not left:
            return []
        if watch.full:
            _empty(self._order.tmp)
        self._blame(left[0], watch, status)
        return left[1:]

    def _blame(self, module: Module, watch: Watch, status: int) -> None:
        """Say what became of the module that the child was at."""
        if watch.late:
            kind, told = "hang", f"did not finish importing within {self._order.time_limit_ms / 1000:g} s"
        elif watch.full:
            kind, told = "crash", f"wrote more than {MAX_TMP_BYTES // 1024**2} MB at import"
        elif os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
            kind, told = "crash", f"crashed at import with {signal.Signals(os.WTERMSIG(status)).name}"
        elif os.WIFEXITED(status):
            kind, told = "exit", f"ended the process at import with exit code {os.WEXITSTATUS(status)}"
        else:
            kind, told = "crash", "killed the process at import"
        own = f"{self._order.package}.{module.name}"
        inner = watch.stack[-1] if watch.stack else own
        self._blocked[inner] = Culprit(kind, told)
        within = "" if inner == own else f", in {inner}"
        error = LoadError(module.name, module.file, f"the module {told}{within}", kind=kind)
        self._say(Described(module.name, errors=(error,)))

    def _say(self, message: FromDiscovery) -> None:
        _send(self._control, message)


def parse(control: socket.socket, order: Parse) -> None:
    """Have a child read the sources, and pass on what it says as far as it gets within the limits."""
    if order.sources:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            control.close()
            say_all(order.sources, theirs)
        theirs.close()
        watch = Watch(ours, order.time_limit_ms / 1000)
        with ours:
            for _ in order.sources:
                if not isinstance(said := watch.next(control), Said):
                    break
                _send(control, said)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    _send(control, Finished())


def _send(control: socket.socket, message: FromDiscovery) -> None:
    """To the driver; without one there is nothing to go on for."""
    try:
        control.sendall(framed(message))
    except OSError:
        processes.end_with_all()


def _await_end(pid: int, limit_s: float) -> None:
    handle = os.pidfd_open(pid)
    try:
        select.select([handle], [], [], limit_s)
    finally:
        os.close(handle)


class Watch:
    """Reads a child's frames against the clock, trusting none of them."""

    def __init__(self, channel: socket.socket, limit_s: float, tmp: str = "") -> None:
        self.late = False
        self.full = False  # more than MAX_TMP_BYTES lie in `tmp`
        self._tmp = tmp
        self._look_at = 0.0
        self.stack: list[str] = []
        self._channel = channel
        self._limit_s = limit_s
        self._received = b""
        self._until = time.monotonic() + limit_s

    def next(self, control: socket.socket) -> Importing | Described | Said | None:
        """The next answer; None at the child's end, at the limit, or at nonsense."""
        while True:
            message = self._whole()
            if message is None:
                if not self._fill(control):
                    return None
                continue
            match message:
                case Entered(name=""):
                    del self.stack[-1:]
                case Entered(name=name):
                    self.stack.append(name)
                case Importing() | Described() | Said():
                    self.stack.clear()
                    self._until = time.monotonic() + self._limit_s
                    return message
                case _:
                    return None

    def _fill(self, control: socket.socket) -> bool:
        ready: list[socket.socket] = []
        while self._channel not in ready:
            now = time.monotonic()
            if self._tmp and now >= self._look_at:
                self._look_at = now + LOOK_S
                if _holds_more(self._tmp, MAX_TMP_BYTES):
                    self.full = True
                    return False
            if now >= self._until:
                self.late = True
                return False
            ready = select.select([self._channel, control], [], [], min(self._until - now, LOOK_S))[0]
            if control in ready:
                processes.end_with_all()  # the driver has nothing more to say: it is gone
        try:
            data = self._channel.recv(1 << 18)
        except OSError:
            data = b""
        self._received += data
        return bool(data)

    def _whole(self) -> Told | None:
        if len(self._received) < HEADER.size:
            return None
        size = HEADER.unpack_from(self._received)[0]
        end_at = HEADER.size + size
        if size > MAX_ANSWER_BYTES:
            return Finished()
        if len(self._received) < end_at:
            return None
        body, self._received = self._received[HEADER.size : end_at], self._received[end_at:]
        try:
            return _decode(body)
        except (msgspec.MsgspecError, RecursionError):
            return Finished()


def _holds_more(folder: str, limit: int) -> bool:
    """Whether the files below a folder take more bytes than that. Links are not followed."""
    total, ahead = 0, [folder]
    while ahead and total <= limit:
        try:
            with os.scandir(ahead.pop()) as entries:
                for entry in entries:
                    total += max(entry.stat(follow_symlinks=False).st_blocks * 512, _FILE_BYTES)
                    if entry.is_dir(follow_symlinks=False):
                        ahead.append(entry.path)
        except OSError:
            pass  # gone in the meantime
    return total > limit


def _empty(folder: str) -> None:
    import shutil  # seldom needed, and every import of a folder waits for this process

    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)


def main(descriptor: int, sealed: int) -> None:
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    os.set_inheritable(sealed, False)
    parent = os.getppid()
    signal.signal(signal.SIGTERM, processes.end_with_all)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getpid() != os.getsid(0):
        os.setsid()
    walls.adopt_orphans()
    walls.die_with_parent(signal.SIGTERM, parent)
    stream = control.makefile("rb")
    while len(header := stream.read(HEADER.size)) == HEADER.size:
        match decode_order(stream.read(HEADER.unpack(header)[0])):
            case Parse() as order:
                parse(control, order)
            case Discover() as order:
                Keeper(control, order, sealed).run()
                break
    processes.end_with_all()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
