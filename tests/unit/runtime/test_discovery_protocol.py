"""What the control plane does around discovery without importing anything of the folder."""

from __future__ import annotations

import pytest

from echofn.discovery_protocol import Described, assembled, declared, package_name
from echofn.manifest import Function, LoadError, Manifest, Policy


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('from echofn import queue\n@queue(secrets=["A", "B"])\ndef f(): pass', {"A", "B"}),
        ('from echofn import *\n@queue(secrets=["A"])\ndef f(): pass', {"A"}),
        ('from echofn import queue as q\nq(secrets=("A",))(f)', {"A"}),
        ('import echofn\n@echofn.queue(secrets=["A"])\ndef f(): pass', {"A"}),
        ('import echofn as e\n@e.webhook("/x", secret="A")\ndef f(): pass', {"A"}),
        ('from echofn import webhook\n@webhook("/x", secret=["A", "B"])\ndef f(): pass', {"A", "B"}),
        ('from echofn import queue\n@queue(secrets=[NAME, "B", 5])\ndef f(): pass', {"B"}),
        ('login(secret="ADMIN")', set()),
        ('from other import queue\n@queue(secrets=["A"])\ndef f(): pass', set()),
        ("def broken(:", set()),
        ("x = '\0'", set()),
        ("(" * 5_000, set()),
        (b"# -*- coding: latin-1 -*-\nfrom echofn import queue\nx = '\xff'\nqueue(secrets=['A'])", {"A"}),
    ],
)
def test_secrets_are_read_from_the_syntax_tree(source: str | bytes, names: set[str]) -> None:
    assert declared(source).secrets == names


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("functions", "functions"),
        ("my-functions", "my_functions"),
        ("v1.2", "v1_2"),
        ("größe", "größe"),
        ("json", "json_"),
        ("echofn", "echofn_"),
        ("", "functions"),
        ("a b", "a_b"),
    ],
)
def test_a_package_is_named_after_its_folder_and_hides_nothing(folder: str, name: str) -> None:
    assert package_name(folder) == name


def function(name: str, module: str, line: int) -> Function:
    return Function(name, module, "f", f"{module}.py", line, Policy(), ())


def test_answers_become_one_manifest_by_module() -> None:
    refused = LoadError("b", "b.py", "no", 1)
    answers = [Described("b", (function("b.g", "b", 9),), (refused,)), Described("a", (function("pay", "a", 7),))]
    assert assembled("functions", answers) == Manifest(
        "functions", (function("pay", "a", 7), function("b.g", "b", 9)), (refused,)
    )
