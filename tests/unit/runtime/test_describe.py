"""What annotations become: functions of the manifest, or refusals that name the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from echofn.discovery_protocol import Described
from echofn.manifest import (
    Constant,
    CronTrigger,
    EveryTrigger,
    Exponential,
    Function,
    Linear,
    Off,
    Policy,
    QueueTrigger,
    Waits,
)
from echofn.manifest import WebhookTrigger as Webhook
from unit.runtime.driving import discover, write

HEAD = "from echofn import *\nimport datetime, functools, msgspec, typing\n"


def described(tmp_path: Path, source: str, module: str = "m", env: str = "dev") -> Described:
    folder = tmp_path / "functions"
    write(folder, **{module: HEAD + source})
    return discover(folder, env=env)[module.replace("__", ".")]


def one(tmp_path: Path, source: str, module: str = "m") -> Function:
    answer = described(tmp_path, source, module)
    assert answer.errors == ()
    (function,) = answer.functions
    return function


def test_redact_is_kept_as_paths_each_once(tmp_path: Path) -> None:
    function = one(tmp_path, "@queue(redact=('card.number', 'items[0].sku', 'card.number'))\ndef f(p): pass")
    assert function.policy.redact == ("card.number", "items[0].sku")
    hook = one(tmp_path, "@webhook('/h', verify=None, redact=['json.card', 'headers.X-Key'])\ndef f(p): pass")
    assert hook.policy.redact == ("json.card", "headers.x-key")


@pytest.mark.parametrize("kind", ["queue(", "webhook('/h', verify=None, "])
def test_a_worker_of_an_isolated_job_runs_one_at_a_time(tmp_path: Path, kind: str) -> None:
    function = one(tmp_path, f"@{kind}isolation='job', per_worker=5, recycle_jobs=1)\nasync def f(p): pass")
    assert (function.policy.isolation, function.at_once) == ("job", 1)
    function = one(tmp_path, f"@{kind}isolation='worker', per_worker=5)\nasync def f(p): pass")
    assert (function.policy.isolation, function.at_once) == ("worker", 5)


def test_a_function_as_written_becomes_a_function_of_the_manifest(tmp_path: Path) -> None:
    function = one(
        tmp_path,
        """
class Declined(Exception): ...
class Invoice(msgspec.Struct, omit_defaults=True):
    amount: int; tenant: str = ""; id: str = ""
@cron("0 6  * * mon", tz="Europe/Berlin", missed="all", cap=7, payload={"amount": 1})
@every("20s", anchor="1970-01-01T00:00:05Z", name="tick", payload=Invoice(2))
@queue(lane="tenant", retries=5, timeout="30s", payload={"amount": 3}, fail_on=(ValueError, Declined),
       workers=(1, 4), priority=-2, unique="id", until="1h", max_pending=9,
       memory="1GB", recycle_jobs=7, keep="1d", secrets=["KEY"], backoff=["1s", "1m"])
async def send(payload: Invoice, ctx: Context) -> int:
    '''
    Sends it.

    At length.
    '''
""",
        "sub__shop",
    )
    assert (function.name, function.module, function.attribute) == ("sub.shop.send", "sub.shop", "send")
    assert (function.file, function.line) == ("sub/shop.py", 7)
    assert (function.takes_payload, function.takes_context, function.is_async) == (True, True, True)
    assert (function.doc, function.secrets) == ("Sends it.", ("KEY",))
    assert function.policy == Policy(
        retries=5,
        backoff=Waits((1_000, 60_000)),
        fail_on=("ValueError", "Declined"),
        timeout_ms=30_000,
        lane="tenant",
        workers_min=1,
        workers_max=4,
        recycle_jobs=7,
        memory_bytes=1 << 30,
        keep_ms=86_400_000,
        unique="id",
        until=3_600_000,
        max_pending=9,
        priority=-2,
    )
    assert function.triggers == (
        CronTrigger(
            "0 6 * * mon Europe/Berlin", "0 6 * * mon", "Europe/Berlin", "all", 7, payload=b"\x81\xa6amount\x01", line=7
        ),
        EveryTrigger("tick", 20_000, 5_000, payload=b"\x81\xa6amount\x02", line=8),
        QueueTrigger(b"\x81\xa6amount\x03"),
    )
    assert function.payload_schema is not None
    assert function.payload_schema["$defs"]["Invoice"]["required"] == ["amount"]
    assert function.result_schema == {"type": "integer"}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("@queue\ndef f(): pass", "m.f"),
        ("@queue()\ndef handler(): pass", "m"),
        ("@queue(name='billing.send')\ndef f(): pass", "billing.send"),
        ("@every('1s')\ndef f(): pass", "m.f"),
        ("@queue\ndef größe(): pass", "m.größe"),
        ("def work(): pass\nsend = queue(work)\ndel work", "m.send"),
        ("@queue\ndef f(): pass\ng = f", "m.f"),
    ],
)
def test_a_function_is_named_after_its_module(tmp_path: Path, source: str, name: str) -> None:
    assert one(tmp_path, source).name == name


def test_without_options_a_function_has_the_default_policy(tmp_path: Path) -> None:
    assert one(tmp_path, "@queue\ndef f(): pass").policy == Policy()


@pytest.mark.parametrize("order", ["@queue(retries=1)\n@every('1s')", "@every('1s')\n@queue(retries=1)"])
def test_annotations_stack_in_any_order(tmp_path: Path, order: str) -> None:
    function = one(tmp_path, order + "\ndef f(): pass")
    assert function.policy.retries == 1
    assert {type(trigger) for trigger in function.triggers} == {QueueTrigger, EveryTrigger}


def test_a_decorator_that_wraps_well_is_welcome_on_either_side(tmp_path: Path) -> None:
    source = """
