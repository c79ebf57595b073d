"""What a module depends on, read from its syntax."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from echod.deploy.imports import MAX_SOURCE_BYTES, Known, Sources
from echofn.parsing import said_of

FILES = {
    "shop.py": b"from .lib import more\nfrom . import prices\nimport os\n",
    "lib.py": b"from functions.deep.far import x\n",
    "prices.py": b"",
    "deep/__init__.py": b"",
    "deep/far.py": b"from ..other import y\nfrom .near import z\nimport functions.last\n",
    "deep/near.py": b"from ... import beyond\n",
    "other.py": b"import shop\n",
    "last.py": b"def broken(:\n",
    "alone.py": b"",
}


def known(files: Mapping[str, bytes], package: str, before: Known | None = None) -> tuple[Sources, list[bytes]]:
    """The sources of a folder, all of which is known; and what had to be parsed for that."""
    sources, parsed = Sources(files, package, before), list[bytes]()
    while unparsed := sources.unparsed(files):
        parsed += unparsed
        for source in unparsed:
            sources.learn(source, said_of(source))
    return sources, parsed


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("shop.py", {*FILES} - {"alone.py", "deep/__init__.py"}),
        ("alone.py", {"alone.py"}),
        ("other.py", {"other.py"}),
        ("last.py", {"last.py"}),
        ("gone.py", set()),
    ],
)
def test_the_closure_follows_relative_and_absolute_imports_of_the_folder(path: str, expected: set[str]) -> None:
    assert known(FILES, "functions")[0].closure(path) == expected


def test_a_packages_init_is_a_dependency_of_whoever_imports_the_package() -> None:
    files = {"a.py": b"from . import deep", "deep/__init__.py": b""}
    assert known(files, "p")[0].closure("a.py") == {*files}


def test_a_file_that_many_import_is_parsed_once_and_not_again_while_it_is_the_same() -> None:
    libs = {f"lib{number}.py": f"from . import deep\nx = {number}\n".encode() for number in range(10)}
    imported = "".join(f"from . import lib{number}\n" for number in range(10))
    modules = {f"m{number}.py": f"{imported}y = {number}\n".encode() for number in range(50)}
    files = {**modules, **libs, "deep.py": b"z = 1\n"}
    first, parsed = known(files, "p")
    codes = {path: first.code(path) for path in modules}
    assert [first.secrets(path) for path in modules] == [frozenset()] * 50
    assert sorted(parsed) == sorted(files.values())
    later, parsed = known({**files, "deep.py": b"z = 2\n", "m0.py": b"alone = 1\n"}, "p", first.known)
    assert all(later.code(path) != codes[path] for path in modules)
    assert sorted(parsed) == [b"alone = 1\n", b"z = 2\n"]
    again, _ = known(files, "p", later.known)
    assert {path: again.code(path) for path in modules} == codes


def test_a_code_is_that_of_all_that_is_imported_also_in_rings() -> None:
    files = {
        "a.py": b"from . import b",
        "b.py": b"from . import c\nfrom . import x",
        "c.py": b"from . import a",  # a, b and c import each other
        "x.py": b"x = 1",
        "y.py": b"from . import x",
        "alone.py": b"",
    }
    before, _ = known(files, "p")
    for path, others in {
        "a.py": {"a.py", "b.py", "c.py"},
        "x.py": {"a.py", "b.py", "c.py", "x.py", "y.py"},
        "y.py": {"y.py"},
        "alone.py": {"alone.py"},
    }.items():
        after, _ = known({**files, path: files[path] + b"\n#"}, "p", before.known)
        assert {each for each in files if after.code(each) != before.code(each)} == others, path


def test_codes_of_a_large_ring_take_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 1500
    files = {
        f"r{each}.py": f"from . import r{(each + 1) % size}\nfrom . import r{(each * 7 + 3) % size}\n".encode()
        for each in range(size)
    }
    sources, _ = known(files, "p")
    asked: list[str] = []
    imported = sources._imported

    def counted(path: str) -> tuple[str, ...]:
        asked.append(path)
        return imported(path)

    monkeypatch.setattr(sources, "_imported", counted)
    sources.settle(files)
    assert len({sources.code(path) for path in files}) == 1
    assert len(asked) <= 2 * size  # each file's imports, not each file's for each other


def test_what_is_too_large_or_cannot_be_parsed_is_named_and_not_asked_for_again() -> None:
    large = b"x = [" + b"1," * (MAX_SOURCE_BYTES // 2) + b"]"
    files = {
        "m.py": b"from . import data\nfrom . import dense\n",
        "data.py": large,
        "dense.py": b"dense",
        "n.py": large,
    }
    sources = Sources(files, "p")
    assert sources.unparsed(["m.py"]) == [files["m.py"]]
    sources.learn(files["m.py"], said_of(files["m.py"]))
    assert sources.unparsed(["m.py"]) == [b"dense"]
    sources.learn(b"dense", None)
    assert sources.unparsed(["m.py"]) == []
    assert {error.file: error.message[:39] for error in sources.refused(["m.py"])} == {
        "data.py": "expected at most 1 MB of Python, got 1.",
        "dense.py": "expected Python that can be parsed in a",
    }
    later = Sources(files, "p", sources.known)
    assert later.unparsed(["m.py"]) == []
    assert [error.file for error in later.refused(["m.py"])] == ["data.py", "dense.py"]
