"""Saving: new code is served, broken code never takes the last good down, and errors come and go with their cause."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from doing import impatient
from echod.bus import Bus
from echod.bus.answers import Active
from echod.deploy.discovery import Discovery
from echod.deploy.live import Live, Saved
from echod.deploy.publish import Publisher
from echod.errors import Refused
from echod.model.ids import VersionId
from echod.policy.plan import Deployed
from echod.registry.archive import archived, pieces_of
from echod.registry.registry import Registry
from server import PATIENCE_S, running

Write = Callable[[str, str], None]


def function(name: str, value: int = 1) -> str:
    return f"from echofn import queue\n@queue()\ndef {name}(payload):\n    return {value}\n"


def served(registry: Registry, path: str = "shop.py") -> str:
    """The content of a file of the active version, as a worker would import it."""
    assert registry.active is not None
    root = registry._versions / registry.active.version
    return (root / "functions" / path).read_text()


async def test_a_save_is_a_new_version_and_an_equal_one_is_not(live: Live, write: Write, registry: Registry) -> None:
    write("shop.py", function("pack"))
    first = await live.turn()
    assert first is not None
    assert registry.names() == ["shop.pack"]
    write("shop.py", function("pack"))
    assert await live.turn() is None
    write("shop.py", function("send"))
    second = await live.turn()
    assert second is not None
    assert second.version != first.version
    assert second.files == ("shop.py",)
    assert registry.names() == ["shop.send"]


async def test_a_taken_name_is_the_newcomers_fault_and_its_holder_goes_on_reloading(
    live: Live, write: Write, registry: Registry
) -> None:
    write("shop.py", function("pack", 1))
    await live.turn()
    write("aaa.py", function("pack").replace("@queue()", "@queue(name='shop.pack')"))
    write("shop.py", function("pack", 2))
    saved = await live.turn()
    assert saved is not None
    assert [error.file for error in saved.errors] == ["aaa.py"]
    assert "return 2" in served(registry)


async def test_a_broken_save_keeps_the_last_good_version_and_says_where(
    live: Live, write: Write, registry: Registry
) -> None:
    write("shop.py", function("pack"))
    write("other.py", function("lend", 1))
    await live.turn()
    write("shop.py", "def broken(:\n")
    write("other.py", function("lend", 2))
    broken = await live.turn()
    assert broken is not None
    [error] = broken.errors
    assert (error.file, error.line, error.column is not None) == ("shop.py", 1, True)
    assert registry.active is not None
    assert registry.active.errors == broken.errors
    assert registry.names() == ["other.lend", "shop.pack"]
    assert served(registry) == function("pack")
    assert served(registry, "other.py") == function("lend", 2)
    write("shop.py", function("pack", 3))
    fixed = await live.turn()
    assert fixed is not None
    assert fixed.mended
    assert registry.active.errors == ()
    assert served(registry) == function("pack", 3)


async def test_a_module_that_never_was_good_is_left_out(live: Live, write: Write, registry: Registry) -> None:
    write("shop.py", function("pack"))
    write("bad.py", "import nothing_of_this_name\n")
    first = await live.turn()
    assert first is not None
    assert [(error.file, error.line) for error in first.errors] == [("bad.py", 1)]
    assert registry.names() == ["shop.pack"]


async def test_a_bad_rule_leaves_out_its_function_and_an_edit_falls_back_to_the_good_one(
    live: Live, write: Write, registry: Registry
) -> None:
    good = "from echofn import cron\n@cron('0 6 * * *')\ndef report(): pass\n"
    write("shop.py", good + "\n@cron('0 0 30 2 *')\ndef never(): pass\n")
    first = await live.turn()
    assert first is not None
    assert [error.line for error in first.errors] == [5]
    assert registry.names() == ["shop.report"]
    write("shop.py", good)
    await live.turn()
    write("shop.py", good.replace("0 6 * * *", "0 6 * * * * *"))
    await live.turn()
    assert registry.names() == ["shop.report"]
    assert served(registry) == good


async def test_a_helper_that_breaks_its_users_keeps_the_whole_last_version(
    live: Live, write: Write, registry: Registry
) -> None:
    write("lib.py", "more = 1\n")
    write("shop.py", "from .lib import more\n" + function("pack"))
    await live.turn()
    assert registry.active is not None
    before = registry.active.version
    write("lib.py", "less = 1\n")
    broken = await live.turn()
    assert broken is not None
    assert broken.version == before
    assert [(error.file, error.line) for error in broken.errors] == [("shop.py", 1)]
    write("shop.py", "from .lib import less\n" + function("pack"))
    await live.turn()
    assert registry.active.errors == ()
    assert served(registry, "lib.py") == "less = 1\n"


async def test_a_helper_is_kept_for_whom_it_broke_and_other_saves_get_through(
    live: Live, write: Write, registry: Registry
) -> None:
    write("lib.py", "more = 1\n")
    write("shop.py", "from .lib import more\n" + function("pack"))
    write("other.py", function("lend"))
    await live.turn()
    write("lib.py", "less = 1\n")
    write("other.py", function("lend", 2))
    broken = await live.turn()
    assert broken is not None
    assert [error.file for error in broken.errors] == ["shop.py"]
    assert served(registry, "lib.py") == "more = 1\n"
    assert served(registry, "other.py") == function("lend", 2)
    assert registry.names() == ["other.lend", "shop.pack"]


async def test_where_two_need_a_helper_in_two_ways_the_whole_last_version_stays(
    live: Live, write: Write, registry: Registry
) -> None:
    write("lib.py", "more = 1\n")
    write("shop.py", "from .lib import more\n" + function("pack"))
    write("other.py", "from .lib import more\n" + function("lend"))
    first = await live.turn()
    assert first is not None
    write("lib.py", "less = 1\n")
    write("other.py", "from .lib import less\n" + function("lend", 2))
    broken = await live.turn()
    assert broken is not None
    assert broken.version == first.version
    assert [error.file for error in broken.errors] == ["shop.py"]
    assert registry.names() == ["other.lend", "shop.pack"]


async def test_a_broken_helper_is_served_as_it_last_was(live: Live, write: Write, registry: Registry) -> None:
    write("lib.py", "more = 1\n")
    write("shop.py", "from .lib import more\n" + function("pack"))
    await live.turn()
    write("lib.py", "more = (\n")
    broken = await live.turn()
    assert broken is not None
    assert {error.file for error in broken.errors} == {"lib.py", "shop.py"}
    assert served(registry, "lib.py") == "more = 1\n"
    assert registry.names() == ["shop.pack"]


async def test_deleting_and_renaming_a_module_removes_what_it_had(
    live: Live, write: Write, folder: Path, registry: Registry
) -> None:
    write("shop.py", function("pack"))
    write("gone.py", function("lend"))
    await live.turn()
    (folder / "gone.py").unlink()
    (folder / "shop.py").rename(folder / "store.py")
    await live.turn()
    assert registry.names() == ["store.pack"]
    write("gone.py", "def broken(:\n")
    await live.turn()
    assert registry.names() == ["store.pack"]


@pytest.mark.usefixtures("hangs")
async def test_a_hang_delays_saves_once_and_is_tried_again_when_its_code_changes(
    live: Live, write: Write, registry: Registry, tmp_path: Path
) -> None:
    tries = tmp_path / "tries"
    write("shop.py", function("pack"))
    write("slow.py", "from .lib import x\n" + function("lend"))
    write("lib.py", f"import time\nopen({str(tries)!r}, 'a').write('tried ')\ntime.sleep(3600)\n")
    first = await live.turn()
    assert first is not None
    assert {error.module for error in first.errors} == {"slow", "lib"}
    tried = tries.read_text()
    assert tried
    write("shop.py", function("pack", 2))
    second = await live.turn()
    assert second is not None
    assert tries.read_text() == tried
    assert {error.module for error in second.errors} == {"slow", "lib"}
    write("lib.py", "x = 1\n")
    third = await live.turn()
    assert third is not None
    assert third.errors == ()
    assert registry.names() == ["shop.pack", "slow.lend"]


@pytest.mark.usefixtures("hangs")
async def test_a_hang_is_tried_again_when_asked(live: Live, write: Write, tmp_path: Path) -> None:
    flag = tmp_path / "go"
    write(
        "slow.py",
        f"import os\nimport time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.01)\n" + function("lend"),
    )
    first = await live.turn()
    assert first is not None
    assert [error.kind for error in first.errors] == ["hang"]
    flag.touch()
    again = await live.turn(again=True)
    assert again is not None
    assert again.errors == ()


@pytest.mark.parametrize("path", ["report.v2.py", "v1.2/report.py"])
async def test_a_file_that_no_import_could_name_is_an_error_and_the_rest_goes_on(
    live: Live, write: Write, registry: Registry, path: str
) -> None:
    write("shop.py", function("pack", 1))
    await live.turn()
    write(path, function("send"))
    write("shop.py", function("pack", 2))
    saved = await live.turn()
    assert saved is not None
    assert [(error.file, "rename it" in error.message) for error in saved.errors] == [(path, True)]
    assert served(registry) == function("pack", 2)
    assert registry.names() == ["shop.pack"]


async def test_whatever_a_turn_raises_is_shown_and_the_next_save_is_served(
    live: Live, write: Write, registry: Registry, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("shop.py", function("pack", 1))
    await live.turn()
    write("shop.py", function("pack", 2))
    for fault in (KeyError("shop"), Refused("the disk is full"), OSError(28, "No space left on device")):

        async def broken(*_: object, fault: Exception = fault, **__: object) -> None:
            raise fault

        with monkeypatch.context() as patched:
            patched.setattr(publisher, "describe", broken)
            saved = await live.reloaded()
        assert saved is not None
        assert str(fault.args[-1]) in saved.errors[0].message
        assert registry.active is not None
        assert registry.active.errors == saved.errors
        assert served(registry) == function("pack", 1)
    saved = await live.reloaded()
    assert saved is not None
    assert saved.mended
    assert served(registry) == function("pack", 2)


async def test_a_folder_that_cannot_be_a_version_keeps_the_last_one(
    live: Live, write: Write, folder: Path, registry: Registry
) -> None:
    write("shop.py", function("pack"))
    await live.turn()
    (folder / "secret").symlink_to("/etc/passwd")
    refused = await live.turn()
    assert refused is not None
    assert "secret" in refused.errors[0].message
    assert registry.names() == ["shop.pack"]
    (folder / "secret").unlink()
    mended = await live.turn()
    assert mended is not None
    assert mended.mended
    assert registry.active is not None
    assert registry.active.errors == ()


async def test_a_folder_that_never_could_be_one_is_refused(live: Live, folder: Path) -> None:
    (folder / "secret").symlink_to("/etc/passwd")
    with pytest.raises(Refused, match="secret"):
        await live.turn()


async def test_after_a_restart_the_last_good_is_what_the_bus_has(
    live: Live, write: Write, folder: Path, bus: Bus, tmp_path: Path
) -> None:
    write("shop.py", function("pack"))
    await live.turn()
    write("shop.py", "def broken(:\n")
    fresh = Registry(bus, tmp_path / "state")
    restarted = Publisher(bus, fresh, Discovery("minimal", "dev", {}))
    saved = await Live(folder, restarted, tmp_path / "state").turn()
    assert saved is not None
    assert len(saved.errors) == 1
    assert fresh.names() == ["shop.pack"]
    fresh.close()


async def test_a_module_gets_the_secrets_it_names_and_no_others(live: Live, write: Write, registry: Registry) -> None:
    look = "import os\nfrom echofn import queue\nassert sorted(os.environ.keys() & {'TOKEN', 'OTHER'}) == %r\n"
    write("with_token.py", look % ["TOKEN"] + "@queue(secrets=['TOKEN'])\ndef f(): pass\n")
    write("without.py", look % [] + "@queue()\ndef f(): pass\n")
    saved = await live.turn()
    assert saved is not None
    assert saved.errors == ()
    assert registry.names() == ["with_token.f", "without.f"]


GREEDY = """
from echofn import importing, queue
honest = importing.describe
def describe(*told):
    import msgspec
    answer = honest(*told)
    greedy = tuple(msgspec.structs.replace(each, secrets=("OTHER",)) for each in answer.functions)
    return msgspec.structs.replace(answer, functions=greedy)
