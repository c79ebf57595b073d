"""Runs: whatever a handler takes, returns or raises becomes the one documented answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from echofn import frames
from echofn.manifest import Function, Policy, QueueTrigger, WebhookTrigger
from unit.runtime.driving import Base, job, write


def outcome_of(shared: Base, body: str, payload: Any = None, head: str = "") -> Any:
    """The answer to one job of a handler with this body; the worker must be fit for another afterwards."""
    lines = "\n".join("    " + line for line in body.splitlines())
    top = f"{head}\nimport echofn, math, os, sys\nfrom echofn import *\ndef f(payload, ctx):"
    worker = shared.serve(f"{top}\n    if payload == 'again': return 'fit'\n{lines}\n")
    answer = worker.one(payload)
    assert worker.one("again").result == "fit"
    return answer


# ---- results ----


@pytest.mark.parametrize(
    ("expression", "stored"),
    [
        ("None", None),
        ("{'a': [1, 2.5, True, 'ä', None]}", {"a": [1, 2.5, True, "ä", None]}),
        ("b'raw'", b"raw"),
        ("{'deep': {'bytes': b'x'}}", {"deep": {"bytes": b"x"}}),
        ("{3, }", [3]),
        ("(1, 2)", [1, 2]),
        ("{1: 'a', 2.5: 'b'}", {"1": "a", "2.5": "b"}),
        ("datetime.datetime(2026, 3, 29, 1, tzinfo=datetime.UTC)", "2026-03-29T01:00:00Z"),
        ("decimal.Decimal('1.10')", "1.10"),
        ("uuid.UUID(int=1)", "00000000-0000-0000-0000-000000000001"),
        ("collections.OrderedDict(a=1)", {"a": 1}),
        ("collections.defaultdict(list, a=[1])", {"a": [1]}),
        ("types.MappingProxyType({'a': 1})", {"a": 1}),
        ("type('S', (str,), {'__str__': lambda self: 'other'})('own')", "own"),
        ("type('I', (int,), {})(7)", 7),
        ("Point(1, 2)", {"x": 1, "y": 2}),
        ("Line(Point(1, 2))", {"start": {"x": 1, "y": 2}}),
        ("2**64 - 1", 2**64 - 1),
        ("b'\\xcb\\x7f\\xf8'", b"\xcb\x7f\xf8"),  # looks like a NaN, is none
    ],
)
def test_a_result_is_stored_as_what_json_can_say_and_bytes(shared: Base, expression: str, stored: Any) -> None:
    head = (
        "import collections, dataclasses, datetime, decimal, msgspec, types, uuid\n"
        "@dataclasses.dataclass\nclass Point:\n    x: int\n    y: int\nclass Line(msgspec.Struct):\n    start: Point"
    )
    assert outcome_of(shared, f"return {expression}", head=head).result == stored


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return open('/dev/null')", "TextIOWrapper"),
        ("return float('nan')", "NaN"),
        ("return {'a': [1.0, {'b': -math.inf}]}", "NaN"),
        ("return 2**80", "64 bits"),
        ("return 'a\\ud800'", "lone surrogate"),
        ("return {'\\ud800': 1}", "lone surrogate"),
        ("x = []\nx.append(x)\nreturn x", "contains itself"),
        ("x = []\nfor _ in range(100_000): x = [x]\nreturn x", "nested too deeply"),
        ("return {(1, 2): 3}", "keys"),
        ("return {None: 1}", "keys"),
        ("return object()", "object"),
        ("return (n for n in range(3))", "generator"),
        ("return ValueError('returned, not raised')", "ValueError"),
        ("return b'x' * (1 << 20)", "at most 1,048,576 bytes"),
        ("return ['x' * 1000] * 50_000", "too large"),
        ("return sys.stdout", "Stream"),
    ],
)
def test_a_result_that_cannot_be_stored_ends_the_job_without_a_retry(shared: Base, body: str, told: str) -> None:
    answer = outcome_of(shared, body)
    assert answer.outcome == "dead"
    assert (answer.fault.exception, answer.fault.cause) == ("ResultError", "result")
    assert told in answer.fault.message
    assert answer.ended.children == ()


def test_a_result_of_exactly_the_limit_is_stored(shared: Base) -> None:
    room = frames.MAX_RESULT_BYTES - 5  # a header of five bytes
    assert len(outcome_of(shared, f"return 'x' * {room}").result) == room


# ---- exceptions ----


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ("raise ValueError('bad')", "ValueError", "bad"),
        ("sys.exit(3)", "SystemExit", "3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("raise GeneratorExit", "GeneratorExit", ""),
        ("raise BaseException('base')", "BaseException", "base"),
        ("raise Evil()", "Evil", "cannot be had"),
        ("raise NotText()", "NotText", "cannot be had"),
        ("raise KeywordOnly(code=5)", "KeywordOnly", ""),
        ("raise ValueError('Größe \\ud800 🎈')", "ValueError", "Größe \\ud800 🎈"),
        ("import socket\nraise ValueError(socket.socketpair()[0])", "ValueError", "<socket.socket"),
        ("raise ExceptionGroup('many', [ValueError(1), TypeError(2)])", "ExceptionGroup", "many (2 sub-exceptions)"),
        ("def g(): g()\ng()", "RecursionError", "maximum recursion depth"),
        ("raise BadNotes('x')", "BadNotes", "x"),
        ("raise Exiting()", "Exiting", "cannot be had"),
        ("e = ValueError('loop')\ne.__cause__ = e\nraise e", "ValueError", "loop"),
    ],
)
def test_whatever_is_raised_is_the_jobs_error(shared: Base, body: str, kind: str, text: str) -> None:
    head = (
        "class Evil(Exception):\n    def __str__(self): raise RuntimeError('no')\n    __repr__ = __str__\n"
        "class NotText(Exception):\n    def __str__(self): return 5\n"
        "class KeywordOnly(Exception):\n    def __init__(self, *, code): self.code = code\n"
        "class Exiting(Exception):\n    def __str__(self): sys.exit(1)\n"
        "class BadNotes(Exception):\n    @property\n    def __notes__(self): raise SystemExit\n"
    )
    answer = outcome_of(shared, body, head=head)
    assert answer.outcome == "retry"
    assert (answer.fault.exception, answer.fault.cause) == (kind, "error")
    assert text in answer.fault.message
    assert kind in answer.fault.traceback


def test_a_long_message_and_a_long_traceback_are_cut(shared: Base) -> None:
    answer = outcome_of(
        shared, "try:\n    raise ValueError('a' * 3_000_000)\nexcept ValueError:\n    raise KeyError('b' * 3_000_000)"
    )
    assert len(answer.fault.message) <= 8_000
    assert "cut" in answer.fault.message
    assert len(answer.fault.traceback) <= 33_000


def test_running_out_of_memory_is_told_as_memory(shared: Base) -> None:
    answer = outcome_of(shared, "return bytearray(10 << 30)")
    assert (answer.outcome, answer.fault.cause) == ("retry", "memory")
    assert answer.fault.message == 'asked for more than 512 MB of memory. Add memory="1024MB" to @queue (m.py:1)'


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("mmap.mmap(-1, 10 << 30)", "[Errno 12] Cannot allocate memory: asked for more than 512 MB of memory. Add"),
        (
            "threading.stack_size(300 << 20)\nfor _ in '12': threading.Thread(target=nap, daemon=True).start()",
            "can't start new thread: its stack and all else take more than 512 MB of memory. Add memory=",
        ),
    ],
)
def test_what_else_runs_out_of_memory_names_the_option(shared: Base, body: str, said: str) -> None:
    answer = outcome_of(shared, body, head="import mmap, threading, time\ndef nap(): time.sleep(1)")
    assert (answer.outcome, answer.fault.cause) == ("retry", "memory")
    assert answer.fault.message.startswith(said)


def test_a_traceback_begins_at_user_code_and_names_files_in_the_folder(shared: Base) -> None:
    (shared.folder / "sub").mkdir()
    (shared.folder / "sub" / "lib.py").write_text("import json\ndef load(text):\n    return json.loads(text)\n")
    answer = outcome_of(shared, "return load('{')", head="from .sub.lib import load")
    lines = [line.strip() for line in answer.fault.traceback.splitlines() if line.startswith("  File")]
    assert lines[0].startswith('File "m.py", line 6, in f')
    assert lines[1].startswith('File "sub/lib.py", line 3, in load')
    assert lines[2].startswith('File "json/__init__.py"')
    assert str(shared.root) not in answer.fault.traceback


@pytest.mark.parametrize(
    ("triggers", "named", "told"),
    [
        ((QueueTrigger(),), (), 'add secrets=["STRIPE_KEY"] to @queue (m.py:7)'),
        ((QueueTrigger(), WebhookTrigger("/h", None)), (), 'add secrets=["STRIPE_KEY"] to @queue (m.py:7)'),
        ((WebhookTrigger("/h", None),), (), 'add secrets=["STRIPE_KEY"] to @webhook (m.py:7)'),
        ((), (), 'add @queue(secrets=["STRIPE_KEY"]) (m.py:7)'),
        ((QueueTrigger(),), ("STRIPE_KEY",), "is named in secrets=, but not set where echod runs"),
    ],
)
def test_a_missing_variable_says_which_option_to_add(
    shared: Base, triggers: Any, named: tuple[str, ...], told: str
) -> None:
    """In the handler, in a helper that it calls, and at the worker's own import."""
    write(shared.folder, helper="import os\ndef key(): return os.environ['STRIPE_KEY']\n")
    source = "import os\nfrom . import helper\ndef own(): return os.environ['STRIPE_KEY']\ndef other(): helper.key()\n"
    for attribute in ("own", "other"):
        function = Function(f"m.{attribute}", "m", attribute, "m.py", 7, Policy(), triggers, secrets=named)
        answer = shared.serve(source, attribute, function=function).one()
        assert (answer.outcome, answer.fault.exception, answer.fault.cause) == ("retry", "KeyError", "error")
        assert answer.fault.message.startswith("'STRIPE_KEY' is")
        assert told in answer.fault.message
    write(shared.folder, m="import os\nos.environ['STRIPE_KEY']\n")
    failed = shared.spawn(function=function).read()
    assert isinstance(failed, frames.Failed)
    assert told in failed.message