def logged(function):
    @functools.wraps(function)
    def inner(*args, **kwargs): return function(*args, **kwargs)
    return inner
@queue
@logged
def outside(payload: int, ctx): pass
@logged
@queue
def inside(payload: int): pass
"""
    answer = described(tmp_path, source)
    assert answer.errors == ()
    assert [(function.name, function.payload_schema) for function in answer.functions] == [
        ("m.outside", {"type": "integer"}),
        ("m.inside", {"type": "integer"}),
    ]


def test_a_function_belongs_to_the_module_that_annotates_it(tmp_path: Path) -> None:
    write(tmp_path / "functions", a=HEAD + "@queue\ndef pack(payload): pass\n")
    answer = described(tmp_path, "from .a import pack\nfrom . import a\n@queue\ndef f(): pack(1)")
    assert [function.name for function in answer.functions] == ["m.f"]


OFF = """
@queue(env="prod", retries=9)
@cron("* * * * *", env=["staging", "prod"])
@every("1s", env="dev")
@every("2s", enabled=False)
@every("3s", enabled=True)
def f(payload): ...
@cron("0 6 * * *", env="prod")
def prod_only(): ...
@queue(enabled=False)
def off(): ...
"""


@pytest.mark.parametrize(
    ("env", "kinds", "functions", "off"),
    [
        ("dev", [(2, EveryTrigger)], ["m.f"], [(4, "env=prod"), (5, "env=staging, prod"), (7, "enabled=False")]),
        (
            "staging",
            [(1, EveryTrigger), (1, CronTrigger)],
            ["m.f"],
            [(4, "env=prod"), (6, "env=dev"), (7, "enabled=False")],
        ),
        (
            "prod",
            [(1, EveryTrigger), (1, CronTrigger), (1, QueueTrigger)],
            ["m.f", "m.prod_only"],
            [(6, "env=dev"), (7, "enabled=False")],
        ),
    ],
)
def test_an_annotation_that_is_off_is_as_if_it_were_not_written(
    tmp_path: Path, env: str, kinds: list[tuple[int, type]], functions: list[str], off: list[tuple[int, str]]
) -> None:
    answer = described(tmp_path, OFF, env=env)
    assert answer.errors == ()
    assert [function.name for function in answer.functions] == functions
    function = answer.functions[0]
    for count, kind in kinds:
        assert sum(isinstance(trigger, kind) for trigger in function.triggers) == count
    assert len(function.triggers) == sum(count for count, _ in kinds)
    assert function.policy.retries == (9 if env == "prod" else 3)
    others = [Off("m.prod_only", "cron", "m.py", 10, "env=prod", "m")] if env != "prod" else []
    others.append(Off("m.off", "queue", "m.py", 12, "enabled=False", "m"))
    assert [(each.line, each.why) for each in answer.off if each.function == "m.f"] == off
    assert [each for each in answer.off if each.function != "m.f"] == others


def test_a_function_may_have_a_policy_for_each_environment(tmp_path: Path) -> None:
    source = "@queue(env='dev', retries=0)\n@queue(env='prod', retries=8)\ndef f(payload): pass"
    assert [each.policy.retries for each in described(tmp_path, source).functions] == [0]
    assert [each.policy.retries for each in described(tmp_path, source, env="prod").functions] == [8]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("'exponential'", Exponential()),
        ("'linear'", Linear(500, 600_000)),
        ("'fixed'", Constant(500)),
        ("Backoff()", Exponential()),
        ("Backoff(base='1s', cap='5m')", Exponential(1_000, 300_000)),
        ("Backoff('linear', base=10)", Linear(10_000, 600_000)),
        ("Backoff('fixed', base='2s')", Constant(2_000)),
        ("{'base': '1s', 'cap': '5m'}", Exponential(1_000, 300_000)),
        ("{'kind': 'linear', 'base': 2}", Linear(2_000, 600_000)),
        ("'10s'", Constant(10_000)),
        ("datetime.timedelta(minutes=1)", Constant(60_000)),
        ("('100ms',)", Waits((100,))),
    ],
)
def test_a_backoff_is_a_kind_a_wait_or_a_list(tmp_path: Path, written: str, meant: Any) -> None:
    assert one(tmp_path, f"@queue(backoff={written})\ndef f(): pass").policy.backoff == meant


@pytest.mark.parametrize(
    ("parameters", "payload", "context"),
    [
        ("", False, False),
        ("payload", True, False),
        ("ctx", False, True),
        ("payload, ctx", True, True),
        ("ctx, event", True, True),
        ("anything: Context", False, True),
        ("p, c: 'Context | None'", True, True),
        ("c: Context[int], p: str", True, True),
        ("p: int, ctx: 'Context[Nowhere]'", True, True),
        ("p: 'int', ctx: 'Nowhere' = None", True, True),
        ("*, payload, ctx", True, True),
    ],
)
def test_the_payload_and_the_context_are_found(tmp_path: Path, parameters: str, payload: bool, context: bool) -> None:
    function = one(tmp_path, f"@queue\ndef f({parameters}): pass")
    assert (function.takes_payload, function.takes_context) == (payload, context)


@pytest.mark.parametrize("written", ["", ": list", ": list[typing.Any]", ": 'list'"])
def test_a_batch_function_may_take_anything(tmp_path: Path, written: str) -> None:
    function = one(tmp_path, f"@queue(batch=50, batch_wait='200ms')\ndef f(payloads{written}, ctx): pass")
    assert (function.policy.batch, function.policy.batch_wait_ms) == (50, 200)
    assert (function.payload_schema, function.takes_payload, function.takes_context) == (None, True, True)


def test_the_schemas_of_a_batch_function_are_of_one_payload_and_one_result(tmp_path: Path) -> None:
    source = """