importing.describe = describe
@queue(secrets=["TOKEN"])
def charge(): pass
@queue
def refund(): pass
"""


async def test_a_modules_functions_get_what_its_source_names_whatever_its_code_says(
    live: Live, write: Write, registry: Registry
) -> None:
    write("pay.py", GREEDY)
    saved = await live.turn()
    assert saved is not None
    assert saved.errors == ()
    secrets = {name: getattr(registry.function(name), "secrets", None) for name in registry.names()}
    assert secrets == {"pay.charge": ("TOKEN",), "pay.refund": ("TOKEN",)}


async def test_the_watcher_turns_a_save_into_a_version(
    live: Live, write: Write, folder: Path, registry: Registry
) -> None:
    write("shop.py", function("pack"))
    await live.follow()
    heard = asyncio.Event()
    registry.on_change(heard.set)
    said: list[Saved] = []
    watching = asyncio.create_task(live.run(said.append))
    while not said:  # until the watcher is up, a save can be missed
        write("shop.py", function("pack", len(said) + time.monotonic_ns()))
        await asyncio.sleep(0.3)
    heard.clear()
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "shop.pyc").write_bytes(b"")
    for number in range(5):
        write("shop.py", function("pack", number))
    async with asyncio.timeout(PATIENCE_S):
        while served(registry) != function("pack", 4):
            await heard.wait()
            heard.clear()
    watching.cancel()
    await asyncio.wait({watching})


async def test_a_bus_that_is_away_is_waited_for(
    write: Write, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("shop.py", function("pack"))
    async with running(append_only=True) as server:
        bus = await Bus.open(server.address)
        registry = Registry(bus, tmp_path / "state")
        live = Live(folder, Publisher(bus, registry, Discovery("minimal", "dev", {})), tmp_path / "state")
        server.kill()
        tries, turn = asyncio.Queue[None](), live.turn

        async def noted(**how: bool) -> Saved | None:
            tries.put_nowait(None)
            return await turn(**how)

        monkeypatch.setattr(live, "turn", noted)
        with impatient(bus):
            following = asyncio.create_task(live.follow())
            for _ in range(2):  # once, and once more after that was in vain
                await asyncio.wait_for(tries.get(), PATIENCE_S)
        assert not following.done()
        await asyncio.to_thread(server.start)
        async with asyncio.timeout(PATIENCE_S):
            saved = await following
        assert saved is not None
        assert registry.names() == ["shop.pack"]
        registry.close()
        await bus.close()


async def upload(path: str, text: str) -> AsyncIterator[bytes]:
    """A packed folder of one file, as it comes in."""
    for piece in pieces_of(archived("functions", {path: text.encode()})):
        yield piece


async def test_an_upload_of_a_file_that_no_import_could_name_is_refused(publisher: Publisher) -> None:
    for path in ("report.v2.py", "v1.2/report.py", "a\\..\\b.py"):
        with pytest.raises(Refused, match=f"^nothing was switched: {re.escape(path)}: expected a name"):
            await publisher.deployed(upload(path, function("f")))


@pytest.mark.parametrize(("damage", "starts"), [("unreadable", False), ("missing", True)])
async def test_where_what_is_active_cannot_be_read_a_deploy_and_a_rollback_go_through(
    publisher: Publisher, registry: Registry, bus: Bus, tmp_path: Path, damage: str, starts: bool
) -> None:
    good = (await publisher.deployed(upload("shop.py", function("pack", 1)))).version
    damaged = VersionId("DEP00000000002")
    if starts:
        registry = Registry(bus, tmp_path / "state")
        publisher = Publisher(bus, registry, publisher._discovery)

    async def break_it() -> None:
        await bus.put_version(damaged, [], b"\xc1")
        await bus.activate(damaged)
        if damage == "missing":
            await bus.link.command("DEL", f"emq:{{~}}:version:{damaged}:manifest")
        with pytest.raises(Refused):
            await registry.refresh()
        assert registry.unreadable is not None

    await break_it()
    planned = await publisher.deployed(upload("shop.py", function("pack", 1)), only_plan=True)
    assert planned.plan.new == ("shop.pack",)
    assert damaged in (planned.plan.unknown or "")
    assert (await publisher.activated(good)).plan.unknown is not None
    assert registry.active is not None
    assert (registry.active.version, registry.unreadable) == (good, None)
    await break_it()
    done = await publisher.deployed(upload("shop.py", function("pack", 1)))  # what this node served all along
    active, _raw = await bus.active()
    assert active is not None
    assert (active.version, active.generation) == (good, done.generation)
    registry.close()


async def test_a_plan_and_a_refusal_leave_nothing_on_disk_and_what_is_stored_stays(
    publisher: Publisher, registry: Registry, tmp_path: Path
) -> None:
    good = function("pack", 1)
    versions = tmp_path / "state" / "versions"
    await publisher.deployed(upload("shop.py", good), only_plan=True)
    assert [*versions.iterdir()] == []
    done = await publisher.deployed(upload("shop.py", good))
    await publisher.deployed(upload("shop.py", function("pack", 2)), only_plan=True)
    await publisher.deployed(upload("shop.py", good), only_plan=True)
    with pytest.raises(Refused):
        await publisher.deployed(upload("shop.py", "def broken(:"))
    assert [path.name for path in versions.iterdir()] == [done.version]
    assert await registry.folder(done.version) == versions / done.version


async def test_a_deploy_that_its_caller_gives_up_leaves_nothing_on_disk(publisher: Publisher, tmp_path: Path) -> None:
    versions = tmp_path / "state" / "versions"
    deploying = asyncio.create_task(publisher.deployed(upload("shop.py", "while True: pass\n")))
    async with asyncio.timeout(PATIENCE_S):
        while not [*versions.glob("DEP*")]:
            await asyncio.sleep(0.01)
    deploying.cancel()
    await asyncio.wait({deploying})
    assert [*versions.iterdir()] == []


@pytest.fixture
def patient(bus: Bus, registry: Registry) -> Publisher:
    """One under which an import that hangs does so for as long as a test lasts."""
    return Publisher(bus, registry, Discovery("minimal", "dev", {}, limit_ms=120_000, all_ms=120_000))


async def importing(deploying: asyncio.Task[Deployed], tmp_path: Path, among: int = 1) -> None:
    """Wait until as many folders are there as are being imported, or served."""
    async with asyncio.timeout(PATIENCE_S):
        while len([*(tmp_path / "state" / "versions").glob("DEP*")]) < among:
            assert not deploying.done()
            await asyncio.sleep(0.01)


HANG = "while True: pass\n"


async def test_no_switch_waits_for_an_import_and_no_deploy_for_a_plans(
    patient: Publisher, registry: Registry, tmp_path: Path
) -> None:
    first = (await patient.deployed(upload("shop.py", function("pack", 1)))).version
    plan = asyncio.create_task(patient.deployed(upload("shop.py", HANG), only_plan=True))
    await importing(plan, tmp_path, 2)
    await patient.deployed(upload("shop.py", function("pack", 2)))
    deploying = asyncio.create_task(patient.deployed(upload("shop.py", HANG + "#")))
    await importing(deploying, tmp_path, 4)
    assert (await patient.activated(first)).generation == 3
    assert registry.active is not None
    assert registry.active.version == first
    waiting = asyncio.create_task(patient.deployed(upload("shop.py", function("pack", 3))))
    await asyncio.sleep(0)
    for task in (waiting, deploying, plan):  # the one that waits is given up as those that import are
        assert not task.done()
        task.cancel()
    await asyncio.wait({waiting, deploying, plan})
    assert (registry.active.version, registry.active.generation) == (first, 3)


async def test_one_version_is_worked_on_by_one_at_a_time(patient: Publisher, registry: Registry) -> None:
    """A plan lets go of the files that it has written; a deploy of the same ones must not lose them."""
    text = function("pack", 1)
    plan, done, again = await asyncio.gather(
        patient.deployed(upload("shop.py", text), only_plan=True),
        patient.deployed(upload("shop.py", text)),
        patient.deployed(upload("shop.py", text), only_plan=True),
    )
    assert plan.version == done.version == again.version
    root = await registry.folder(done.version)
    assert (root / "functions" / "shop.py").read_text() == text


async def test_a_deploy_that_is_given_up_once_its_switch_is_being_written_is_switched_whole(
    publisher: Publisher, registry: Registry, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, rest = asyncio.Event(), asyncio.Event()
    activate = bus.activate

    async def slowly(version: VersionId, **given: bytes) -> Active:
        begun.set()
        await rest.wait()
        return await activate(version, **given)

    monkeypatch.setattr(bus, "activate", slowly)
    deploying = asyncio.create_task(publisher.deployed(upload("shop.py", function("pack", 1))))
    await begun.wait()
    deploying.cancel()
    rest.set()
    await asyncio.wait({deploying})
    assert deploying.cancelled()
    assert registry.names() == ["shop.pack"]


@pytest.mark.parametrize("path", [".env", "a/prod.env", ".git/config", "a/__pycache__/b.txt", "x.pyc"])
async def test_an_upload_of_what_no_deploy_packs_is_refused(publisher: Publisher, path: str) -> None:
    with pytest.raises(Refused, match=f"^nothing was switched: {re.escape(path)}: expected no settings"):
        await publisher.deployed(upload(path, "x"))


async def test_a_module_beside_a_package_of_its_name_is_refused(live: Live, write: Write, registry: Registry) -> None:
    write("a.py", function("f"))
    write("a/__init__.py", "")
    write("b.py", function("g"))
    saved = await live.turn()
    assert saved is not None
    told = "expected a name of its own, got that of a/__init__.py, which an import finds; rename one of them"
    assert ("a.py", told) in [(error.file, error.message) for error in saved.errors]
    assert registry.names() == ["b.g"]
