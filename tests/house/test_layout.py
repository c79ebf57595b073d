"""The house itself: top level, source roots, floors, what must never be committed."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOP_LEVEL = {
    *("pyproject.toml", "constraints.txt", "Makefile", "Procfile", "docker-compose.yml", "mkdocs.yml"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE", ".gitignore"),
    *("platform", "runtime", "functions", "tests", "bench", "docs", ".ci"),
}


def tracked() -> list[str]:
    """Every file of the project, committed or about to be."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_the_top_level_holds_what_the_design_names_and_nothing_else():
    assert {name.split("/")[0] for name in tracked()} == TOP_LEVEL


def test_source_roots_are_not_packages():
    """platform/__init__.py would shadow the standard library's `platform` and break every program started here."""
    assert not (ROOT / "platform/__init__.py").exists()
    assert not (ROOT / "runtime/__init__.py").exists()


def test_the_floors_hold():
    linter = Path(sys.executable).with_name("lint-imports")
    linted = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert linted.returncode == 0, linted.stdout


def test_no_file_names_a_package_registry_or_a_lock():
    locks = {"uv.lock", "poetry.lock", "pdm.lock", "package-lock.json", "yarn.lock"}
    assert not [name for name in tracked() if Path(name).name in locks]
    address = re.compile(rb"--(?:extra-)?index" + rb"-url|\"resolved\": *\"https?:")
    assert not [name for name in tracked() if address.search((ROOT / name).read_bytes())]


def test_a_light_import_of_echofn_brings_no_machinery():
    """A handler module that says `from echofn import queue, cron, every` must not pay for asyncio or msgspec."""
    code = "import sys; import echofn; from echofn import queue, cron, every; print(*sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    heavy = {"asyncio", "msgspec", "json", "logging", "socket", "subprocess", "ctypes", "echod", "redis"}
    assert not heavy & set(run.stdout.split())


def test_every_script_of_the_makefile_and_ci_is_executable():
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


WALL_CLOCK = re.compile(r"\btime\.time(_ns)?\b|\bdatetime\.(now|utcnow|today)\(|\bfrom time import [^\n]*\btime\b")
FOR_PEOPLE = {  # for a line of a log, a look by hand, the age of a file on this host, an answer's Date
    "platform/echod/cli/cron.py",
    "platform/echod/cli/doctor.py",
    "platform/echod/cli/foreground.py",
    "platform/echod/gateway/server.py",
    "platform/echod/log.py",
    "platform/echod/registry/folders.py",
}


def test_no_hosts_clock_decides_what_is_due_or_whose_a_lease_is():
    """However wrong it is: promise 2."""
    sources = [name for name in tracked() if re.match(r"(platform|runtime)/.*\.py$", name)]
    code = {name: re.sub(r"(?m)#.*$|\"[^\"\n]*\"", "", (ROOT / name).read_text()) for name in sources}
    assert {name for name, text in code.items() if WALL_CLOCK.search(text)} == FOR_PEOPLE
