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
from echofn.walls import trial
from unit.runtime.driving import Base, Worker, alive, job, until
from walls.conftest import WHO
from walls.machine import BOX, IS_ROOT, TERMINAL, Arena, Who, alone, open_folder

ATTACKS = {
    path.stem: path.read_text() for path in sorted((Path(__file__).parents[1] / "data/attacks").glob("[0-9]*.py"))
}
PATIENCE_S = 60.0
HANG_S = 0.5  # for those that never end by themselves
# Nothing that these do needs a wall: it hurts their own worker, or the protocol and a kill from outside end it. That is
# shown by running them at `off`, too, with the same outcome.
AT_OFF = {
    name
    for name in ATTACKS
    if name[:2] in {*map(str, range(20, 32)), "08", "09", "12", "34", "35", "54", "55", "56", "57"}
}
HANGS = {name for name in ATTACKS if name[:2] in {"08", "09", "12", "22", "30", "31", "33", "56"}}
# These reach their goal at level `off`: a control, without which holding them would say nothing.
CONTROLS = [
    *("01_read_etc_shadow", "02_read_sibling_source", "03_parent_environ", "04_bus_unix_socket", "05_bus_tcp_loopback"),
    *("17_unshare_userns", "36_symlink_escape", "38_unlink_or_edit_own_code", "40_inotify_fanotify", "43_io_uring"),
    *("44_personality_aslr", "49_stat_and_metadata_outside", "50_abstract_unix_socket", "51_udp_dns_exfil"),
    *("52_x32_and_int80_syscalls", "58_path_traversal_proc_self"),
]
# And these where it breaks nothing: without any wall, in namespaces that are thrown away. What they then say, and who
# has to be whoever runs them.
BOXED = {
    "06_fork_bomb": ("ESCAPED 500 forks", "anyone"),
    "11_many_files_quota": ("ESCAPED wrote 600 MB", "anyone"),
    "13_kill_minus_1": ("ESCAPED could signal", "anyone"),
    "14_ptrace_parent": ("ESCAPED ptrace", "anyone"),
    "15_setuid_root": ("ESCAPED", "root"),
    "16_mount": ("ESCAPED", "root"),
    "18_raw_and_odd_sockets": ("ESCAPED families", "anyone"),
    "19_double_fork_daemon": ("daemonised", "anyone"),
    "37_dev_shm_and_sysv_leftovers": ("ESCAPED", "anyone"),
    "39_exec_setuid_binary": ("uid=0|Password: ", "anyone"),
    "41_keyctl": ("ESCAPED", "anyone"),
    "42_bpf_perf_userfaultfd": ("ESCAPED", "user"),  # root's would unload the crash kernel
    "45_core_dump": ("ESCAPED core", "anyone"),
    "46_raise_rlimits": ("ESCAPED.*prlimit parent", "anyone"),
    "47_fd_exhaustion": (r"ESCAPED|blocked at (?!25\d)\d{3,}:", "anyone"),  # the machine's limit, not ours of 256
    "53_tiocsti": ("ESCAPED", "anyone"),
}
# Not safe without walls anywhere on this machine. Each is still held at every level that says so.
UNSAFE = {
    "07_alloc_10gb": "takes 10 GB of memory, which no namespace bounds",
    "10_write_10gb_file": "fills the disk",
    "32_return_1gb": "takes 1 GB of memory and as much for its copy",
    "33_recursion_bomb": "takes all memory there is, frame by frame",
    "48_thread_bomb": "5,000 threads stop every other test of the machine",
}
# At `minimal` these get through, each for want of a wall that `echod sandbox` then shows as off.
THROUGH = {
    **dict.fromkeys(
        ("01_read_etc_shadow", "02_read_sibling_source", "03_parent_environ", "36_symlink_escape"), "files"
    ),
    **dict.fromkeys(("38_unlink_or_edit_own_code", "58_path_traversal_proc_self"), "files"),
    **dict.fromkeys(("04_bus_unix_socket", "17_unshare_userns", "40_inotify_fanotify", "44_personality_aslr"), "calls"),
    **dict.fromkeys(("49_stat_and_metadata_outside", "50_abstract_unix_socket", "51_udp_dns_exfil"), "calls"),
    **{"05_bus_tcp_loopback": "ports", "52_x32_and_int80_syscalls": "calls"},
}
# These, too, or are held: in namespaces that are thrown away. What they then say, whoever runs them or only as root.
BOXED_AT_MINIMAL = {
    "06_fork_bomb": ("ESCAPED 500 forks", "anyone", "process-count"),
    "11_many_files_quota": (
        "ESCAPED wrote 600 MB",
        "anyone",
        "private-tmp",
    ),  # the supervisor looks: tests/unit/supervisor
    "13_kill_minus_1": ("ESCAPED could signal", "anyone", "signals"),
    "14_ptrace_parent": ("ESCAPED", "anyone", "calls"),
    "15_setuid_root": ("ESCAPED", "root", "uid"),  # it is root already, and has no capability
    "16_mount": ("^blocked", "anyone", None),
    "18_raw_and_odd_sockets": ("ESCAPED families", "anyone", "calls"),
    "19_double_fork_daemon": (
        "daemonised",
        "anyone",
        "process-count",
    ),  # and is gone with its run: unit/runtime/test_base
    "37_dev_shm_and_sysv_leftovers": ("ESCAPED", "anyone", "calls"),
    "39_exec_setuid_binary": ("su: |Password: ", "anyone", None),  # it runs, and gives nothing
    "41_keyctl": ("ESCAPED", "anyone", "calls"),
    "42_bpf_perf_userfaultfd": ("ESCAPED", "anyone", "calls"),
    "45_core_dump": ("ESCAPED dumpable", "anyone", "calls"),
    "46_raise_rlimits": ("ESCAPED.*prlimit parent", "anyone", "calls"),
    "53_tiocsti": ("^blocked", "anyone", None),
}
# What is left limits, kills, the protocol and the loss of all capabilities hold at every level above `off`.
AT_MINIMAL = {name for name in ATTACKS if name not in THROUGH and name not in BOXED_AT_MINIMAL}
WHO_AT_MINIMAL = [who for who in WHO if who != "root-public"]  # root stays root there, whoever can read its interpreter
VISIBLE_AT_STANDARD = {"stat", "stat sibling", "chdir"}  # names and sizes: only a private root hides them


