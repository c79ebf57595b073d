"""Discovery: every module gets its one answer, and a bad one hurts no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from echofn.discovery_protocol import Described
from echofn.manifest import LoadError
from unit.runtime.driving import WHOSE, discover, planted, write

GOOD = "from echofn import queue\n@queue\ndef f(payload): pass\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "functions"
    folder.mkdir()
    return folder


BAD = [
    ("def broken(:\n", "syntax", 1, 12, "SyntaxError: invalid syntax"),
    ("x = 1\nif x:\ny = 2\n", "syntax", 3, 1, "IndentationError"),
    ("x = '\\ud800'\ny = 'ä\n", "syntax", 2, 5, "unterminated"),
    ("x = 1\ny = 1 / 0\n", "error", 2, None, "ZeroDivisionError: division by zero"),
    ("import json\ndef g():\n    json.loads('{')\n\ng()\n", "error", 3, None, "JSONDecodeError"),
    ("import no_such_package\n", "error", 1, None, "No module named 'no_such_package'"),
    ("from .nowhere import x\n", "error", 1, None, "functions.nowhere"),
    (
        "class E(Exception):\n    def __str__(self): raise SystemExit\nraise E\n",
        "error",
        3,
        None,
        "E: <an exception",
    ),
    ("raise SyntaxError('my own')\n", "error", 1, None, "my own"),
    ("raise SyntaxError('a\\ud800', ('x', 'y', [], object()))\n", "error", 1, None, "SyntaxError"),
    ("class C:\n    def __str__(self): raise OSError\nraise SystemExit(C())\n", "exit", None, None, "exit"),
    ("raise KeyboardInterrupt\n", "error", 1, None, "KeyboardInterrupt"),
    ("import os\nbytearray(8 << 30)\n", "error", 2, None, "MemoryError"),
    (
        "import os\nfrom echofn import queue\nos.environ['STRIPE_KEY']\n@queue\ndef f(): pass\n",
        "error",
        3,
        None,
        'STRIPE_KEY\' is not in the environment here; add secrets=["STRIPE_KEY"] to @queue (',
    ),
    ("import sys\nsys.exit(3)\n", "exit", None, None, "sys.exit(3)"),
    ("import os\nos._exit(3)\n", "exit", None, None, "exit code 3"),
    ("import ctypes\nctypes.string_at(0)\n", "crash", None, None, "SIGSEGV"),
    ("import os\nos.abort()\n", "crash", None, None, "SIGABRT"),
    ("while True: pass\n", "hang", None, None, "within 1 s"),
    ("import os\nos.write(3, b'\\xff' * 100)\nwhile True: pass\n", "crash", None, None, "killed"),
    ("import os\nos.close(3)\n", "exit", None, None, "exit"),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Described]:
    """All of them in one folder, with good modules among them."""
    answers: dict[str, Described] = {}
    for name, time_limit_ms in (("bad", 60_000), ("hang", 1_000)):  # what does not hang has its time
        folder = tmp_path_factory.mktemp(name) / "functions"
        for number, (source, kind, *_) in enumerate(BAD):
            if (kind == "hang") == (name == "hang"):
                write(folder, **{f"m{number}_bad": source, f"m{number}_good": GOOD})
        answers |= discover(folder, time_limit_ms=time_limit_ms)
    return answers


@pytest.mark.parametrize("number", range(len(BAD)), ids=[case[-1] for case in BAD])
def test_a_bad_module_is_told_with_its_line_and_the_others_load(answers: dict[str, Described], number: int) -> None:
    _, kind, line, column, told = BAD[number]
    (error,) = answers[f"m{number}_bad"].errors
    assert (error.kind, error.line, error.column) == (kind, line, column)
    assert (error.module, error.file) == (f"m{number}_bad", f"m{number}_bad.py")
    assert told in error.message
    good = answers[f"m{number}_good"]
    assert good.errors == ()
    assert [function.name for function in good.functions] == [f"m{number}_good.f"]


@pytest.mark.parametrize("source", [b"x = '\xff'\n", b"x = 1\ny = 1\0\n"])
def test_a_module_that_is_no_text_is_told(folder: Path, source: bytes) -> None:
    (folder / "bad.py").write_bytes(source)
    (error,) = discover(folder)["bad"].errors
    assert error.kind == "syntax"
    assert error.line == 1 + source.count(b"y")


def test_a_failing_helper_is_told_at_the_line_that_imports_it(folder: Path) -> None:
    write(
        folder,
        _lib="x = 1\n1 / 0\n",
        _syntax="def (:\n",
        a="import os\nfrom . import _lib\n",
        b="from ._syntax import x\n",
    )
    answers = discover(folder)
    assert answers["a"].errors[0].line == 2
    assert answers["b"].errors[0].line == 1
    assert answers["b"].errors[0].kind == "error"
    assert "_syntax.py, line 1" in answers["b"].errors[0].message


def test_a_hanging_helper_costs_its_time_limit_once(folder: Path) -> None:
    names = {f"m{n}": "from ._slow import x\n" + GOOD for n in range(5)}
    tries = folder.parent / "tries"
    slow = f"import time\nopen({str(tries)!r}, 'a').write('tried ')\ntime.sleep(3600)\n"
    write(folder, _slow=slow, good=GOOD, **names)
    answers = discover(folder, time_limit_ms=1_500)
    assert tries.read_text() == "tried "
    assert answers["m0"].errors == (
        LoadError("m0", "m0.py", "the module did not finish importing within 1.5 s, in functions._slow", kind="hang"),
    )
    for n in range(1, 5):
        assert answers[f"m{n}"].errors[0].line == 1
        assert "functions._slow did not finish" in answers[f"m{n}"].errors[0].message
    assert answers["good"].functions


def test_a_module_that_hung_for_another_is_told_as_a_hang_itself(folder: Path) -> None:
    write(folder, a="from . import hang\n", hang="import time\ntime.sleep(3600)\n")
    answers = discover(folder, time_limit_ms=2_000)
    assert "functions.hang" in answers["a"].errors[0].message
    assert [(error.kind, error.line) for error in answers["hang"].errors] == [("hang", None)]


def test_a_helper_that_fails_and_is_expected_to_blames_nobody(folder: Path) -> None:
    write(
        folder,
        _lib="1 / 0\n",
        a="try: from . import _lib\nexcept ZeroDivisionError: pass\nimport os\nos._exit(1)\n",
        b=GOOD,
    )
    answers = discover(folder)
    assert answers["a"].errors[0].message == "the module ended the process at import with exit code 1"
    assert answers["b"].functions


@pytest.mark.parametrize("init", [None, "", "from .lib import db as first\n"])
def test_the_folder_is_a_package_of_its_own_name(folder: Path, init: str | None) -> None:
    if init is not None:
        (folder / "__init__.py").write_text(init)
    (folder / "data.txt").write_text("text")
    write(
        folder,
        lib="db = 'db'\n",
        sub__deep__mod="from ...lib import db\nfrom functions.lib import db as same\nassert db is same\n"
        "from ..beside import x\n" + GOOD,
        sub__beside="x = 1\n",
        a="from .lib import db\nfrom functions.lib import db as same\nfrom pathlib import Path\nassert db is same\n"
        "assert (Path(__file__).parent / 'data.txt').read_text() == 'text'\nassert __name__ == 'functions.a'\n" + GOOD,
    )
    answers = discover(folder)
    assert [answer.errors for answer in answers.values()] == [()] * 4
    assert answers["sub.deep.mod"].functions[0].name == "sub.deep.mod.f"
    assert answers["sub.deep.mod"].functions[0].file == "sub/deep/mod.py"
    assert answers["lib"].functions == ()


def test_nothing_beside_the_folder_can_be_imported(folder: Path) -> None:
    (folder.parent / "beside.py").write_text("x = 1\n")
    write(folder, a="import beside\n")
    assert "No module named 'beside'" in discover(folder)["a"].errors[0].message


def test_a_broken_init_is_told_for_every_module(folder: Path) -> None:
    (folder / "__init__.py").write_text("1 / 0\n")
    write(folder, a=GOOD, b=GOOD)
    for answer in discover(folder).values():
        assert "ZeroDivisionError" in answer.errors[0].message


def test_modules_with_secrets_get_exactly_theirs_in_a_process_of_their_own(folder: Path) -> None:
    show = "import os\nraise RuntimeError(f'{os.getpid()} {sorted(os.environ)}')\n"
    write(folder, a=show, b=show, c=show)
    answers = discover(folder, secrets={"b": {"B_KEY": "1"}, "c": {"C_KEY": "1"}})
    told = {name: answer.errors[0].message for name, answer in answers.items()}
    assert "KEY" not in told["a"]
    assert "'B_KEY'" in told["b"]
    assert "C_KEY" not in told["b"]
    assert "'C_KEY'" in told["c"]
    assert "B_KEY" not in told["c"]
    assert "PLANTED" not in "".join(told.values())
    assert len({text.split()[1] for text in told.values()}) == 3


def test_no_other_modules_secret_is_in_the_memory_of_an_import(folder: Path) -> None:
    """Not in what Python code reaches, nor in what was freed; its own shows that the search finds."""
    look = f"""