def test_another_key_error_is_not_about_variables(shared: Base) -> None:
    for body in ("return {}['STRIPE_KEY']", "raise KeyError('STRIPE_KEY')", "del os.environ['STRIPE_KEY']"):
        assert "secrets" not in outcome_of(shared, body).fault.message
    assert outcome_of(shared, "return os.environ.get('STRIPE_KEY')").result is None


# ---- verdicts ----


FINAL = """
from echofn import *
class Declined(ValueError): ...
class Late(Exception): ...
@queue(fail_on=(ValueError, LookupError))
def f(payload, ctx):
    if payload == 'again': return 'fit'
    exec(payload, globals())
@queue(env="dev", fail_on=Late)
@queue(env="prod", fail_on=ValueError)
def by_env(payload): raise ValueError("no")
@queue(fail_on=Exception)
async def all_of_them(payload): exec(payload, globals())
"""


@pytest.mark.parametrize(
    ("body", "outcome", "kind"),
    [
        ("raise ValueError('bad')", "dead", "ValueError"),
        ("raise Declined('a subclass')", "dead", "Declined"),
        ("{}['no']", "dead", "KeyError"),
        ("raise TypeError", "retry", "TypeError"),
        ("raise TypeError from ValueError()", "retry", "TypeError"),  # what was raised counts, not what led to it
        ("raise Retry('explicit')", "retry", "Retry"),
        ("raise ExceptionGroup('g', [TypeError(), Declined()])", "dead", "ExceptionGroup"),
        ("raise ExceptionGroup('g', [TypeError(), ExceptionGroup('h', [KeyError(1)])])", "dead", "ExceptionGroup"),
        ("raise ExceptionGroup('g', [TypeError()])", "retry", "ExceptionGroup"),
    ],
)
def test_an_exception_of_fail_on_goes_to_the_morgue_at_once(shared: Base, body: str, outcome: str, kind: str) -> None:
    worker = shared.serve(FINAL)
    answer = worker.one(body)
    assert (answer.outcome, answer.fault.exception, answer.fault.cause) == (outcome, kind, "error")
    assert worker.one("again").result == "fit"


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("raise TypeError", "dead"),
        ("raise Snooze(1)", "delay"),
        ("raise Retry", "retry"),
        ("raise Cancel", "cancelled"),
    ],
)
def test_a_verdict_stands_whatever_fail_on_says(shared: Base, body: str, outcome: str) -> None:
    assert shared.serve(FINAL, "all_of_them").one(body).outcome == outcome


