"""A refusal says what was refused, which option opens it and where to write it; and the option then opens just that."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from echofn.manifest import Policy
from unit.runtime.driving import Base
from walls.machine import IS_ROOT

WALLED = ["standard", "strict"]
DATAGRAMS = (socket.AF_UNIX, socket.SOCK_DGRAM)


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def connecting(port: int) -> str:
    return f"""
    import socket
    def f():
        socket.create_connection(("127.0.0.1", {port}), 2).close()
        return "in"
    """


@pytest.fixture
def mailbox() -> Iterator[socket.socket]:
    """A unix socket of the host, which anybody may write to: as a system log's is."""
    with tempfile.TemporaryDirectory(prefix="echod-box-", dir="/tmp") as folder, socket.socket(*DATAGRAMS) as box:
        os.chmod(folder, 0o755)
        box.bind(f"{folder}/box")
        os.chmod(f"{folder}/box", 0o777)
        box.setblocking(False)
        yield box


def posting(box: socket.socket) -> str:
    return f"""
    import socket
    def f():
        try:
            return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"x", {box.getsockname()!r})
        except OSError as error:
            return type(error).__name__
    """


@pytest.mark.parametrize("level", WALLED)
@pytest.mark.parametrize("network", [False, True])
def test_no_unix_socket_of_the_host_is_written_to(
    base: Base, level: str, network: bool, mailbox: socket.socket
) -> None:
    """One end of a pair of datagram sockets needs no connect(), and no socket(), to send to any other by its path."""
    worker = base.serve(posting(mailbox), level=level, policy=Policy(network=network))
    assert worker.one().result == "PermissionError"
    with pytest.raises(BlockingIOError):
        mailbox.recv(1)


def test_without_walls_it_is(base: Base, mailbox: socket.socket) -> None:
    assert base.serve(posting(mailbox), level="off").one().result == 1
    assert mailbox.recv(1) == b"x"


@pytest.mark.parametrize("level", WALLED)
@pytest.mark.parametrize(
    ("act", "wall", "told"),
    [
        (
            "socket.create_connection(('api.stripe.com', 443))",
            "network",
            "network to api.stripe.com:443. Add network=[443]",
        ),
        ("socket.create_connection(('127.0.0.1', 8080))", "network", "network to 127.0.0.1:8080. Add network=[8080]"),
        ("urllib.request.urlopen('http://example.org/')", "network", "network to example.org:80. Add network=[80]"),
        ("asyncio.run(asyncio.open_connection('127.0.0.1', 99))", "network", "Add network="),
        ("subprocess.run(['id'])", "processes", "starting id. Add processes=1"),
        ("os.fork()", "processes", "starting a process. Add processes=1"),
        (
            "open('/etc/passwd')",
            "files",
            "the file /etc/passwd (m.py:3). A function reads its own folder: put the file",
        ),
        ("open(__file__, 'a')", "files", "m.py (m.py:3). A function's code and packages are for reading"),
        ("open('big', 'wb').write(bytes(3 << 20))", "tmp", 'more than 2 MB in /tmp. Add tmp="4MB"'),
    ],
)
def test_a_refusal_names_what_opens_it(base: Base, level: str, act: str, wall: str, told: str) -> None:
    source = f"import asyncio, os, socket, subprocess, urllib.request\ndef f():\n    {act}\n"
    answer = base.serve(source, level=level, policy=Policy(tmp_bytes=2 << 20)).one()
    assert answer.outcome == "dead"
    assert answer.fault.cause == f"wall:{wall}"
    assert answer.fault.message.startswith("blocked by echod: ")
    assert told in answer.fault.message
    assert wall == "files" or "to @queue (m.py:1)" in answer.fault.message