import gc, sys
{WHOSE}
reached, frame = [], sys._getframe()
for each in gc.get_objects():
    if type(each) in (dict, list, tuple):
        reached += [text for text in (each.values() if type(each) is dict else each) if type(text) is str]
while frame is not None:
    reached.append(frame.f_locals)
    frame = frame.f_back
reached = whose(" ".join(map(repr, reached)).encode())
raise RuntimeError(f"reached {{reached}}, read {{in_memory()}}")
"""
    write(folder, a=look, b=look, plain=look)
    answers = discover(folder, secrets={name: planted(name) for name in "ab"}, level="off")
    told = {name: answer.errors[0].message for name, answer in answers.items()}
    own = {name: f"RuntimeError: reached ['{name}'], read ['{name}']" for name in "ab"}
    assert told == {**own, "plain": "RuntimeError: reached [], read []"}


@pytest.mark.parametrize("option", ["env=key", "enabled=False, name=key"])
def test_an_annotation_that_is_off_shows_no_secret(folder: Path, option: str) -> None:
    """A long one is refused as it is where the annotation counts; a short one may be a word, and is masked."""
    source = f"import os\nfrom echofn import queue\nkey = os.environ['KEY']\n@queue({option})\ndef f(): pass\n"
    write(folder, long=source, short=source)
    answers = discover(folder, secrets={"long": {"KEY": "planted-0123456789"}, "short": {"KEY": "planted-"}})
    (error,) = answers["long"].errors
    assert (error.line, error.kind, answers["long"].off) == (4, "refused", ())
    assert error.message.startswith("expected no secret in an option")
    (off,) = answers["short"].off
    assert (answers["short"].errors, "planted" in str(off), "[redacted]" in str(off)) == ((), False, True)


@pytest.mark.parametrize(
    ("annotation", "told"),
    [
        ("@cron('* * * * *')\n@queue()", 'add secrets=["KEY"] to @queue (a.py:4)'),
        ("@webhook('/h', verify=None)", 'add secrets=["KEY"] to @webhook (a.py:3)'),
        ("@cron('* * * * *')", 'add @queue(secrets=["KEY"]) (a.py:3)'),
        ("@queue(secrets=['KEY'])", "is named in secrets=, but not set where echod runs"),
    ],
)
def test_a_variable_missing_at_import_is_told_with_the_option_and_its_place(
    folder: Path, annotation: str, told: str
) -> None:
    """In the module itself, and in a helper that it imports; the helper alone lacks nothing."""
    head, tail = "from echofn import cron, queue, webhook\n", f"\n{annotation}\ndef f(): pass\n"
    write(folder, a=f"{head}from . import settings{tail}", settings="import os\nkey = os.environ['KEY']\n")
    answers = discover(folder)
    (error,) = answers["a"].errors
    assert error.message.startswith("KeyError: 'KEY' is")
    assert (told in error.message, error.line) == (True, 2)
    assert answers["settings"] == Described("settings")
    write(folder, a=f"{head}import os; os.environ['KEY']{tail}")
    (error,) = discover(folder)["a"].errors
    assert (told in error.message, error.line) == (True, 2)
    assert not discover(folder, secrets={"a": {"KEY": "1"}})["a"].errors


@pytest.mark.parametrize("way", ["os.environ.get('KEY')", "os.getenv('KEY')", "{}['KEY']", "os.environ.pop('KEY')"])
def test_only_a_variable_that_is_looked_up_is_advised_about(folder: Path, way: str) -> None:
    write(folder, a=f"import os\nfrom echofn import queue\nx = {way}\n" + GOOD)
    errors = discover(folder)["a"].errors
    assert [("secrets=" in error.message) for error in errors] == {"{}": [False], "os.environ.pop('KEY')": [True]}.get(
        way.removesuffix("['KEY']"), []
    )


def test_a_file_whose_name_has_a_dot_is_told(folder: Path) -> None:
    (folder / "a.b.py").write_text(GOOD)
    (error,) = discover(folder)["a.b"].errors
    assert "without a dot" in error.message


def test_what_modules_print_is_no_answer(folder: Path) -> None:
    write(folder, a="print('x' * 100_000)\n" + GOOD)
    assert discover(folder)["a"].functions


def test_an_empty_folder_has_nothing(folder: Path) -> None:
    assert discover(folder) == {}
