"""A bus that asks nobody for a password, and functions whose opened ports include its own: not served, and said so."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from echod.bus import Bus
from echod.bus.exposed import open_port
from nodes import ECHOD, TOKEN, Node, environment, free_port, until
from server import Server

PLAIN = "from echofn import queue\n@queue\ndef f(): return 1\n"
REACHING = "from echofn import queue\n@queue(network=[443, PORT])\ndef g(): return 2\n"


@contextlib.contextmanager
def listening(port: int, *options: str) -> Iterator[Server]:
    server = Server("--port", str(port), "--bind", "127.0.0.1", *options, driven=False)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, {"plain.py": PLAIN})
    yield node
    node.close()


async def asked(address: str) -> int | None:
    bus = await Bus.open(address)
    try:
        return await open_port(bus, address)
    finally:
        await bus.close()


async def test_a_bus_is_asked_as_a_stranger_would(port: int) -> None:
    with listening(port) as server:
        assert await asked(f"valkey://127.0.0.1:{port}") == port
        assert await asked(server.address) == port  # used by its socket, and open all the same
        server.command("ACL", "SETUSER", "someone", "on", ">word", "~*", "&*", "+@all")
        assert await asked(f"valkey://someone:word@127.0.0.1:{port}") == port  # a password that others need not know
    with listening(port, "--requirepass", "word"):
        assert await asked(f"valkey://:word@127.0.0.1:{port}") is None
    with listening(0) as server:
        assert await asked(server.address) is None


def test_a_folder_with_a_function_that_reaches_it_is_refused_at_the_start(node: Node, port: int) -> None:
    node.save("reaching.py", REACHING.replace("PORT", str(port)))
    with listening(port):
        node.launch(
            "start",
            str(node.folder),
            "--state",
            str(node.state),
            "--bus",
            f"valkey://127.0.0.1:{port}",
            ECHOD_TOKEN=TOKEN,
        )
        assert node.process is not None
        assert node.process.wait(120) == 2
    assert f"reaching.py:2: reaching.g is not served: with network=[443, {port}]" in node.said().replace("\n", " ")
    assert "Traceback" not in node.said()


def test_with_a_password_it_is_served(node: Node, port: int) -> None:
    node.save("reaching.py", REACHING.replace("PORT", str(port)))
    with listening(port, "--requirepass", "word"):
        node.start("start", "--bus", f"valkey://:word@127.0.0.1:{port}", ECHOD_TOKEN=TOKEN)
        assert node.call("reaching.g") == 2
        node.end()


def test_saved_later_it_is_left_out_and_shown_and_the_others_are_served(node: Node, port: int) -> None:
    with listening(port):
        node.start("dev", "--bus", f"valkey://127.0.0.1:{port}", ECHOD_TOKEN=TOKEN)
        node.save("reaching.py", REACHING.replace("PORT", str(port)))
        until(node.errors)
        assert [error["file"] for error in node.errors()] == ["reaching.py"]
        assert node.names() == ["plain.f"]
        assert node.call("plain.f") == 1
        node.end()


def test_a_version_that_was_there_is_served_without_it(node: Node, port: int, tmp_path: Path) -> None:
    node.save("reaching.py", REACHING.replace("PORT", str(port)))
    with listening(port):
        bus = f"valkey://127.0.0.1:{port}"
        gateway = node.start("gateway", "--bus", bus, folder=False, ready=False, ECHOD_TOKEN=TOKEN)
        deployed = gateway.cli("deploy", str(node.folder))
        assert deployed.returncode == 0, deployed.stderr
        node.end()
        worker = Node(tmp_path / "other")
        try:
            worker.start("start", "--bus", bus, folder=False, ECHOD_TOKEN=TOKEN)
            assert worker.names() == ["plain.f"]
            assert [error["file"] for error in worker.errors()] == ["reaching.py"]
            assert worker.call("plain.f") == 1
            assert "error  reaching.py:2: reaching.g is not served" in worker.said()
            worker.end()
        finally:
            worker.close()


@contextlib.contextmanager
def weak_worker(bus: str, state: Path) -> Iterator[None]:
    """A worker node of its own, with fewer walls than a gateway's machine may have."""
    command = [*ECHOD, "worker", "--bus", bus, "--state", str(state), "--sandbox", "minimal"]
    worker = subprocess.Popen(
        command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        worker.terminate()
        worker.wait(60)


def test_what_a_worker_node_cannot_enforce_is_refused_where_it_is_deployed_and_shown_where_it_slipped_through(
    node: Node, port: int, tmp_path: Path
) -> None:
    def said() -> str:
        return " ".join(node.ask("GET", "/readyz")[1]["degraded"])

    with listening(port):
        bus = f"valkey://127.0.0.1:{port}"
        node.start("gateway", "--bus", bus, folder=False, ready=False, ECHOD_TOKEN=TOKEN)
        with weak_worker(bus, tmp_path / "weak"):
            until(lambda: any("worker" in each["roles"] for each in node.get("/nodes")["nodes"]), 60)
            for source, why in (
                (REACHING.replace("PORT", str(port)), "reaches the bus"),
                (
                    "from echofn import queue\n@queue(processes=2)\ndef g(): return 2\n",
                    "processes= at --sandbox minimal",
                ),
            ):
                node.save("more.py", source)
                refused = node.cli("deploy", str(node.folder))
                assert refused.returncode == 2
                assert why in " ".join(refused.stderr.split())
                assert "more.py:2" in refused.stderr
            assert node.get("/versions")["versions"] == []
        assert node.cli("deploy", str(node.folder)).returncode == 0  # nobody there to say that it cannot
        waiting = node.mint("more.g")
        with weak_worker(bus, tmp_path / "weak"):
            assert node.call("plain.f") == 1
            until(lambda: "more.g is not served" in said(), 60)
            told = [each["degraded"] for each in node.get("/nodes")["nodes"] if "worker" in each["roles"]]
            assert ["more.py:2" in text for text in told[0]] == [True]
            assert node.job(waiting)["state"] == "pending"