# What runs, how it ends and what is said. In one worker each: a refusal leaves the next run alone.
ALWAYS_CLOSED = [
    ("socket.socket(socket.AF_UNIX)", "unix", "a unix socket (m.py:5). Unix sockets are always closed"),
    ("asyncio.run(asyncio.open_unix_connection('/run/x'))", "unix", "reach the service over TCP, with network=[PORT]"),
    ("sqlite3.connect('/var/x.db')", "files", "the file /var/x.db (m.py:5). A function reads its own folder"),
    ("sqlite3.connect('file:/var/x.db?mode=ro', uri=True)", "files", "the file /var/x.db (m.py:5)"),
    (
        "sqlite3.connect(beside).execute('create table t (a)')",
        "files",
        "beside (m.py:5). A function's code and packages",
    ),
    ("ssl.create_default_context(cafile='/etc/shadow')", "files", "the file /etc/shadow (m.py:5)"),
    ("open(beside, 'w')", "files", "writing to "),
    ("multiprocessing.Lock()", "calls", "shared memory (m.py:5). Locks, queues and pools of multiprocessing need it"),
    ("multiprocessing.shared_memory.SharedMemory(create=True, size=9)", "calls", "shared memory (m.py:5)"),
    ("os.nice(1)", "calls", "a system call (m.py:5). No option opens it; docs/sandbox.md"),
    ("os.memfd_create('x')", "calls", "a system call (m.py:5)"),
    ("socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)", "calls", "a system call (m.py:5)"),
]
# What looks like a refusal, and is the program's own mistake, or another's word.
ITS_OWN = [
    "raise PermissionError('by hand')",
    "raise PermissionError(13, 'said the server')",
    "raise PermissionError(13, 'said the server', '/srv/orders')",
    "raise OSError(38, 'said the server')",
    "raise socket.herror(1, 'Unknown host')",
    "raise ssl.SSLError(1, 'wrong version number')",
    "mmap.mmap(source.fileno(), 0)",
    "sqlite3.connect('own.db').execute('nonsense')",
    "sqlite3.connect('no/such/folder/x.db')",
    "ssl.create_default_context(cafile='missing.pem')",
    "open('missing')",
]
ACTING = """
import asyncio, mmap, multiprocessing, multiprocessing.shared_memory, os, socket, sqlite3, ssl, subprocess, sys
def f(act):
    beside, source = os.path.dirname(__file__) + "/beside", open(__file__, "rb")
    exec(act)
"""


@pytest.mark.parametrize("level", WALLED)
def test_what_no_option_opens_is_told_with_its_line_and_what_to_do(base: Base, level: str) -> None:
    worker = base.serve(ACTING, level=level)
    for act, wall, told in ALWAYS_CLOSED:
        answer = worker.one(act)
        assert (answer.outcome, answer.fault.cause) == ("dead", f"wall:{wall}"), act
        assert answer.fault.message.startswith("blocked by echod: "), act
        assert told in answer.fault.message, (act, answer.fault.message)
        assert "It ended as " in answer.fault.message, act


@pytest.mark.parametrize("level", WALLED)
def test_what_the_program_or_a_server_says_is_no_refusal(base: Base, level: str) -> None:
    worker = base.serve(ACTING, level=level)
    for act in ITS_OWN:
        answer = worker.one(act)
        assert (answer.outcome, answer.fault.cause) == ("retry", "error"), (act, answer.fault.message)


@pytest.mark.parametrize("level", WALLED)
def test_where_the_network_is_open_its_no_is_no_refusal(base: Base, level: str) -> None:
    """The system forbids a broadcast to a socket that did not ask for it: EACCES, as a firewall's word can be."""
    act = "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.255.255.255', 9))"
    answer = base.serve(ACTING, level=level, policy=Policy(network=True)).one(act)
    assert (answer.outcome, answer.fault.cause) == ("retry", "error"), answer.fault.message
    assert answer.fault.exception == "PermissionError"


@pytest.mark.parametrize("level", WALLED)
def test_only_system_programs_and_the_interpreter_run(base: Base, level: str) -> None:
    worker = base.serve(ACTING, level=level, policy=Policy(processes=3))
    made = "open('t.sh', 'w').write('#!/bin/sh\\nexit 0'); os.chmod('t.sh', 0o755); "
    (base.folder / "beside").write_text("#!/bin/sh\nexit 0")
    (base.folder / "beside").chmod(0o755)
    for act in (f"{made}subprocess.run(['./t.sh'])", f"{made}os.posix_spawn('t.sh', ['t'], {{}})"):
        fault = worker.one(act).fault
        assert fault.cause == "wall:processes", act
        assert "t.sh (m.py:5). Only system programs and the interpreter run" in fault.message, act
    assert "hand it to one, as in" in worker.one("subprocess.run([beside])").fault.message
    hidden = worker.one("subprocess.run(['/srv/tool'])").fault  # nothing, or at strict: nothing that can be seen
    assert hidden.cause == ("wall:processes" if level == "strict" else "error")
    for act in (f"{made}subprocess.run(['sh', 't.sh'], check=True)", "subprocess.run([sys.executable, '-c', ''])"):
        assert worker.one(act).outcome == "done", act
    assert worker.one("subprocess.run(['no-such-program'])").fault.cause == "error"