@pytest.fixture
def arena(who: Who) -> Iterator[Arena]:
    with open_folder() as folder:
        arena = Arena(folder, who.user)
        yield arena
        arena.close()


def put(base: Base, arena: Arena, name: str) -> str:
    source = arena.aimed(ATTACKS[name]) + "\n\ndef f():\n    return str(handler())[:500]\n"
    path = base.folder / "m.py"
    path.write_text(source)
    return source


def verdict(base: Base, level: str, name: str) -> str:
    """What became of the attempt: "ok:…" it answered, "err:…" it failed, "eof …" it died, "timeout" we ended it."""
    worker = base.spawn(level=level)
    patience_s = HANG_S if name in HANGS else PATIENCE_S
    end = time.monotonic() + (patience_s if name.startswith("56") else PATIENCE_S)
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
                end = time.monotonic() + patience_s
            case frames.Ended():
                said = _of(message)
                break
            case _:
                pass
    _ended(base, worker)
    return said


def is_roots(who: Who) -> bool:
    return IS_ROOT and who.user is None


def boxed(who: Who, folder: Path, arena: Arena, name: str, level: str, *without: str) -> str:
    """What an attack says behind these walls, in namespaces that are thrown away."""
    box = (*BOX, *(() if is_roots(who) else ("--user", "--map-current-user")))
    if name.startswith("53"):
        box = (*box, *TERMINAL)
    return alone(who, folder, arena.aimed(ATTACKS[name]), level, *without, before=box)


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
        *((name, "off") for name in sorted(AT_OFF)),
    ],
)
def test_an_attack_ends_at_the_walls(base: Base, arena: Arena, name: str, level: str) -> None:
    source = put(base, arena, name)
    said = verdict(base, level, name)
    if name.startswith("49") and level == "standard" and said.startswith("ok:ESCAPED"):
        assert set(re.findall(r"'([^']+)'", said)) <= VISIBLE_AT_STANDARD
    elif name.startswith("11") and level == "standard":
        pass  # the supervisor's quota, not the worker's walls: tests/unit/supervisor
    else:
        assert "ESCAPED" not in said
    if "ok:blocked" in ATTACKS[name].partition("EXPECT")[2].partition("\n")[0] and not name.startswith(("11", "49")):
        assert said.startswith(("ok:blocked", "err:wall:")) or level in {"minimal", "off"}, said
    assert not arena.was_reached()
    assert arena.is_untouched()
    assert (base.folder / "m.py").read_text() == source
    assert base.process.poll() is None
    assert base.children() == []
    assert not arena.left.exists()
    assert not os.path.exists("core")