def test_fail_on_is_that_of_the_annotation_which_counts_here(shared: Base) -> None:
    assert shared.serve(FINAL, "by_env", env="dev").one().outcome == "retry"
    assert shared.ready("by_env", env="prod").one().outcome == "dead"


@pytest.mark.parametrize(
    ("raised", "outcome", "after_ms", "reason"),
    [
        ("Retry()", "retry", None, ""),
        ("Retry('rate limited', after='10s')", "retry", 10_000, "rate limited"),
        ("Snooze('10m')", "delay", 600_000, ""),
        ("Snooze(1.5, 'not yet')", "delay", 1_500, "not yet"),
        ("Fail('no such customer')", "dead", None, "no such customer"),
        ("Cancel('already paid')", "cancelled", None, "already paid"),
    ],
)
def test_a_verdict_ends_the_run_as_it_says(
    shared: Base, raised: str, outcome: str, after_ms: int | None, reason: str
) -> None:
    ended = outcome_of(shared, f"raise {raised}").ended
    assert (ended.outcome, ended.after_ms, ended.reason) == (outcome, after_ms, reason)
    assert (ended.fault is not None) == (outcome in ("retry", "dead"))  # what a page shows as the error


def test_a_verdict_with_a_bad_wait_is_an_error_at_its_line(shared: Base) -> None:
    answer = outcome_of(shared, "raise Retry(after='soon')")
    assert answer.fault.exception == "ValueError"
    assert "soon" in answer.fault.message