def test_at_standard_tmp_itself_is_told_apart_from_the_folder_that_is_its_own(base: Base) -> None:
    worker = base.serve("import tempfile\ndef f(place): tempfile.TemporaryFile(dir=place).close()", level="standard")
    fault = worker.one("/tmp").fault
    assert fault.cause == "wall:files"
    assert f"$TMPDIR, $HOME and the working folder are {base.tmp}" in fault.message
    assert worker.one().outcome == "done"


@pytest.mark.parametrize("level", WALLED)
def test_the_first_refusal_counts_whatever_it_ends_as(base: Base, level: str) -> None:
    source = """
    import socket, subprocess
    def f():
        try:
            socket.create_connection(("127.0.0.1", 7), 2)
        except OSError:
            pass
        try:
            subprocess.run(["id"])
        except OSError:
            raise KeyError("nothing of that shows here") from None
    """
    fault = base.serve(source, level=level).one().fault
    assert fault.cause == "wall:network"
    assert "It ended as KeyError" in fault.message


@pytest.mark.parametrize("level", WALLED)
def test_a_swallowed_refusal_hurts_neither_this_run_nor_the_next(base: Base, level: str) -> None:
    source = """
    import contextlib, socket
    def f(payload):
        if payload == "try":
            with contextlib.suppress(OSError):
                socket.socket(socket.AF_INET)
            return "went on"
        raise ValueError("own")
    """
    worker = base.serve(source, level=level)
    assert worker.one("try").result == "went on"
    assert worker.one("fail").fault.cause == "error"


@pytest.mark.parametrize("level", WALLED)
def test_listed_ports_are_open_and_no_other(base: Base, level: str, port: int) -> None:
    assert base.serve(connecting(port), level=level, policy=Policy(network=(port,))).one().result == "in"
    fault = base.serve(connecting(port), level=level, policy=Policy(network=(9,))).one().fault
    assert fault.cause == "wall:network"
    assert f"network to 127.0.0.1:{port}. Add network=[9, {port}]" in fault.message
    for act in ("socket.socket(type=socket.SOCK_DGRAM)", "socket.socket(proto=262)", "socket.socket().bind(('', 0))"):
        source = f"import socket\ndef f(): {act}\n"
        assert base.serve(source, level=level, policy=Policy(network=(port,))).one().outcome != "done"


@pytest.mark.parametrize("level", WALLED)
def test_fast_open_is_no_way_around_the_ports(base: Base, level: str, port: int) -> None:
    source = f"import socket\ndef f(): socket.socket().sendto(b'x', 0x20000000, ('127.0.0.1', {port}))\n"
    assert base.serve(source, level=level, policy=Policy(network=(9,))).one().outcome != "done"


@pytest.mark.parametrize("level", WALLED)
def test_network_true_opens_all_but_unix_sockets(base: Base, level: str, port: int) -> None:
    policy = Policy(network=True)
    assert base.serve(connecting(port), level=level, policy=policy).one().result == "in"
    unix = "import socket\ndef f(): socket.socket(socket.AF_UNIX)\n"
    assert base.serve(unix, level=level, policy=policy).one().outcome != "done"


def test_breakpoint_fails_at_once_and_names_what_works(base: Base) -> None:
    assert "echod run" in base.serve("def f(): breakpoint()", level="standard").one().fault.message


def resolved(level: str, ports: list[int], act: str) -> dict[str, Any]:
    """What ACT gives where names are answered over TCP alone, with these ports open."""
    script = str(Path(__file__).with_name("resolving.py"))
    box = ["unshare", "--mount", "--net", *([] if IS_ROOT else ["--user", "--map-root-user"])]
    ran = subprocess.run(
        [*box, sys.executable, script, json.dumps(ports), level, act],
        stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=180, check=True,
    )  # fmt: skip
    said: dict[str, Any] = json.loads(ran.stdout)
    return said


@pytest.mark.parametrize("level", WALLED)
def test_where_ports_are_listed_names_are_resolved_over_tcp(level: str) -> None:
    """Asked by the C library itself, through /etc/resolv.conf, of a resolver at port 53 that has no UDP."""
    said = resolved(level, [8443], "socket.create_connection(('shop.example', 8443), 60).getpeername()")
    assert (said["outcome"], said["said"]) == ("done", ["127.0.0.1", 8443])
    assert any("shop" in question for question in said["asked"])


@pytest.mark.parametrize("level", WALLED)
def test_a_name_that_is_not_there_is_the_resolvers_word_and_no_refusal(level: str) -> None:
    said = resolved(level, [8443], "socket.create_connection(('nowhere.example', 8443), 60)")
    assert said["outcome"] == "retry"
    assert "Name or service not known" in said["said"]
    assert said["asked"]
