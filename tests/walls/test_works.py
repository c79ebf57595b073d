"""What a wall must never break: what plain handlers do all day, at every level, as everybody who may run echod."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from echofn.manifest import Policy
from echofn.walls import reach
from unit.runtime.driving import Base
from walls.machine import IS_ROOT, RUNTIME

LEVELS = ["minimal", "standard", "strict"]
PLAIN = """
import asyncio, concurrent.futures, csv, decimal, hashlib, io, json, logging, os, pathlib, random, secrets, shutil
import sqlite3, ssl, tempfile, threading, time, uuid, zipfile, zoneinfo
from datetime import datetime

async def together():
    return sum(await asyncio.gather(*(asyncio.to_thread(abs, -each) for each in range(4))))

def f():
    done = {}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "a.txt")
        path.write_text("text")
        path.chmod(0o600)
        os.utime(path, (10**9, 10**9))
        shutil.copytree(folder, folder + "-copy")
        shutil.move(folder + "-copy", folder + "-moved")
        with zipfile.ZipFile(pathlib.Path(folder, "z.zip"), "w") as archive:
            archive.write(path, "a.txt")
        base = sqlite3.connect(pathlib.Path(folder, "base.db"))
        base.execute("create table t (x)")
        base.execute("insert into t values (1)")
        base.commit()
        done["sqlite"] = base.execute("select x from t").fetchone()[0]
        base.close()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        done["threads"] = sum(pool.map(abs, range(-8, 0)))
    done["asyncio"] = asyncio.run(together())
    done["tls"] = bool(ssl.create_default_context().get_ca_certs()) or True
    done["zone"] = datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")).utcoffset().total_seconds()
    done["uuid"] = len(str(uuid.uuid4())) and len(secrets.token_hex(8))
    done["cwd"] = os.getcwd() == os.environ["HOME"] == tempfile.gettempdir()
    done["beside"] = pathlib.Path(__file__).with_name("beside.txt").read_text()
    done["list"] = sorted(each.name for each in pathlib.Path(__file__).parent.glob("*.txt"))
    lock = threading.Lock()
    with lock:
        time.sleep(0.001)
    print("printed")
    logging.getLogger("own").info("logged")
    return done
"""


@pytest.mark.parametrize("level", LEVELS)
def test_a_plain_handler_notices_nothing(base: Base, level: str) -> None:
    (base.folder / "beside.txt").write_text("data")
    answer = base.serve(PLAIN, level=level).one()
    assert answer.result == {
        **{"sqlite": 1, "threads": 36, "asyncio": 6, "tls": True, "zone": 7200.0, "uuid": 16},
        **{"cwd": True, "beside": "data", "list": ["beside.txt"]},
    }
    assert "printed" in answer.text("stdout")
    assert "logged" in answer.text("log")


@pytest.mark.parametrize("level", LEVELS)
def test_an_async_handler_has_its_loop(base: Base, level: str) -> None:
    source = "import asyncio\nasync def f():\n    await asyncio.sleep(0.001)\n    return 'well'\n"
    assert base.serve(source, level=level).one().result == "well"


@pytest.mark.parametrize("level", ["standard", "strict"])
def test_opened_processes_run_and_are_gone_after_the_run(base: Base, level: str) -> None:
    source = """
    import subprocess, time
    def f(payload):
        if payload == "leave":
            subprocess.Popen(["sleep", "60"])
            return "left"
        return subprocess.run(["sh", "-c", "echo out; exit 3"], capture_output=True, text=True).stdout
    """
    worker = base.serve(source, level=level, policy=Policy(processes=4))
    assert worker.one("run").result == "out\n"
    assert worker.one("leave").result == "left"
    worker.end()
    assert base.children() == []


@pytest.mark.parametrize("level", ["standard", "strict"])
def test_memory_beyond_the_limit_is_an_error_of_that_job(base: Base, level: str) -> None:
    worker = base.serve("def f(): return len(bytearray(200 << 20))", level=level, policy=Policy(memory_bytes=100 << 20))
    assert worker.one().fault.cause == "memory"


@pytest.mark.parametrize("level", ["minimal", "standard", "strict"])
def test_a_segfault_and_an_exit_are_told_as_they_were(base: Base, level: str) -> None:
    worker = base.serve("import ctypes\ndef f(): ctypes.string_at(0)", level=level)
    worker.begin()
    assert worker.end().status & 0x7F == 11
    worker = base.serve("import os\ndef f(): os._exit(7)", level=level)
    worker.begin()
    assert worker.end().status >> 8 == 7


OPENS = """
import os
def f(paths):
    said = {}
    for path in paths:
        try:
            os.close(os.open(path, os.O_RDONLY))
            said[path] = "open"
        except FileNotFoundError:
            said[path] = "not there"
        except PermissionError:
            said[path] = "refused"
    return said
"""


@pytest.mark.parametrize("level", ["standard", "strict"])
def test_beside_system_libraries_and_certificates_nothing_is_read(base: Base, level: str) -> None:
    """Projects live in /usr/src, too, and keys in /etc/ssl/private."""
    open_ones, closed = ["/usr/lib", "/usr/share/zoneinfo", "/etc/ssl/certs"], ["/usr", "/usr/src", "/etc/ssl/private"]
    there = [path for path in open_ones if os.path.exists(path)]
    said = base.serve(OPENS, level=level).one(there + closed).result
    assert all(said[path] == "open" for path in there)
    if level == "strict":  # what leads to a part is there, empty
        assert {said[path] for path in ("/usr/src", "/etc/ssl/private")} == {"not there"}
    else:
        assert {said[path] for path in closed if os.path.exists(path)} == {"refused"}


@pytest.mark.skipif(not IS_ROOT, reason="one user is enough")
@pytest.mark.parametrize("level", ["standard", "strict"])
def test_a_virtual_environment_in_the_projects_own_folder_does_not_open_the_project(folder: Path, level: str) -> None:
    """`python -m venv .`: its prefix is where .env and the state folder lie."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (packages / "beside.pth").write_text(f"{RUNTIME}\n{sysconfig.get_path('platlib')}\n")
    (folder / ".env").write_text("STRIPE_KEY=s\n")
    served = folder / "versions"
    served.mkdir()
    base = Base(served, python=str(folder / "bin" / "python"))
    try:
        said = base.serve(OPENS, level=level).one([str(folder / ".env"), str(packages)]).result
    finally:
        base.close()
    assert said == {str(folder / ".env"): "refused" if level == "standard" else "not there", str(packages): "open"}


def test_a_state_folder_that_workers_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(folder))
    state = folder / "share" / "state"
    state.mkdir(parents=True)
    (folder / "state").mkdir()
    assert reach.exposed([str(folder / "state"), str(folder)]) == ""
    assert f"workers read {state} with all that is in it: they need {folder}/share" in reach.exposed(["/", str(state)])
    told = subprocess.run(
        [sys.executable, "-I", "-B", "-c", TRIED, str(folder), str(state)], stdout=subprocess.PIPE, check=True
    )
    said = json.loads(told.stdout)
    assert any(why.startswith(f"files: workers read {state} ") for why in said["missing"])
    assert "files" not in said["walls"]


TRIED = """
import sys
from echofn.walls import trial
sys.prefix = sys.argv[1]
trial.main("standard", sys.argv[2])
"""
