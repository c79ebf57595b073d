"""The headers of the Lua files are their contract: what they name is what the bodies use."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import get_args

import pytest

from echod.bus import keys, scripts
from echod.bus.protocol import document
from echod.model.job import State
from server import Server

LUA = Path(str(resources.files("echod.bus"))) / "lua"
FILES = sorted([*LUA.glob("*.lua"), *LUA.glob("include/*.lua")])
FAMILIES = {
    "job_key": "job:",
    "lane_key": "lane:",
    "log_key": "log:",
    "unique_key": "unique:",
    "last_key": "last:",
    "repeat_key": "repeat:",
}
VERBS = [path for path in FILES if path.parent == LUA]


def code_of(path: Path) -> tuple[scripts.Header, str]:
    header, body = scripts.parse(path.read_text())
    return header, re.sub(r"--[^\n]*", "", body)


def used_keys(code: str) -> set[str]:
    found = set(re.findall(r"\bq\.(\w+)", code)) | set(re.findall(r"\bq\['(\w+)'\]", code))
    found |= {family for function, family in FAMILIES.items() if re.search(rf"(?<!function )\b{function}\(", code)}
    found |= {f"global.{name}" for name in re.findall(r"\bg\.(\w+)", code)}
    found |= {f"{part}:" for part in re.findall(r"q\.base \.\. '(\w+):'", code)}
    found |= {f"global.{part}:" for part in re.findall(r"g\.base \.\. '(\w+):'", code)}
    return found - {"base", "global.base"}


@pytest.mark.parametrize("path", [path for path in FILES if path.stem != "keys"], ids=lambda path: path.stem)
def test_a_header_names_exactly_the_keys_its_body_uses(path: Path) -> None:
    header, code = code_of(path)
    assert set(header.keys) == used_keys(code)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_key_is_spelled_in_keys_py(path: Path) -> None:
    header, _ = code_of(path)
    for key in header.keys:
        if key.startswith("global."):
            assert key.removeprefix("global.") in keys.GLOBAL_KEYS
        else:
            assert key in keys.QUEUE_KEYS


def test_keys_py_names_no_key_that_nobody_uses() -> None:
    used = {key for path in FILES for key in code_of(path)[0].keys}
    assert set(keys.QUEUE_KEYS) == {key for key in used if not key.startswith("global.")}
    assert keys.GLOBAL_KEYS - {"wire", "wait:", "fsync"} == {
        key.removeprefix("global.") for key in used if key.startswith("global.")
    }


@pytest.mark.parametrize("path", VERBS, ids=lambda path: path.stem)
def test_a_body_uses_every_argument_it_declares_and_no_other(path: Path) -> None:
    header, code = code_of(path)
    for argument in header.argv:
        assert re.search(rf"\b{argument}\b", code), f"{argument} is declared and not used"
    assert "ARGV" not in code
    assert not re.search(r"\bKEYS\b", code)


@pytest.mark.parametrize("path", VERBS, ids=lambda path: path.stem)
def test_a_verb_that_fails_declares_its_error(path: Path) -> None:
    header, code = code_of(path)
    raised = set(re.findall(r"error_reply\('([A-Z]+) ", code))
    assert {error.partition(" ")[0] for error in header.errors} == raised


@pytest.mark.parametrize("path", VERBS, ids=lambda path: path.stem)
def test_a_reader_writes_nothing_and_says_so(path: Path) -> None:
    header, code = code_of(path)
    everything = code + "".join(
        code_of(LUA / "include" / f"{name}.lua")[1] for name in scripts.includes_of(header) if name != "time"
    )
    writes = re.search(
        r"redis\.call\('(?!HGET|HMGET|ZRANGE|ZCARD|EXISTS|HKEYS|TIME|LRANGE|GET'|ZSCORE|HGETALL|SRANDMEMBER|ZRANDMEMBER|SISMEMBER|HSCAN)",
        everything,
    )
    assert (header.flags == "no-writes") == (writes is None)


@pytest.mark.parametrize("path", VERBS, ids=lambda path: path.stem)
def test_a_verb_includes_what_its_code_calls(path: Path) -> None:
    """Lua finds a missing function only when it is called; here at once."""
    header, code = code_of(path)
    whole = (
        "\n".join(code_of(LUA / "include" / f"{name}.lua")[1] for name in ("keys", *scripts.includes_of(header))) + code
    )
    defined = set(re.findall(r"local function (\w+)", whole)) | set(re.findall(r"local ([\w, ]+) =", whole))
    known = {
        "tonumber",
        "tostring",
        "unpack",
        "ipairs",
        "pairs",
        "type",
        "setmetatable",
        "rawset",
        "function",
        "and",
        "or",
        "pcall",
    }
    known |= {"if", "not", "return", "in", "while"}
    called = set(re.findall(r"(?<![\w.:])(\w+)\(", whole)) - known
    assert called - {name.strip() for group in defined for name in group.split(",")} == set()


def test_no_number_goes_through_concatenation_with_more_than_fourteen_digits() -> None:
    """`..` keeps 14 digits. An instant becomes text by `text()` only."""
    for path in FILES:
        _, code = code_of(path)
        assert not re.search(r"(\bnow\b|_ms\b)\s*\.\.|\.\.\s*(now\b|\w+_ms\b)", code), path.name


def test_every_verb_has_one_sentence_first() -> None:
    for path in FILES:
        assert re.match(r"-- [A-Z].*\.$", path.read_text().split("\n")[0]), path.name


def test_production_takes_the_servers_time_and_nothing_drives_it() -> None:
    library = scripts.library()
    assert "clock" not in library
    texts = [text for script in library.values() for text in (script.library, script.plain)]
    assert not any(b"driven_clock" in text or b"g.clock" in text for text in texts)


def test_the_time_is_read_in_one_place_and_a_driven_clock_is_added_there() -> None:
    assert [path.name for path in FILES if "'TIME'" in path.read_text()] == ["time.lua"]
    for name, script in scripts.library(driven=True).items():
        assert script.library.count(b"ms = driven_clock(ms)") == (b"read_clock" in script.library), name


def test_settle_is_loaded_under_two_heads() -> None:
    library = scripts.library()
    for name, flag in {"settle": "", "settle!": "allow-oom", "mint": "", "occur": "", "check": "no-writes"}.items():
        head = f"#!lua flags={flag}\n" if flag else "#!lua\n"
        assert library[name].plain.startswith(head.encode()), name
        assert library[name].library.endswith(f", flags = {{'{flag}'}}}}\n".encode() if flag else b"\nend}\n"), name


def test_every_verb_loads_as_a_function_and_as_a_plain_script(server: Server) -> None:
    for library in (scripts.library(), scripts.library(driven=True)):
        for script in library.values():
            server.command("FUNCTION", "FLUSH")
            assert server.command("FUNCTION", "LOAD", script.library) == script.function
            assert server.command("SCRIPT", "LOAD", script.plain) == script.sha


@pytest.mark.parametrize("name", scripts.names())
def test_what_functions_share_with_a_call_is_made_anew_in_each(name: str) -> None:
    """Functions and constants stay; else a call would begin with what the last one, or its failure, left."""
    text = scripts.compose(name, driven=True).library.decode()
    defined, done = text.split("redis.register_function")
    declared = re.findall(r"^local (?!function )([^=\n]+?)(?: =.*)?$", defined, re.MULTILINE)
    names = [name for line in declared for name in line.split(", ")]
    names += re.findall(r"^local function (\w+)", defined, re.MULTILINE)
    assert len(set(names)) == len(names), "a name that is declared twice: functions in between know the first alone"
    kept = [name for line in declared for name in line.split(", ") if not name.isupper()]
    begun = re.findall(r"^(?!local )([a-z_][\w, ]*) = ", done, re.MULTILINE)
    assert set(kept) <= {name for line in begun for name in line.split(", ")}
    assert set(re.findall(r"^local ([A-Z][A-Z0-9_]*)", done, re.MULTILINE)) == set()


def test_the_protocol_page_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "protocol.md"
    assert page.read_text() == document(), "run: python -m echod.bus.protocol > docs/protocol.md"


def rows_of(text: str, head: str) -> list[list[str]]:
    """A table's rows, cell by cell."""
    lines = text.split(head + "\n")[1].split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_drawn_states_are_those_there_are_and_their_arrows_are_verbs() -> None:
    page = document()
    arrows = rows_of(page, "| from | to | by | when |")
    named = {state for begin, end, *_ in arrows for state in f"{begin}, {end}".split(", ") if state}
    assert named == {*get_args(State), "gone"}
    assert {verb for arrow in arrows for verb in re.findall(r"`(\w+)`", arrow[2])} <= set(scripts.names())
    drawing = page.split("```")[1]
    assert all(state in drawing for state in get_args(State))
    assert set(re.findall(r"(\w+) ?(?:\(|:)", drawing)) >= {"mint", "tick", "settle"}