def test_a_verdict_with_ideas_of_its_own_is_an_error(shared: Base) -> None:
    answer = outcome_of(shared, "e = Snooze('1s')\ne.after_ms = 'x'\nraise e")
    assert (answer.outcome, answer.fault.exception) == ("retry", "TypeError")


# ---- payloads ----

TYPED = """
import dataclasses, typing, msgspec
class Item(msgspec.Struct):
    name: str
    count: int = 1
@dataclasses.dataclass
class Order:
    items: list[Item]
class Tags(typing.TypedDict):
    tags: list[str]
class Blob(msgspec.Struct):
    data: bytes
    by_id: dict[int, str] = {}
def item(payload: Item): return [type(payload).__name__, payload.name, payload.count]
def order(payload: "Order"): return [type(payload).__name__, type(payload.items[0]).__name__]
class Line(msgspec.Struct):
    lines: dict[str, list[int]]
    ratio: float
    kind: typing.Literal[1, 2]
class Deep(msgspec.Struct):
    orders: list[Line]
def deep(payload: Deep):
    one = payload.orders[0]
    return [one.lines["a"], one.ratio, type(one.ratio).__name__, one.kind]
def tags(payload: Tags): return payload["tags"]
def number(payload: int): return payload + 1
def blob(payload: Blob): return [payload.data, payload.by_id[5]]
def anything(payload): return payload
def nothing(): return "called"
def context_first(ctx, payload): return [ctx.job_id, payload]
def by_keyword(*, payload, ctx): return [payload, ctx.attempt]
def usual(payload: Item = Item("usual", 5)):
    payload.count += 1
    return [payload.name, payload.count]
def maybe(payload: Item = None): return payload
def lenient(payload: Item | None = Item("usual")): return payload
"""


@pytest.mark.parametrize(
    ("function", "payload", "result"),
    [
        ("item", {"name": "a"}, ["Item", "a", 1]),
        ("order", {"items": [{"name": "a", "count": 2}]}, ["Order", "Item"]),
        ("tags", {"tags": ["x"]}, ["x"]),
        ("number", 1, 2),
        ("number", 1.0, 2),  # JSON Schema calls it an integer, and the gateway lets it through
        ("item", {"name": "a", "count": 2.0}, ["Item", "a", 2]),
        ("deep", {"orders": [{"lines": {"a": [3.0, -0.0]}, "ratio": 3.0, "kind": 2.0}]}, [[3, 0], 3.0, "float", 2]),
        ("blob", {"data": "aGk=", "by_id": {"5": "x"}}, [b"hi", "x"]),  # as JSON says it
        ("blob", {"data": b"hi", "by_id": {5: "x"}}, [b"hi", "x"]),  # as msgpack says it
        ("anything", {"a": [1, None]}, {"a": [1, None]}),
        ("nothing", {"ignored": 1}, "called"),
        ("context_first", 3, ["JOB0KHTOWnGLuC", 3]),
        ("by_keyword", 3, [3, 1]),
        ("usual", None, ["usual", 6]),
        ("usual", {"name": "a"}, ["a", 2]),
        ("maybe", None, None),
        ("lenient", None, None),  # as somebody wrote it: what is minted without one is minted with the default
    ],
)
def test_a_payload_arrives_as_the_type_that_is_asked_for(
    shared: Base, function: str, payload: Any, result: Any
) -> None:
    assert shared.serve(TYPED, function).one(payload).result == result


