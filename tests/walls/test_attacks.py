"""Every hostile handler of tests/data/attacks, at every level that walls it in, as everybody who may run echod.

Each that is safe to run unconfined also runs once without walls and must then succeed: else it would test nothing.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from echofn import frames
from unit.runtime.driving import Base, Worker, alive, job, until
from walls.machine import Arena, Who, open_folder

ATTACKS = {
    path.stem: path.read_text() for path in sorted((Path(__file__).parents[1] / "data/attacks").glob("[0-9]*.py"))
}
PATIENCE_S = 2.0
# Limits, kills and the protocol hold at every level above `off`.
AT_MINIMAL = {
    name
    for name in ATTACKS
    if name[:2] in {"07", "09", "10", "21", "24", "25", "26", "27", "31", "32", "34", "47", "56", "57"}
}
# These reach their goal when nothing is in the way. (14 and 46 do, too, and take the base and this harness along.)
CONTROLS = [
    *("01_read_etc_shadow", "02_read_sibling_source", "03_parent_environ", "04_bus_unix_socket", "05_bus_tcp_loopback"),
    *(
        "17_unshare_userns",
        "36_symlink_escape",
        "38_unlink_or_edit_own_code",
        "40_inotify_fanotify",
    ),
    *("43_io_uring", "44_personality_aslr", "49_stat_and_metadata_outside", "51_udp_dns_exfil"),
    *("52_x32_and_int80_syscalls", "58_path_traversal_proc_self"),
]
VISIBLE_AT_STANDARD = {"stat", "stat sibling", "chdir"}  # names and sizes: only a private root hides them


@pytest.fixture
def arena(who: Who) -> Iterator[Arena]:
    with open_folder() as folder:
        arena = Arena(folder, who.user)
        yield arena
        arena.close()


def put(base: Base, arena: Arena, name: str) -> str:
    source = ATTACKS[name].replace("@ARENA@", str(arena.folder)) + "\n\ndef f():\n    return str(handler())[:500]\n"
    path = base.folder / "m.py"
    path.write_text(source)
    return source


def verdict(base: Base, level: str) -> str:
    """What became of the attempt: "ok:…" it answered, "err:…" it failed, "eof …" it died, "timeout" we ended it."""
    worker = base.spawn(level=level)
    end = time.monotonic() + PATIENCE_S
    said = "timeout"
    sent = False
    while (left := end - time.monotonic()) > 0:
        try:
            message = worker.read(left)
        except TimeoutError:
            break
        except (OSError, AssertionError, msgspec.MsgspecError, RecursionError):
            said = "badframe"
            break
        if message is None:
            base.kill(worker)
            said = f"eof {worker.end().status}"
            break
        match message:
            case frames.Failed():
                said = f"err:{message.exception}:{message.message}"
                break
            case frames.Ready() if not sent:
                sent = True
                worker.send(frames.Run((job(),), 2_000))
            case frames.Ended():
                said = _of(message)
                break
            case _:
                pass
    _ended(base, worker)
    return said


def _of(ended: frames.Ended) -> str:
    if ended.fault is not None:
        return f"err:{ended.fault.cause}:{ended.fault.message}"
    return f"ok:{msgspec.msgpack.decode(ended.result)}"


def _ended(base: Base, worker: Worker) -> None:
    base.kill(worker)
    worker.end()
    until(lambda: not alive(worker.pid))


@pytest.mark.parametrize(
    ("name", "level"),
    [
        *((name, level) for name in ATTACKS for level in ("standard", "strict")),
        *((name, "minimal") for name in sorted(AT_MINIMAL)),
    ],
)
def test_an_attack_ends_at_the_walls(base: Base, arena: Arena, name: str, level: str) -> None:
    source = put(base, arena, name)
    said = verdict(base, level)
    if name.startswith("49") and level == "standard" and said.startswith("ok:ESCAPED"):
        assert set(re.findall(r"'([^']+)'", said)) <= VISIBLE_AT_STANDARD
    elif name.startswith("11") and level == "standard":
        pass  # the supervisor's quota, not the worker's walls: tests/unit/supervisor
    else:
        assert "ESCAPED" not in said
    if "ok:blocked" in ATTACKS[name].partition("EXPECT")[2].partition("\n")[0] and not name.startswith(("11", "49")):
        assert said.startswith(("ok:blocked", "err:wall:")) or (level == "minimal" and "ESCAPED" not in said), said
    assert not arena.was_reached()
    assert arena.is_untouched()
    assert (base.folder / "m.py").read_text() == source
    assert base.process.poll() is None
    assert base.children() == []
    for left in ("/dev/shm/left", "core"):
        assert not os.path.exists(left)


@pytest.mark.parametrize("name", CONTROLS)
def test_the_same_attack_succeeds_without_walls(base: Base, arena: Arena, who: Who, name: str) -> None:
    put(base, arena, name)
    assert "ESCAPED" in verdict(base, "off")


@pytest.mark.parametrize("level", ["minimal", "standard", "strict"])
def test_the_next_job_of_another_function_runs_after_all_of_them(base: Base, arena: Arena, level: str) -> None:
    for name in ("07_alloc_10gb", "24_segfault", "30_huge_frame_header"):
        put(base, arena, name)
        verdict(base, level)
    assert base.serve("def f(): return 'well'", level=level).one().result == "well"