@pytest.mark.parametrize("who", WHO_AT_MINIMAL, indirect=True)
@pytest.mark.parametrize("name", THROUGH)
def test_an_attack_gets_through_where_minimal_has_no_wall(base: Base, arena: Arena, name: str) -> None:
    put(base, arena, name)
    assert verdict(base, "minimal", name).startswith("ok:ESCAPED")
    assert base.process.poll() is None
    assert base.children() == []


@pytest.mark.parametrize("who", WHO_AT_MINIMAL, indirect=True)
@pytest.mark.parametrize("name", BOXED_AT_MINIMAL)
def test_an_attack_in_a_box_gets_at_minimal_as_far_as_is_told(arena: Arena, folder: Path, who: Who, name: str) -> None:
    wanted, whose, _ = BOXED_AT_MINIMAL[name]
    said = boxed(who, folder, arena, name, "minimal")
    assert re.search(wanted if whose == "anyone" or is_roots(who) else "^blocked", said), said
    assert "uid=0" not in said


def test_minimal_names_each_wall_that_an_attack_gets_through_for_want_of(base: Base) -> None:
    (base.folder / "m.py").write_text("def f(): pass\n")
    up = base.spawn(level="minimal").start().walls
    states = {row[0]: row[2] for row in trial.states(trial.Available("minimal", (), up), "minimal")}
    wanting = {*THROUGH.values(), *(wall for *_, wall in BOXED_AT_MINIMAL.values() if wall is not None)}
    assert {wall: states[wall] for wall in wanting} == dict.fromkeys(wanting, "off")


@pytest.mark.parametrize("name", CONTROLS)
def test_the_same_attack_succeeds_without_walls(base: Base, arena: Arena, who: Who, name: str) -> None:
    put(base, arena, name)
    assert "ESCAPED" in verdict(base, "off", name)


@pytest.mark.parametrize("name", BOXED)
def test_the_same_attack_succeeds_in_a_box_without_walls(arena: Arena, folder: Path, who: Who, name: str) -> None:
    wanted, whose = BOXED[name]
    if whose != "anyone" and is_roots(who) != (whose == "root"):
        return  # not this user's to do
    said = boxed(who, folder, arena, name, "off", "all")
    assert re.search(wanted, said), said


def test_every_attack_has_a_control_or_a_reason_why_not() -> None:
    told = [*CONTROLS, *BOXED, *AT_OFF, *UNSAFE]
    assert sorted(told) == sorted(ATTACKS)
    assert sorted([*AT_MINIMAL, *THROUGH, *BOXED_AT_MINIMAL]) == sorted(ATTACKS)
    assert {*CONTROLS, *BOXED} > {*THROUGH, *BOXED_AT_MINIMAL}  # what minimal lets through has a control without walls


@pytest.mark.parametrize("level", ["minimal", "standard", "strict"])
def test_the_next_job_of_another_function_runs_after_all_of_them(base: Base, arena: Arena, level: str) -> None:
    for name in ("07_alloc_10gb", "24_segfault", "30_huge_frame_header"):
        put(base, arena, name)
        verdict(base, level, name)
    assert base.serve("def f(): return 'well'", level=level).one().result == "well"