@pytest.mark.parametrize(
    ("function", "payload", "told"),
    [
        ("item", {"name": 5}, "$.name"),
        ("item", None, "Expected `object`"),
        ("order", {"items": [{"name": "a"}, {}]}, "$.items[1]"),
        ("tags", {}, "tags"),
        ("number", "1", "Expected `int`"),
        ("number", 1.5, "Expected `int`"),
        ("number", True, "Expected `int`"),
    ],
)
def test_a_payload_that_does_not_fit_is_dead_and_names_the_place(
    shared: Base, function: str, payload: Any, told: str
) -> None:
    answer = shared.serve(TYPED, function).one(payload)
    assert answer.outcome == "dead"
    assert (answer.fault.exception, answer.fault.cause) == ("PayloadError", "payload")
    assert told in answer.fault.message


def test_a_default_is_made_anew_for_each_run(shared: Base) -> None:
    worker = shared.serve(TYPED, "usual")
    assert [worker.one(None).result for _ in range(2)] == [["usual", 6], ["usual", 6]]


def test_a_payload_that_is_no_msgpack_is_dead(shared: Base) -> None:
    worker = shared.serve(TYPED, "anything")
    answer = worker.run(msgspec.structs.replace(job(), payload=b"\xc1"))[0]
    assert (answer.outcome, answer.fault.cause) == ("dead", "payload")
    assert worker.one(1).result == 1


# ---- context ----


def test_the_context_tells_about_the_run(shared: Base) -> None:
    worker = shared.serve(
        """
        def f(payload, ctx):
            return [ctx.job_id, ctx.function, ctx.attempt, ctx.last_attempt, ctx.fence, ctx.lane, ctx.version, ctx.env,
                    ctx.manual, ctx.due, ctx.previous, ctx.next, repr(ctx)]
        """
    )
    told = worker.one(
        None, attempt=2, last_attempt=True, fence=7, lane="acme", due_ms=0, next_ms=86_400_000, manual=True
    ).result
    assert told[:6] == ["JOB0KHTOWnGLuC", "m.f", 2, True, 7, "acme"]
    assert told[6:9] == ["DEP0KHTOWnGLuC", "dev", True]
    assert told[9:12] == ["1970-01-01T00:00:00Z", None, "1970-01-02T00:00:00Z"]
    assert "JOB0KHTOWnGLuC" in told[12]


def test_the_deadline_is_on_the_buss_clock_and_counts_from_the_runs_own_start(shared: Base) -> None:
    worker = shared.serve(
        """
        import time
        def f(payload, ctx):
            time.sleep(0.05)
            return ctx.deadline.timestamp() * 1000
        """
    )
    first, second = worker.run(job(timeout_ms=1_000), job(timeout_ms=1_000), now_ms=5_000_000)
    assert 5_001_000 <= first.result < 5_060_000
    assert first.result + 50 <= second.result < first.result + 60_000


def test_progress_is_thinned_and_the_last_one_always_comes(shared: Base) -> None:
    answer = outcome_of(shared, "for n in range(1001): ctx.progress(n / 1000, f'at {n}')")
    assert answer.progress[0].note == "at 0"
    assert (answer.progress[-1].fraction, answer.progress[-1].note) == (1.0, "at 1000")
    assert len(answer.progress) < 100
    assert "1.5" in outcome_of(shared, "ctx.progress(1.5)").fault.message
    assert "nan" in outcome_of(shared, "ctx.progress(math.nan)").fault.message


# ---- children ----