class Order(msgspec.Struct):
    number: int
@every("1s", payload={"number": 1})
@queue(batch=50)
def f(orders: list[Order]) -> list[str]: ...
"""
    function = one(tmp_path, source)
    assert function.payload_schema is not None
    assert function.payload_schema["$defs"]["Order"]["properties"] == {"number": {"type": "integer"}}
    assert function.result_schema == {"type": "string"}


@pytest.mark.parametrize(
    "written", ["", " -> None", " -> list", " -> 'list[str] | None'", " -> 'list[str | Exception]'"]
)
def test_results_of_a_batch_function_of_other_types_have_no_schema(tmp_path: Path, written: str) -> None:
    assert one(tmp_path, f"@queue(batch=5)\ndef f(p){written}: pass").result_schema is None


def test_a_webhook_may_gather_its_requests(tmp_path: Path) -> None:
    function = one(tmp_path, "@webhook('/in', verify=None, batch=5)\ndef f(requests: list[Request]): pass")
    assert (function.policy.batch, function.payload_schema) == (5, None)


STRUCT = (
    "class I(msgspec.Struct): id: int\n"
    "class S(msgspec.Struct): tenant: str; inner: I; many: list[I]; open: dict[str, int]; any: typing.Any\n"
)
MISTAKES = [
    # options
    ("@queue(retrys=1)\ndef f(): pass", 3, "did you mean 'retries'?"),
    ("@queue(zzz=1)\ndef f(): pass", 3, "unknown option 'zzz' of @queue; known are"),
    ("@queue(\n  lane='a',\n  isolation='thread',\n)\ndef f(): pass", 3, 'isolation=: expected "worker" or "job"'),
    ("@queue(isolation=None)\ndef f(): pass", 3, "isolation=: expected"),
    (
        "@queue(isolation='job', recycle_jobs=5)\ndef f(): pass",
        3,
        'recycle_jobs=: with isolation="job" a worker is for',
    ),
    (
        "@webhook('/x', verify=None, isolation='job', recycle_jobs=5)\ndef f(r): pass",
        3,
        'remove it, or write isolation="worker"',
    ),
    ("@queue(batch=0)\ndef f(p): pass", 3, "batch=: expected a whole number from 1 to 1,000, got 0"),
    ("@queue(batch=True)\ndef f(p): pass", 3, "batch=: expected a whole number"),
    ("@queue(batch=5, batch_wait='2d')\ndef f(p): pass", 3, "batch_wait=: expected at most 1d, got '2d'"),
    ("@queue(batch=5, batch_wait='soon')\ndef f(p): pass", 3, "batch_wait=: expected a duration"),
    ("@queue(batch=5, env='dev')\n@queue(env='prod')\ndef f(p): pass", 3, "expected it on each @queue of the function"),
    ("@queue(batch_wait='1s')\ndef f(p): pass", 3, "batch_wait=: expected batch= beside it, got none"),
    ("@queue(batch=5)\ndef f(): pass", 3, "batch=: expected a parameter for the list of payloads, got none"),
    ("@queue(batch=6)\ndef f(ctx): pass", 3, "batch=: expected a parameter for the list of payloads, got none"),
    ("@queue(batch=5)\ndef f(p: int): pass", 3, "batch=: expected list[…] or no type for p, got int"),
    ("@queue(batch=5)\ndef f(p: dict[str, int]): pass", 3, "expected list[…] or no type for p, got dict[str, int]"),
    ("@queue(batch=5)\ndef f(p: 'list[int] | None'): pass", 3, "expected list[…] or no type for p"),
    ("@every('1s', payload='x')\n@queue(batch=5)\ndef f(p: list[int]): pass", 3, "payload=: "),
    ("@every('1s')\n@queue(batch=5)\ndef f(p: list[int]): pass", 3, "as the function takes int"),
    (
        "@cron('* * * * *', overlap='drop')\ndef f(): pass",
        3,
        'overlap=: expected "allow", "skip", "queue" or "replace"',
    ),
    ("@every('1h', overlap=None)\ndef f(): pass", 3, 'overlap=: expected "allow"'),
    ("@every('1h', jitter='8d')\ndef f(): pass", 3, "jitter=: expected at most 7d, got '8d'"),
    ("@cron('* * * * *', jitter='some')\ndef f(): pass", 3, "jitter=: expected a duration"),
    ("@queue(env=5)\ndef f(): pass", 3, 'env=: expected "dev", "prod" or another name that --env has'),
    ("@cron('* * * * *', env=[])\ndef f(): pass", 3, "env=: expected"),
    ("@every('1s', enabled='no')\ndef f(): pass", 3, "enabled=: expected True or False, got 'no'"),
    (
        "@webhook('/x', verify=None, payload=1)\ndef f(r): pass",
        3,
        "payload=: what a webhook's jobs carry is what is sent",
    ),
    ("@queue(fail_on='ValueError')\ndef f(): pass", 3, "fail_on=: expected classes of exceptions, as in (ValueError"),
    ("@queue(fail_on=[int])\ndef f(): pass", 3, "fail_on=: expected classes of exceptions"),
    ("@queue(fail_on=ValueError())\ndef f(): pass", 3, "fail_on=: expected classes of exceptions"),
    (
        "@queue(fail_on=(Exception, Retry))\ndef f(): pass",
        3,
        "expected exceptions that are no verdict already, got Retry",
    ),
    ("@queue(payload=1)\ndef f(): pass", 3, "takes no payload"),
    ("@queue(payload='x')\ndef f(p: int): pass", 3, "payload=: Expected `int`"),
    ("@queue(env='prod', retrys=1)\n@every('1s')\ndef f(): pass", 3, "did you mean 'retries'?"),
    ("@every('1s')\n@cron('* * * * *', enabled=False, tz='')\ndef f(): pass", 4, "zone"),
    (
        "@queue(name='a.b', env='prod')\n@queue(name='a.c', env='dev')\ndef f(): pass",
        3,
        "expected one name for a function, got a.b, a.c",
    ),
    ("@queue('lane')\ndef f(): pass", 3, "expected keywords"),
    ("@queue(retries=-1)\ndef f(): pass", 3, "retries=: expected a whole number from 0"),
    ("@queue(retries=True)\ndef f(): pass", 3, "retries="),
    ("@queue(timeout='soon')\ndef f(): pass", 3, "timeout=: expected a duration"),
    ("@queue(timeout=0)\ndef f(): pass", 3, "above zero"),
    ("@queue(memory='1MB')\ndef f(): pass", 3, "at least 32MB"),
    ("@queue(workers=(4, 2))\ndef f(): pass", 3, "(least, most)"),
    ("@queue(workers=(0, 0))\ndef f(): pass", 3, "(least, most)"),
    ("@queue(lane='')\ndef f(): pass", 3, "path"),
    ("@queue(until='never')\ndef f(): pass", 3, 'until=: expected "done", "started" or a time above zero'),
    ("@queue(until='start')\ndef f(): pass", 3, "got 'start'; did you mean \"started\"?"),
    ("@queue(max_pending=0)\ndef f(): pass", 3, "max_pending="),
    ("@queue(backoff='constant')\ndef f(): pass", 3, 'backoff=: expected "exponential", "linear"'),
    ("@queue(backoff='expo')\ndef f(): pass", 3, "got 'expo'; did you mean \"exponential\"?"),
    (
        "@queue(backoff=Backoff('qubic'))\ndef f(): pass",
        3,
        "expected a kind of exponential, linear, fixed, got 'qubic'",
    ),
    ("@queue(backoff=Backoff('fixed', cap='1m'))\ndef f(): pass", 3, "no cap for a fixed wait"),
    ("@queue(backoff=Backoff(base='soon'))\ndef f(): pass", 3, "backoff=: expected a duration"),
    ("@queue(backoff=Backoff(base='1h'))\ndef f(): pass", 3, "at most the cap, got '1h' and '10m'"),
    ("@queue(backoff={'wait': '1s'})\ndef f(): pass", 3, 'backoff=: expected "exponential", "linear"'),
    ("@queue(backoff=[])\ndef f(): pass", 3, "backoff="),
    ("@queue(backoff={'base': '5m', 'cap': '1s'})\ndef f(): pass", 3, "at most the cap"),
    ("@queue(redact='card.number')\ndef f(p): pass", 3, "expected a list of up to 100 paths"),
    ("@queue(redact=['card..number'])\ndef f(p): pass", 3, "redact=: expected a path like"),
    ("@queue(redact=[''])\ndef f(p): pass", 3, "redact=: expected the path of a payload value"),
    ("@queue(redact=[5])\ndef f(p): pass", 3, "redact="),
    ("@queue(redact=['x'] * 101)\ndef f(p): pass", 3, "up to 100 paths"),
    ("@queue(redact=['card'], lane='card.number')\ndef f(p): pass", 3, "lanes are shown"),
    ("@webhook('/h', verify=None, redact=['card'])\ndef f(p): pass", 3, "json., headers., query., params."),
    ("@webhook('/h', verify=None, redact=['json.a'], lane='json.a.b')\ndef f(p): pass", 3, "lanes are shown"),
    ("@cron('* * * * *', redact=['a'])\ndef f(): pass", 3, "unknown option 'redact' of @cron"),
    ("@queue(secrets='KEY')\ndef f(): pass", 3, "names of variables"),
    ("NAMES = ['KEY']\n@queue(secrets=NAMES)\ndef f(): pass", 4, "written out"),
    (
        "class Odd:\n    def __repr__(self): raise OSError\n@queue(retries=Odd())\ndef f(): pass",
        5,
        "cannot be read",
    ),
    ("@queue(name='a b')\ndef f(): pass", 3, "expected a name"),
    ("@queue(name='')\ndef f(): pass", 3, "expected a name"),
    ("@queue(name='a..b')\ndef f(): pass", 3, "expected a name"),
    ("@queue(name='a/../b')\ndef f(): pass", 3, "expected a name"),
    ("@queue(name='a{b}:c')\ndef f(): pass", 3, "expected a name"),
    ("@queue(name='x' * 201)\ndef f(): pass", 3, "at most 200"),
    ("@queue\n@queue(retries=1)\ndef f(): pass", 4, "one @queue"),
    # recurrences
    ("@cron\ndef f(): pass", 3, "expected a rule"),
    ("@cron()\ndef f(): pass", 3, "expected a rule"),
    ("@cron(5)\ndef f(): pass", 3, "expected a rule"),
    ("@cron('* * * * *', tz='')\ndef f(): pass", 3, "zone"),
    ("@cron('* * * * *', missed='some')\ndef f(): pass", 3, "missed="),
    ("@cron('* * * * *', missed='all', cap=0)\ndef f(): pass", 3, "cap=: expected a whole number from 1"),
    ("@cron('* * * * *', cap=5)\ndef f(): pass", 3, 'cap=: expected missed="all" beside it'),
    ("@queue\n@every('1s', missed='last', cap=5)\ndef f(): pass", 4, 'cap=: expected missed="all" beside it'),
    ("@cron('* * * * *', name='a/b')\ndef f(): pass", 3, "without /"),
    ("@cron('* * * * *')\n@cron('* *  * * *')\ndef f(): pass", 4, "two recurrences"),
    ("@every\ndef f(): pass", 3, "expected a period"),
    ("@every('10ms')\ndef f(): pass", 3, "at least 100 ms"),
    ("@every('1s', anchor=datetime.datetime(2026, 1, 1))\ndef f(): pass", 3, "zone"),
    ("@every('20s')\n@every(20)\ndef f(): pass", 4, "two recurrences of this function are called 'every 20s'"),
    (
        "@queue(timeout=10**5000)\ndef f(): pass",
        3,
        "expected a duration from 0 to 100 years, got an integer of too many",
    ),
    (
        "@cron('* * * * *')\ndef f(p: int): pass",
        3,
        "or a default of its parameter, as the function takes int",
    ),
    ("@cron('* * * * *', payload=None)\ndef f(p: int = 1): pass", 3, "payload=: Expected `int`"),
    (
        "@cron('* * * * *')\ndef f(p: int = 'x'): pass",
        3,
        "expected a default of the payload that a job can carry, got 'x'",
    ),
    ("@queue\ndef f(p=object()): pass", 3, "expected a default of the payload that a job can carry"),
    ("@every('1s', payload='x')\ndef f(p: int): pass", 3, "payload=: Expected `int`"),
    ("@every('1s', payload=object())\ndef f(p): pass", 3, "payload="),
    ("@every('1s', payload=1)\ndef f(): pass", 3, "takes no payload"),
    # functions
    ("class K:\n    @queue\n    def m(self): pass", 4, "method"),
    ("class K:\n    @staticmethod\n    @queue\n    def m(): pass", 5, "method"),
    ("class K:\n    @queue\n    @classmethod\n    def m(cls): pass", 4, "classmethod"),
    ("class K:\n    def m(self): pass\nf = queue(K().m)", 5, "method"),
    ("@queue\nclass K: pass", 3, "class"),
    ("f = queue(lambda payload: 1)", 3, "lambda"),
    ("f = queue(functools.partial(print))", 3, "partial"),
    ("f = queue(print)", 3, "builtin_function"),
    ("def outer():\n    @queue\n    def inner(): pass\nouter()", 4, "nested"),
    ("def outer():\n    @queue\n    def inner(): pass\n    return inner\nf = outer()", 4, "nested"),
    ("@queue\ndef f(payload): yield 1", 3, "generator"),
    ("@queue\nasync def f(payload): yield 1", 3, "generator"),
    (
        "def bad(function): return lambda *a: function(*a)\n@bad\n@queue\ndef f(): pass",
        5,
        "another object is there",
    ),
    ("@queue\ndef f(): pass\ndef f(): pass", 3, "another object is there"),
    ("@queue\ndef f(a, b): pass", 3, "0, 1 or 2 parameters"),
    ("@queue\ndef f(a, ctx, b=1): pass", 3, "0, 1 or 2 parameters"),
    ("@queue\ndef f(*args): pass", 3, "*args"),
    ("@queue\ndef f(**options): pass", 3, "**options"),
    ("@queue\ndef f(p: 'Nowhere'): pass", 3, "known at run time"),
    ("class Foo: pass\n@queue\ndef f(p: Foo): pass", 4, "unknown to msgspec"),
    ("@queue\ndef f(p: typing.Callable): pass", 3, "for the payload"),
    ("@queue\ndef f(p: set[list[int]]): pass", 3, "a set holds what can be hashed, got list"),
    ("class S(msgspec.Struct): n: int\n@queue\ndef f(p: dict[str, set[S]]): pass", 4, "can be hashed, got S"),
    ("@queue\ndef f(p: frozenset[dict[str, int] | int]): pass", 3, "can be hashed, got dict"),
    ("@queue\ndef f(p: dict[tuple[int, int], str]): pass", 3, "keys of a dict are text, which no tuple is made of"),
    # paths into a payload whose fields are known
    (STRUCT + "@queue(lane='tenannt')\ndef f(p: S): pass", 5, "it has no 'tenannt'; did you mean 'tenant'?"),
    (STRUCT + "@queue(unique='inner.idd')\ndef f(p: S | None): pass", 5, "no 'idd'; did you mean 'id'?"),
    (STRUCT + "@queue(lane='tenant.id')\ndef f(p: S): pass", 5, "it has no 'id'; there are none"),
    (STRUCT + "@queue(lane='many.0.x')\ndef f(p: S): pass", 5, "it has no 'x'; there are id"),
    (STRUCT + "@queue(lane='many.id')\ndef f(p: S): pass", 5, "it has no 'id'; there are none"),
    (STRUCT + "@queue(batch=5, lane='tenannt')\ndef f(p: list[S]): pass", 5, "did you mean 'tenant'?"),
    ("class T(typing.TypedDict): a: int\n@queue(lane='b')\ndef f(p: T): pass", 4, "it has no 'b'; there are a"),
]


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Described]:
    """All of them in one folder, each in a module with a good neighbour."""
    folder = tmp_path_factory.mktemp("mistakes") / "functions"
    neighbour = "\n@queue\ndef neighbour(): pass\n"
    write(folder, **{f"m{number}": HEAD + source + neighbour for number, (source, _, _) in enumerate(MISTAKES)})
    return discover(folder)


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=[told for _, _, told in MISTAKES])
def test_a_mistake_is_refused_with_its_line_and_hurts_no_neighbour(mistaken: dict[str, Described], number: int) -> None:
    _, line, told = MISTAKES[number]
    module = f"m{number}"
    answer = mistaken[module]
    assert [function.name for function in answer.functions] == [f"{module}.neighbour"]
    (error,) = answer.errors
    assert (error.kind, error.module, error.file, error.line) == ("refused", module, f"{module}.py", line)
    assert told in error.message


def test_every_mistake_of_a_function_is_told_at_once(tmp_path: Path) -> None:
    answer = described(tmp_path, "@cron('* * * * *', tzz='UTC')\n@queue(retrys=1, timeout='x')\ndef f(a, b, c): pass")
    assert answer.functions == ()
    assert [error.line for error in answer.errors] == [3, 3, 4, 4]


DEFAULTS = """
class Invoice(msgspec.Struct):
    amount: int = 0
