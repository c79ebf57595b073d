"""What a module depends on, read from its syntax."""

from __future__ import annotations

import pytest

from echod.deploy.imports import closure

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
    assert closure(path, FILES, "functions") == expected


def test_a_packages_init_is_a_dependency_of_whoever_imports_the_package() -> None:
    assert closure("a.py", {"a.py": b"from . import deep", "deep/__init__.py": b""}, "p") == {
        "a.py",
        "deep/__init__.py",
    }
