"""What a module depends on, read from its syntax."""

from __future__ import annotations

import ast

import pytest

from echod.deploy.imports import Sources

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
    assert Sources(FILES, "functions").closure(path) == expected


def test_a_packages_init_is_a_dependency_of_whoever_imports_the_package() -> None:
    files = {"a.py": b"from . import deep", "deep/__init__.py": b""}
    assert Sources(files, "p").closure("a.py") == {*files}


def test_a_file_that_many_import_is_parsed_once_and_not_again_while_it_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[bytes] = []
    parse = ast.parse

    def counted(source: bytes) -> ast.Module:
        parsed.append(source)
        return parse(source)

    monkeypatch.setattr(ast, "parse", counted)
    libs = {f"lib{number}.py": f"from . import deep\nx = {number}\n".encode() for number in range(10)}
    imported = "".join(f"from . import lib{number}\n" for number in range(10))
    modules = {f"m{number}.py": f"{imported}y = {number}\n".encode() for number in range(50)}
    files = {**modules, **libs, "deep.py": b"z = 1\n"}
    first = Sources(files, "p")
    codes = {path: first.code(path) for path in modules}
    assert [first.secrets(path) for path in modules] == [frozenset()] * 50
    assert sorted(parsed) == sorted(files.values())
    parsed.clear()
    later = Sources({**files, "deep.py": b"z = 2\n", "m0.py": b"alone = 1\n"}, "p", first)
    assert all(later.code(path) != codes[path] for path in modules)
    assert sorted(parsed) == [b"alone = 1\n", b"z = 2\n"]
    again = Sources(files, "p", later)
    assert {path: again.code(path) for path in modules} == codes
