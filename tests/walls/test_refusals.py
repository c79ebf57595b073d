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
        ("open('/etc/passwd')", "files", "the file /etc/passwd. A function reads its own folder and writes to /tmp"),
        ("open(__file__, 'a')", "files", "m.py. A function reads its own folder"),
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
        stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=60, check=True,
    )  # fmt: skip
    said: dict[str, Any] = json.loads(ran.stdout)
    return said


@pytest.mark.parametrize("level", WALLED)
def test_where_ports_are_listed_names_are_resolved_over_tcp(level: str) -> None:
    """Asked by the C library itself, through /etc/resolv.conf, of a resolver at port 53 that has no UDP."""
    said = resolved(level, [8443], "socket.create_connection(('shop.example', 8443), 5).getpeername()")
    assert (said["outcome"], said["said"]) == ("done", ["127.0.0.1", 8443])
    assert any("shop" in question for question in said["asked"])


@pytest.mark.parametrize("level", WALLED)
def test_a_name_that_is_not_there_is_the_resolvers_word_and_no_refusal(level: str) -> None:
    said = resolved(level, [8443], "socket.create_connection(('nowhere.example', 8443), 5)")
    assert said["outcome"] == "retry"
    assert "Name or service not known" in said["said"]
    assert said["asked"]