def test_the_seeds_names_lead_to_verbs_and_keys_that_there_are() -> None:
    seeds = rows_of(document(), "| seed | here | |")
    fields = {"a", "h"}  # of the row, which include/rows.lua lists
    found = {word for _, ours, _ in seeds for word in re.findall(r"`(\w+:?)", ours)}
    known = {*scripts.names(), *keys.QUEUE_KEYS, "JOB", "want", "at", "in", "BLPOP", *fields}
    assert found - known == set()
    assert len({seed for seed, *_ in seeds}) == len(seeds)


UNPACKED = {  # what is written as many arguments at once: of a fixed length, or cut to one
    "drain": ["ENDING"],
    "include/birth": ["fields"],  # of one row
    "include/cancel": ["ENDING"],
    "include/keys": ["values, first, math.min(first + VALUES_AT_ONCE - 1, #values)"],
    "include/limits": ["asked"],  # LANE_FIELDS
    "include/recover": ["ENDING"],
    "include/rows": ["more"],  # of one row
    "include/serve": ["asked", "WANTED", "keys"],  # LANES_ASKED times five; the lanes of MOST_JOBS
    "jobs": ["BRIEF"],
    "occur": ["one, 1, 11"],
    "pick": ["asked"],
    "settle": ["ENDING"],
}


def test_no_list_without_a_bound_is_unpacked() -> None:
    """Lua's stack holds 8,000 values, and a script that breaks off there has written what came before: `call_with`."""
    found = {
        str(path.relative_to(LUA).with_suffix("")): re.findall(
            r"(?<!\.)\bunpack\(((?:[^()]|\([^()]*\))*)\)", code_of(path)[1]
        )
        for path in FILES
    }
    assert {name: lists for name, lists in found.items() if lists} == UNPACKED