@queue
@cron("0 6 * * *")
@every("20s", payload=Invoice(2))
@every("30s", payload=None, enabled=False)
def f(payload: Invoice | None = Invoice(1)): pass
@cron("0 6 * * *")
@queue
def g(payload: Invoice = None): pass
@queue
def h(ctx, payload=7): pass
@queue(batch=3)
def many(payloads: list[int] = [1]): pass
"""


def test_the_default_of_the_parameter_is_what_a_job_without_payload_carries(tmp_path: Path) -> None:
    answer = described(tmp_path, DEFAULTS)
    assert answer.errors == ()
    f, g, h, many = answer.functions
    carried = [msgspec.msgpack.decode(each.payload) for each in f.triggers if not isinstance(each, Webhook)]
    assert carried == [{"amount": 1}, {"amount": 1}, {"amount": 2}]
    assert [msgspec.msgpack.decode(each.default_payload) for each in (g, h, many)] == [None, 7, None]
    assert g.payload_schema is not None
    assert {"type": "null"} in g.payload_schema["anyOf"]


def test_a_result_type_is_only_shown(tmp_path: Path) -> None:
    function = one(tmp_path, "class Foo: pass\n@queue\ndef f() -> 'Foo | Nowhere': pass")
    assert function.result_schema is None


def test_schemas_stand_on_their_own(tmp_path: Path) -> None:
    source = """
class Node(msgspec.Struct):
    value: int
    children: "list[Node]" = []
@queue
def f(payload: dict[str, Node]) -> list[Node]: ...
"""
    function = one(tmp_path, source)
    for schema in (function.payload_schema, function.result_schema):
        assert schema is not None
        assert list(schema["$defs"]) == ["Node"]
