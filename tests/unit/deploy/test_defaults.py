"""`[defaults]` of echod.toml: for all, overridden by annotations, refused an option at a time, part of the version."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from echod.deploy.defaults import defaults_of
from echod.deploy.live import Live
from echod.registry.registry import Registry
from echofn.manifest import Constant, Policy

Write = Callable[[str, str], None]

FUNCTIONS = """
from echofn import cron, every, queue, webhook
@queue
def bare(payload): pass
@queue(retries=1, unique=False, redact=["card.number", "ssn"])
def own(payload): pass
@cron("0 6 * * *")
def daily(): pass
@every("1h")
def hourly(): pass
@webhook("/hooks/a", verify=None)
def hook(request): pass
@webhook("/hooks/b", verify=None, retries=2)
def hook_own(request): pass
"""
ALL = """
# for all
[defaults]
retries = 7
backoff = "10s"
timeout = "5m"
lane = "tenant"
unique = "id"
until = "1h"
workers = [1, 3]
memory = "1GB"
tmp = "128MB"
network = [443]
processes = 2
keep = "1d"
isolation = "job"
recycle_jobs = 9
max_pending = 100
priority = -1
redact = ["ssn"]
"""
POLICY = Policy(
    retries=7,
    backoff=Constant(10_000),
    timeout_ms=300_000,
    lane="tenant",
    unique="id",
    until=3_600_000,
    workers_min=1,
    workers_max=3,
    memory_bytes=1 << 30,
    tmp_bytes=128 << 20,
    network=(443,),
    processes=2,
    keep_ms=86_400_000,
    recycle_jobs=9,  # of those whose annotation says isolation="worker"
    isolation="job",
    max_pending=100,
    priority=-1,
    redact=("ssn",),
)


def policy(registry: Registry, name: str) -> Policy:
    function = registry.function(f"m.{name}")
    assert function is not None
    return function.policy


async def test_defaults_hold_for_all_that_do_not_say_otherwise(live: Live, write: Write, registry: Registry) -> None:
    write("m.py", FUNCTIONS)
    before = await live.turn()
    assert policy(registry, "bare") == Policy()
    write("echod.toml", ALL)
    after = await live.turn()
    assert before is not None
    assert after is not None
    assert after.errors == ()
    assert after.version != before.version  # part of it
    assert policy(registry, "bare") == POLICY
    own = policy(registry, "own")
    assert (own.retries, own.unique, own.timeout_ms) == (1, None, 300_000)
    assert own.redact == ("ssn", "card.number")  # what is hidden for all stays hidden
    for name in ("daily", "hourly", "hook", "hook_own"):  # what nobody calls with a payload has no path into one
        found = policy(registry, name)
        assert (found.timeout_ms, found.memory_bytes, found.network) == (300_000, 1 << 30, (443,))
        assert found.redact == ("ssn",)
        assert (found.lane, found.unique, found.until) == (None, None, "done")
        assert found.retries == (2 if name == "hook_own" else 7)


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("[defaults]\nretrys = 3\n", 2, "[defaults] unknown option 'retrys' of @queue; did you mean 'retries'?"),
        ("[defaults]\n\nretries = 'many'\n", 3, "[defaults] retries=: expected a whole number from 0 to 10,000, got"),
        ("[defaults]\nmemory = '1MB'\n", 2, "[defaults] memory=: expected at least 32MB"),
        ("[defaults]\nlane = 'a..b'\n", 2, "[defaults] lane: expected a path like"),
        ("[defaults]\nredact = ['a..b']\n", 2, "[defaults] redact=: expected a path like"),
        ("[defaults]\nname = 'a'\n", 2, "[defaults] option 'name' is one function's own"),
        ("[defaults]\nsecrets = ['KEY']\n", 2, "[defaults] option 'secrets' is one function's own"),
        ("[defaults]\nfail_on = ['ValueError']\n", 2, "[defaults] option 'fail_on' is one function's own"),
        ("[defaults]\nenv = 'prod'\n", 2, "[defaults] option 'env' is one function's own"),
        ("[defaults]\nenabled = false\n", 2, "[defaults] option 'enabled' is one function's own"),
        ("[defaults]\npayload = 1\n", 2, "[defaults] option 'payload' is one function's own"),
        ("[defaults]\nbackoff = {kind = 'cubic'}\n", 2, "[defaults] backoff=: expected a kind of exponential"),
        ("[defaults]\nisolation = 'jobs'\n", 2, '[defaults] isolation=: expected "worker" or "job", got \'jobs\''),
        ("[defaults]\nrate = '5 a second'\n", 2, "[defaults] rate=: expected a rate like"),
        ("[defaults]\n[default]\nretries = 1\n", 2, "expected the table [defaults] alone, got 'default'"),
        ("retries = 1\n", 1, "expected the table [defaults] alone, got 'retries'"),
        ("defaults = 1\n", 1, "expected a table [defaults], got 1"),
        ("[defaults]\nretries =\n", 2, "expected TOML, got: Invalid value"),
        ("[defaults]\nx = " + "[" * 5_000, None, "expected TOML, got"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, line: int | None, told: str) -> None:
    found = defaults_of({"echod.toml": text.encode()})
    [error] = found.errors
    assert (error.file, error.line, error.kind) == ("echod.toml", line, "refused")
    assert error.message.startswith(told)
    assert found.policy == Policy()


def test_bytes_that_are_no_text_are_refused() -> None:
    [error] = defaults_of({"echod.toml": b"[defaults]\xff"}).errors
    assert error.message == "expected UTF-8, got something else at byte 10"


async def test_a_wrong_option_leaves_the_others_and_every_function(
    live: Live, write: Write, registry: Registry
) -> None:
    write("m.py", FUNCTIONS)
    write("echod.toml", "[defaults]\nretries = -1\ntimeout = '9s'\n")
    saved = await live.turn()
    assert saved is not None
    assert [(error.file, error.line) for error in saved.errors] == [("echod.toml", 2)]
    assert len(registry.names()) == 6
    assert policy(registry, "bare") == Policy(timeout_ms=9_000)


async def test_a_broken_save_of_it_keeps_the_last_good_one(live: Live, write: Write, registry: Registry) -> None:
    write("m.py", FUNCTIONS)
    write("echod.toml", "[defaults]\nretries = 5\n")
    await live.turn()
    write("echod.toml", "[defaults]\nretries = \n")
    write("n.py", "from echofn import queue\n@queue\ndef late(): pass\n")
    saved = await live.turn()
    assert saved is not None
    assert [error.file for error in saved.errors] == ["echod.toml"]
    assert policy(registry, "bare").retries == 5
    assert "n.late" in registry.names()
    write("echod.toml", "[defaults]\nretries = 6\n")
    mended = await live.turn()
    assert mended is not None
    assert mended.mended
    assert policy(registry, "bare").retries == 6


def test_a_large_file_is_refused_and_many_errors_are_told_in_part() -> None:
    [error] = defaults_of({"echod.toml": b"[x]\n" + b"#\n" * 40_000}).errors
    assert error.message == "expected at most 64 kB, got 80.0 kB; keep data in another file"
    text = "".join(f"k{number} = 1\n" for number in range(5_000)).encode()
    assert 20 <= len(defaults_of({"echod.toml": text}).errors) <= 21
    assert 20 <= len(defaults_of({"echod.toml": b"[defaults]\n" + text}).errors) <= 21