def test_children_take_their_ids_from_the_block_and_come_with_the_end(shared: Base) -> None:
    (shared.folder / "lib.py").write_text(
        "from echofn import queue\n@queue(name='shop.pack')\ndef pack(payload: dict): pass\n"
    )
    worker = shared.serve(
        """
        from echofn import cron, queue
        from .lib import pack
        @queue(payload={"n": 7})
        def usual(payload: dict[str, int]): pass
        @cron("0 6 * * *")
        def only_cron(payload: int = 3): pass
        @queue
        def f(payload, ctx):
            return [
                ctx.enqueue("other.name", {"a": {1, }}),
                ctx.enqueue(pack, {"n": 1}, lane="acme", delay="5s", unique="k", priority=-3),
                ctx.enqueue(f, at="1974-03-29T01:00:00Z"),
                ctx.enqueue(usual),
                ctx.enqueue(only_cron),
            ]
        """
    )
    answer = worker.one(first_child=274557032793636864)
    assert answer.result[0] == "JOB0KHTOWnGLuC"
    assert answer.ended is not None
    first, second, third, fourth, fifth = answer.ended.children
    assert first == frames.Child(274557032793636864, "other.name", msgspec.msgpack.encode({"a": [1]}))
    assert second == frames.Child(
        274557032793636865, "shop.pack", b"\x81\xa1n\x01", "acme", delay_ms=5_000, unique="k", priority=-3
    )
    assert (third.function, third.at_ms) == ("m.f", 133_750_800_000)
    assert (fourth.function, fourth.payload) == ("m.usual", b"\x81\xa1n\x07")  # the annotation's own
    assert (fifth.function, fifth.payload) == ("m.only_cron", b"\x03")  # its parameter's


@pytest.mark.parametrize("end", ["raise ValueError", "raise Snooze('1s')", "raise Cancel()", "return object()"])
def test_a_run_that_does_not_end_well_leaves_no_children(shared: Base, end: str) -> None:
    assert outcome_of(shared, f"ctx.enqueue('x')\n{end}").ended.children == ()


@pytest.mark.parametrize(
    ("call", "kind", "told"),
    [
        ("ctx.enqueue(typed)", "ValueError", "payload for m.typed: expected one, as a None does not fit"),
        ("ctx.enqueue(print)", "TypeError", "expected a function annotated with @queue, or the name of one"),
        ("ctx.enqueue(only_hook)", "NotCallable", "m.only_hook is started by its webhook alone, at /h; add @queue"),
        ("ctx.enqueue('')", "ValueError", "name"),
        ("ctx.enqueue('x', object())", "ValueError", "object"),
        ("ctx.enqueue('x', math.nan)", "ValueError", "NaN"),
        ("ctx.enqueue('x', 'y' * (1 << 20))", "ValueError", "too large"),
        ("ctx.enqueue(typed, 'text')", "ValueError", "payload for m.typed: Expected `int`"),
        ("ctx.enqueue('x', delay='soon')", "ValueError", "soon"),
        ("ctx.enqueue('x', at='tomorrow')", "ValueError", "tomorrow"),
        ("ctx.enqueue('x', at=datetime.datetime(2026, 1, 1))", "ValueError", "zone"),
        ("ctx.enqueue('x', at='2026-03-29T01:00:00Z', delay=1)", "ValueError", "both"),
        ("ctx.enqueue('x', lane=5)", "TypeError", "lane="),
        ("ctx.enqueue('x', lane='y' * 10_001)", "ValueError", "lane="),
        ("ctx.enqueue('x', priority=1.5)", "ValueError", "priority"),
        ("ctx.enqueue('x', unique='')", "ValueError", "unique=: expected 1 to 255 characters, got 0; leave it out"),
        ("ctx.enqueue('x', unique='k' * 5000)", "ValueError", "unique=: expected 1 to 255 characters, got 5,000"),
        ("ctx.enqueue('x', unique=7)", "TypeError", "expected text for unique=, got int"),
        ("ctx.enqueue('x', delay='5000w')", "ValueError", "expected a wait of at most 3660 days, got '5000w'"),
        ("ctx.enqueue('x', at='9999-12-31T00:00:00Z')", "ValueError", "within 3660 days from now, got '9999-12-31T"),
        ("for _ in range(1001): ctx.enqueue('x')", "RuntimeError", "1,000"),
        ("for _ in range(3): ctx.enqueue('x', 'y' * 500_000)", "RuntimeError", "1 MiB"),
    ],
)
def test_a_child_that_cannot_be_minted_is_an_error_at_the_call(shared: Base, call: str, kind: str, told: str) -> None:
    head = (
        "import datetime\nfrom echofn import queue, webhook\n"
        "@webhook('/h', verify=None)\ndef only_hook(request): pass\n"
        "@queue\ndef typed(payload: int): pass"
    )
    fault = outcome_of(shared, call, head=head).fault
    assert fault.exception == kind
    assert told in fault.message


