"""The registry follows the bus: switches by news, by the beat when the news is lost, and mends its folders."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from echod.bus import Bus
from echod.bus.answers import Active
from echod.errors import Refused
from echod.model.ids import VersionId
from echod.registry import folders
from echod.registry import registry as registries
from echod.registry.archive import Archive, archived, pieces_of, version_of
from echod.registry.peers import About
from echod.registry.registry import Registry, Said
from echofn.manifest import Function, LoadError, Manifest, Policy, QueueTrigger
from server import PATIENCE_S


def function_of(name: str) -> Function:
    module, _, attribute = name.rpartition(".")
    return Function(name, module, attribute, f"{module}.py", 1, Policy(), (QueueTrigger(),))


async def stored(bus: Bus, archive: Archive, *functions: str) -> VersionId:
    manifest = Manifest(archive.package, tuple(map(function_of, functions)))
    await bus.put_version(version_of(archive), pieces_of(archive), msgspec.msgpack.encode(manifest))
    return version_of(archive)


ONE = archived("functions", {"shop.py": b"x = 1\n"})
TWO = archived("functions", {"shop.py": b"x = 2\n", "data.bin": os.urandom(1_200_000)})


@pytest.fixture
async def registry(bus: Bus, tmp_path: Path) -> AsyncIterator[Registry]:
    registry = Registry(bus, tmp_path / "state")
    running = asyncio.create_task(registry.run())
    yield registry
    running.cancel()
    registry.close()


async def changed(registry: Registry) -> None:
    """Wait for the next change."""
    heard = asyncio.Event()
    forget = registry.on_change(heard.set)
    async with asyncio.timeout(PATIENCE_S):
        await heard.wait()
    forget()


async def test_a_switch_is_heard_at_once_with_its_functions_and_errors(bus: Bus, registry: Registry) -> None:
    assert registry.active is None
    version = await stored(bus, ONE, "shop.pack")
    errors = (LoadError("bad", "bad.py", "no", 1, 2),)
    waiting = asyncio.create_task(changed(registry))
    await asyncio.sleep(0)
    active = await bus.activate(version, errors=msgspec.msgpack.encode(Said(errors, b"")))
    await waiting
    assert registry.active is not None
    assert (registry.active.version, registry.active.generation) == (version, active.generation)
    assert registry.active.errors == errors
    assert registry.names() == ["shop.pack"]
    assert registry.function("shop.pack") == function_of("shop.pack")
    assert registry.function("shop.gone") is None


async def test_the_beat_makes_good_a_switch_whose_news_was_lost(bus: Bus, tmp_path: Path) -> None:
    deaf = Registry(bus, tmp_path / "deaf")
    deaf.close()
    running = asyncio.create_task(deaf.run())
    version = await stored(bus, ONE, "shop.pack")
    active = await bus.activate(version)
    waiting = asyncio.create_task(changed(deaf))
    await asyncio.sleep(0)
    deaf.seen(active)
    await waiting
    assert deaf.active is not None
    assert deaf.active.version == version
    running.cancel()


async def test_a_version_described_anew_is_read_anew(bus: Bus, registry: Registry) -> None:
    version = await stored(bus, ONE, "shop.pack")
    await bus.activate(version, errors=msgspec.msgpack.encode(Said((), b"1")))
    await registry.refresh()
    await stored(bus, ONE, "shop.pack", "shop.send")
    await bus.activate(version, errors=msgspec.msgpack.encode(Said((), b"2")))
    await registry.refresh()
    assert registry.names() == ["shop.pack", "shop.send"]


async def test_a_folder_is_written_from_the_bus_and_mended_when_damaged(
    bus: Bus, registry: Registry, tmp_path: Path
) -> None:
    version = await stored(bus, TWO)
    roots = await asyncio.gather(*(registry.folder(version) for _ in range(5)))
    root = roots[0]
    assert set(roots) == {root}
    assert (root / "functions" / "data.bin").read_bytes() == TWO.files[0].data
    (root / "functions" / "shop.py").write_text("x = 666\n")
    fresh = Registry(bus, tmp_path / "state")
    assert ((await fresh.folder(version)) / "functions" / "shop.py").read_bytes() == b"x = 2\n"
    fresh.close()


async def test_a_folder_that_another_let_go_of_is_written_again_and_one_that_was_active_is_not_let_go(
    bus: Bus, registry: Registry, tmp_path: Path
) -> None:
    other = Registry(bus, tmp_path / "state")  # of another node on the same disk
    root = await registry.materialise(version_of(ONE), ONE)
    await other.let_go(version_of(ONE))
    assert [*root.parent.iterdir()] == []
    version = await stored(bus, ONE)
    assert (await registry.folder(version) / "functions" / "shop.py").read_bytes() == b"x = 1\n"
    await bus.activate(version)
    await other.let_go(version)
    assert root.exists()
    other.close()


async def test_a_version_that_is_not_stored_or_not_what_it_says_is_refused(bus: Bus, registry: Registry) -> None:
    with pytest.raises(Refused, match="not in the bus"):
        await registry.folder(VersionId("DEP00000000000"))
    assert await registry.manifest(VersionId("DEP00000000000")) is None
    false = VersionId("DEP00000000001")
    await bus.put_version(false, pieces_of(ONE), msgspec.msgpack.encode(Manifest("functions")))
    with pytest.raises(Refused, match="expected its own content"):
        await registry.folder(false)


async def test_what_cannot_be_read_leaves_the_last_picture_standing(bus: Bus, registry: Registry) -> None:
    good = await stored(bus, ONE, "shop.pack")
    await bus.activate(good)
    await registry.refresh()
    await bus.put_version(VersionId("DEP00000000002"), [], b"\xc1")
    await bus.activate(VersionId("DEP00000000002"))
    with pytest.raises(Refused):
        await registry.refresh()
    assert registry.active is not None
    assert registry.active.version == good
    assert registry.function("shop.pack") is not None
    registry.seen(Active(good, 1))


async def test_what_this_node_must_not_serve_is_left_out_at_a_switch_and_told(bus: Bus, tmp_path: Path) -> None:
    registry = Registry(
        bus, tmp_path / "state", own=About(), judge=lambda function, _: "not here" if "bad" in function.name else None
    )
    version = await stored(bus, ONE, "shop.bad", "shop.pack")
    await bus.activate(version)
    await registry.refresh()
    registry.close()
    assert registry.names() == ["shop.pack"]
    assert registry.active is not None
    assert [(error.file, error.line, error.message) for error in registry.active.errors] == [("shop.py", 1, "not here")]
    manifest = await registry.manifest(version)
    assert manifest is not None
    assert [function.name for function in manifest.functions] == ["shop.pack"]


async def test_a_folder_stays_while_a_worker_is_on_its_way_to_it_or_runs_whatever_the_bus_keeps(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Registry(bus, tmp_path / "state")
    mine.close()
    versions = [await stored(bus, archived("functions", {"m.py": b"x = %d\n" % n}), "m.f") for n in range(37)]
    first = versions.pop(0)
    await bus.activate(first)
    root = await mine.folder(first)

    async def twelve_later() -> bool:
        """Whether its folder is there when it is old and the bus has forgotten its version."""
        os.utime(root, (0, 0))
        for _ in range(12):
            await bus.activate(versions.pop())
        assert await bus.get_manifest(first) is None
        await mine.refresh()
        return root.exists()

    assert await twelve_later()  # asked for just now
    monkeypatch.setattr(registries, "USED_S", 0.0)
    mine.running = lambda: (first,)
    assert await twelve_later()
    mine.running = tuple
    assert not await twelve_later()


async def test_what_was_too_young_at_the_last_switch_leaves_the_disk_without_another(
    bus: Bus, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = await registry.materialise(version_of(ONE), ONE)  # the bus has it no more
    active = await bus.activate(await stored(bus, TWO, "shop.pack"))
    await registry.refresh()
    assert gone.exists()
    monkeypatch.setattr(folders, "KEPT_S", -1.0)
    registry.seen(active)
    async with asyncio.timeout(PATIENCE_S):
        while gone.exists():
            await asyncio.sleep(0.01)
    assert await registry.folder(active.version)


async def test_a_folder_that_is_asked_for_again_is_young_again_and_one_that_was_taken_away_is_not_handed_out(
    bus: Bus, registry: Registry
) -> None:
    version = await stored(bus, ONE)
    root = await registry.folder(version)
    os.utime(root, (0, 0))
    assert await registry.folder(version) == root
    assert root.stat().st_mtime > 0
    shutil.rmtree(root)  # another node of this machine, with the same state
    assert ((await registry.folder(version)) / "functions" / "shop.py").read_bytes() == b"x = 1\n"