def test_a_thousand_children_are_taken(shared: Base) -> None:
    ended = outcome_of(shared, "for n in range(1000): ctx.enqueue('x', n)").ended
    assert [child.number for child in ended.children] == list(range(5_000, 6_000))


# ---- async ----


def test_async_runs_share_one_loop_and_end_in_order(shared: Base) -> None:
    worker = shared.serve(
        """
        import asyncio
        loops = set()
        async def f(payload, ctx):
            await asyncio.sleep(0)
            loops.add(id(asyncio.get_running_loop()))
            if payload == 1: raise ValueError("one")
            if payload == 2: raise SystemExit
            if payload == 3: raise asyncio.CancelledError
            if payload == 4: asyncio.get_running_loop().stop()
            return [payload, len(loops)]
        """
    )
    answers = worker.run(*(job(n) for n in range(6)))
    assert [answer.outcome for answer in answers] == ["done", "retry", "retry", "retry", "done", "done"]
    assert [answer.fault.exception for answer in answers[1:4]] == ["ValueError", "SystemExit", "CancelledError"]
    assert answers[5].result == [5, 1]
    assert "m.py" in answers[1].fault.traceback
    assert "asyncio" not in answers[1].fault.traceback


def test_a_sync_function_that_gives_a_coroutine_is_awaited(shared: Base) -> None:
    worker = shared.serve("async def inner(n):\n    return n + 1\ndef f(payload):\n    return inner(payload)\n")
    assert worker.one(1).result == 2


def test_a_sync_function_may_run_a_loop_of_its_own(shared: Base) -> None:
    worker = shared.serve(
        """
        import asyncio
        async def inner(n): return n + 1
        def f(payload): return asyncio.run(inner(payload))
        """
    )
    assert [answer.result for answer in worker.run(job(1), job(2))] == [2, 3]


# ---- the order of things ----


def test_jobs_of_several_frames_run_in_order_and_share_the_modules_state(shared: Base) -> None:
    worker = shared.serve("seen = []\ndef f(payload):\n    seen.append(payload)\n    return list(seen)\n")
    worker.hand(job(1), job(2))
    worker.hand(job(3))
    assert [answer.result for answer in worker.collect(3)] == [[1], [1, 2], [1, 2, 3]]


def test_an_alarm_goes_off_in_its_own_run_or_never(shared: Base) -> None:
    worker = shared.serve(
        """
        import signal, time
        def rings(number, frame): raise TimeoutError("rang")
        def f(payload):
            if payload == "set":
                signal.signal(signal.SIGALRM, rings)
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                return 1
            time.sleep(0.3)
            return 2
        """
    )
    assert [answer.result for answer in worker.run(job("set"), job("wait"))] == [1, 2]


def test_a_forked_child_that_comes_back_writes_nothing(shared: Base) -> None:
    worker = shared.serve(
        """
        import os
        def f(payload):
            pid = os.fork()
            if pid: os.waitpid(pid, 0)
            print("mine")
            return 1
        """
    )
    for answer in worker.run(job(), job()):
        assert answer.result == 1
        assert answer.text("stdout") == "mine"


def test_the_figures_of_a_run_are_its_own(shared: Base) -> None:
    worker = shared.serve(
        "import time\ndef f(payload):\n    if payload: sum(range(2_000_000))\n    else: time.sleep(0.1)\n"
    )
    busy, idle = (answer.ended for answer in worker.run(job(1), job(0)))
    assert busy is not None
    assert idle is not None
    assert busy.cpu_us > 5_000
    assert idle.wall_us >= 100_000
    assert idle.cpu_us < 50_000
