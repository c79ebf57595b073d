"""Realistic JSON of a gateway, ugly cases included, at one fixed instant: for the preview and tests of rendering."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

NOW = datetime(2026, 11, 29, 14, 23, 7, 412_000, tzinfo=UTC)
Json = dict[str, Any]


def at(seconds: float) -> str:
    """The instant so many seconds after NOW."""
    moment = NOW + timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


SHELL: Json = {
    "version": "DEP0KHTOWnGLuC",
    "sandbox": "minimal",
    "mode": "dev",
    "degraded": ["sandbox: level minimal: Landlock, seccomp and namespaces are not in force"],
    "signed_in": False,
}
LONG = "reports.quarterly.consolidated_balance_sheet_for_all_subsidiaries_v2"
UNICODE = "büro.rechnung_erstellen_für_größere_kunden_日本語"
ATTACK = "<script>alert(1)</script>"

INVOICE: Json = {
    "$ref": "#/$defs/Invoice",
    "$defs": {
        "Invoice": {
            "title": "Invoice",
            "type": "object",
            "properties": {
                "customer": {"type": "string", "description": "Who pays; names the fair share"},
                "amount_cents": {"type": "integer", "minimum": 1},
                "currency": {"enum": ["EUR", "USD", "CHF"], "default": "EUR"},
                "due": {"type": "string", "format": "date"},
                "send_copy": {"type": "boolean", "default": False},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}},
            },
            "required": ["customer", "amount_cents", "items"],
        },
        "Item": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "quantity": {"type": "integer", "default": 1}},
            "required": ["name"],
        },
    },
}
POLICY: Json = {
    "retries": 3,
    "backoff": {"type": "exponential", "base_ms": 500, "cap_ms": 600_000},
    "timeout_ms": 30_000,
    "workers_min": 0,
    "workers_max": 4,
    "memory_bytes": 512 * 1024 * 1024,
    "keep_ms": 7 * 86_400_000,
}


def wave(height: int, phase: int, zero_until: int = 0) -> list[int]:
    """A calm curve of sixty minutes."""
    return [0 if i < zero_until else max(0, height + ((i * 7 + phase) % 11) - 5 + (i * phase) % 3) for i in range(60)]


def function(name: str, **more: Any) -> Json:
    base: Json = {
        "name": name,
        "module": name.rpartition(".")[0],
        "queue": name,
        "triggers": [{"kind": "queue"}],
        "policy": POLICY,
        "pending": 0,
        "active": 0,
        "scheduled": 0,
        "dead": 0,
        "version": "DEP0KHTOWnGLuC",
        "paused": False,
        "doc": "",
        "file": name.rpartition(".")[0].replace(".", "/") + ".py",
        "line": 12,
        "takes_payload": True,
        "payload_schema": None,
        "series": {"done": [0] * 60, "failed": [0] * 60},
        "rate": 0.0,
        "p50": None,
        "p95": None,
        "oldest_ms": None,
        "next": [],
    }
    return {**base, **more}


FUNCTIONS: list[Json] = [
    function(
        "billing.send_invoice",
        doc="Send one invoice and file the receipt.",
        policy={**POLICY, "lane": "customer"},
        payload_schema=INVOICE,
        series={"done": wave(22, 3), "failed": [1 if i in (12, 13, 40) else 4 if i == 41 else 0 for i in range(60)]},
        rate=0.42,
        p50=182.4,
        p95=940.0,
        pending=37,
        active=4,
        dead=2,
        oldest_ms=4_200,
    ),
    function(
        "heartbeat.beat",
        triggers=[{"kind": "every", "name": "every 20s", "period_ms": 20_000}],
        takes_payload=False,
        series={"done": [3] * 60, "failed": [0] * 60},
        rate=0.05,
        p50=0.7,
        p95=1.9,
        next=[at(12.588 + 20 * i) for i in range(5)],
    ),
    function(
        "reports.weekly",
        triggers=[
            {"kind": "cron", "name": "0 6 * * mon", "rule": "0 6 * * mon", "tz": "Europe/Berlin"},
            {"kind": "queue"},
        ],
        takes_payload=False,
        next=[at(52_000 + 604_800 * i) for i in range(5)],
        p50=4_310.0,
        p95=8_800.0,
    ),
    function(
        "imports.csv",
        doc="One job per row, in the share of its customer.",
        series={"done": wave(180, 5, 34), "failed": [0] * 60},
        rate=212.0,
        p50=3.1,
        p95=11.8,
        pending=1_284_113,
        active=12,
        scheduled=3,
        oldest_ms=512_000,
    ),
    function(
        "flaky.call",
        series={"done": wave(2, 2), "failed": wave(5, 7)},
        rate=0.11,
        p50=1_204.0,
        p95=30_000.0,
        scheduled=6,
        dead=41,
    ),
    function(
        "every_second.tick",
        triggers=[{"kind": "cron", "name": "* * * * * *", "rule": "* * * * * *", "tz": "UTC"}],
        takes_payload=False,
        series={"done": [60] * 60, "failed": [0] * 60},
        rate=1.0,
        p50=0.4,
        p95=0.9,
        next=[at(0.588 + i) for i in range(5)],
    ),
    function("thumbnails.render", paused=True, pending=8, oldest_ms=3_900_000, next=[]),
    function(
        LONG,
        doc="Has a name that will not fit.",
        series={"done": wave(1, 4), "failed": [0] * 60},
        rate=0.0004,
        p50=183_000.0,
    ),
    function(UNICODE, p50=12.0, p95=19.0, rate=0.0),
    function(f"attack.{ATTACK}", doc=f"{ATTACK} & <b>bold</b>"),
]
ERRORS: list[Json] = [
    {
        "module": "shop",
        "file": "shop.py",
        "line": 14,
        "column": 22,
        "message": "SyntaxError: '(' was never closed",
        "kind": "syntax",
    },
    {
        "module": "sub.cron_jobs",
        "file": "sub/cron_jobs.py",
        "line": 8,
        "column": None,
        "message": "cron rule '0 0 30 2 *' can never fire: February has no day 30.\nexpected a rule that fires",
        "kind": "refused",
    },
    {
        "module": "hangs",
        "file": "hangs.py",
        "line": None,
        "column": None,
        "message": "import did not end within 10 s",
        "kind": "hang",
    },
]
OCCURRENCES: list[Json] = [
    {
        "function": "heartbeat.beat",
        "recurrence": "heartbeat.beat/every 20s",
        "due": at(-7.412 - 20 * i),
        "job": f"JOB0KHTOWbeat{i:02d}",
        "state": "done",
    }
    for i in range(15)
] + [
    {
        "function": "every_second.tick",
        "recurrence": "every_second.tick/* * * * * *",
        "due": at(-0.412 - i),
        "job": f"JOB0KHTOWt{i:04d}",
        "state": "dead" if i == 60 else "done",
    }
    for i in range(290)
]


def job(number: int, **more: Any) -> Json:
    base: Json = {
        "id": f"JOB0KHTOWn{number:04d}",
        "function": "billing.send_invoice",
        "lane": "acme",
        "state": "done",
        "reason": None,
        "attempts": 1,
        "failures": 0,
        "payload": {"customer": "acme", "amount_cents": 129_900},
        "result": {"receipt": "R-2026-118", "sent": True},
        "error": None,
        "due": at(-80 - number),
        "minted": at(-80 - number),
        "started": at(-79.6 - number),
        "ended": at(-79.4 - number),
        "occurrence": None,
        "parent": None,
        "version": "DEP0KHTOWnGLuC",
        "history": [],
    }
    return {**base, **more}


RECENT: list[Json] = [
    job(1, state="active", ended=None, started=at(-2.1), minted=at(-2.4), due=at(-2.4), result=None),
    job(
        2, state="pending", started=None, ended=None, attempts=0, minted=at(-4), due=at(-4), result=None, lane="globex"
    ),
    job(
        3, state="scheduled", reason="retry", failures=2, attempts=2, ended=None, due=at(9), result=None, lane="initech"
    ),
    job(4),
    job(5, occurrence={"recurrence": "billing.send_invoice/monthly", "due": at(-90), "manual": False}),
    job(
        6, state="dead", failures=4, attempts=4, lane="a-tenant-with-a-name-that-goes-on-for-ever-and-ever", result=None
    ),
    job(7, state="cancelled", started=None, result=None, lane="-"),
    job(8, parent="JOB0KHTOWn0001", minted=at(-7_200), due=at(-7_200), started=at(-7_100), ended=at(-6_800)),
]


def metrics(window_s: int, scale: float, **more: Any) -> Json:
    base: Json = {
        "window_s": window_s,
        "minted": int(1_320 * scale),
        "done": int(1_290 * scale),
        "failed": int(12 * scale),
        "retried": int(10 * scale),
        "dead": int(2 * scale),
        "timeouts": int(1 * scale),
        "cancelled": 0,
        "duration_ms": {"p50": 182.4, "p95": 940.0, "p99": 2_310.0},
        "wait_ms": {"p50": 1.2, "p95": 18.0, "p99": 412.0},
        "late_ms": {"p50": 2.1, "p95": 6.0, "p99": 9.4},
        "missed": 0,
        "skipped": 0,
    }
    return {**base, **more}


FUNCTION: Json = {
    **FUNCTIONS[0],
    "triggers": [{"kind": "cron", "name": "monthly", "rule": "0 9 1 * *", "tz": "Europe/Berlin"}, {"kind": "queue"}],
    "metrics": metrics(3600, 1),
    "windows": {
        "900": metrics(900, 0.25),
        "3600": metrics(3600, 1),
        "86400": metrics(86_400, 921, missed=3, skipped=14),
    },
    "recent": RECENT,
    "schedules": [
        {
            "id": "billing.send_invoice/monthly",
            "function": "billing.send_invoice",
            "rule": "0 9 1 * *",
            "tz": "Europe/Berlin",
            "next": "2026-12-01T08:00:00.000Z",
            "last": "2026-11-01T08:00:00.000Z",
            "missed": 3,
            "skipped": 14,
            "paused": False,
            "error": None,
            "upcoming": [
                "2026-12-01T08:00:00.000Z",
                "2027-01-01T08:00:00.000Z",
                "2027-02-01T08:00:00.000Z",
                "2027-03-01T08:00:00.000Z",
                "2027-04-01T07:00:00.000Z",
            ],
        }
    ],
    "workers": {"count": 4, "busy": 4, "rss_bytes": 193_400_000, "cpu_s": 81.3, "cold_starts": 6},
    "versions": [
        {"version": "DEP0KHTOWnGLuC", "from": at(-4_000), "until": None, "changed": True},
        {"version": "DEP0KHTOWnAAAA", "from": at(-90_000), "until": at(-4_000), "changed": False},
        {"version": "DEP0KHTOWnBBBB", "from": at(-200_000), "until": at(-90_000), "changed": None},
    ],
    "lanes": [
        {
            "function": "billing.send_invoice",
            "lane": "acme",
            "pending": 29,
            "active": 2,
            "weight": 1,
            "paused": False,
            "path": "customer",
        },
        {
            "function": "billing.send_invoice",
            "lane": "globex",
            "pending": 6,
            "active": 1,
            "weight": 1,
            "paused": False,
            "path": "customer",
        },
        {
            "function": "billing.send_invoice",
            "lane": "a-tenant-with-a-name-that-goes-on-for-ever-and-ever",
            "pending": 2,
            "active": 1,
            "weight": 1,
            "paused": True,
            "path": "customer",
        },
    ],
}
EMPTY_FUNCTION: Json = {**function("fresh.nothing_yet"), "metrics": {}, "next": [], "recent": []}

TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "functions/billing.py", line 31, in send_invoice\n    receipt = post(invoice, timeout=5)\n'
    + "".join(
        f'  File "functions/lib/http.py", line {n}, in step_{n}\n    return step_{n + 1}(request, session=session)\n'
        for n in range(40, 58)
    )
    + "ConnectionError: upstream closed the connection before it had sent a single byte of its answer\n"
)


def run(attempt: int, started: float, took: float, outcome: str, **more: Any) -> Json:
    base: Json = {
        "attempt": attempt,
        "worker": "WRK0KHTOWnGA01",
        "started": at(started),
        "ended": at(started + took),
        "outcome": outcome,
        "cause": None,
        "wait_ms": 140.0,
        "cpu_s": 0.041,
        "peak_bytes": 31_400_000,
        "cold": False,
    }
    return {**base, **more}


DEAD_JOB: Json = job(
    6,
    state="dead",
    attempts=4,
    failures=4,
    result=None,
    minted=at(-64),
    due=at(-9.14),
    started=at(-9),
    ended=at(-4),
    payload={
        "customer": "acme",
        "amount_cents": 129_900,
        "note": ATTACK,
        "nested": {"deep": [1, 2.5, True, None, "größer & kleiner < 3"]},
        "long": "x" * 400,
    },
    error={
        "type": "ConnectionError",
        "message": "upstream closed the connection before it had sent a single byte of its answer",
        "traceback": TRACEBACK,
        "cause": "error",
    },
    history=[
        run(1, -63, 5.2, "retry", cause="timeout", cold=True),
        run(2, -56.1, 3.1, "retry", cause="error"),
        run(3, -38, 0.9, "lost", cause="lost", cpu_s=None, peak_bytes=None, worker="WRK0KHTOWnGA02"),
        run(4, -9, 5.0, "dead", cause="error"),
    ],
    retries=3,
    log=[
        {
            "at": at(-62.9),
            "attempt": 1,
            "stream": "log",
            "level": "INFO",
            "logger": "billing",
            "text": "invoice 4711 for acme",
        },
        {
            "at": at(-58.1),
            "attempt": 1,
            "stream": "log",
            "level": "WARNING",
            "logger": "billing",
            "text": "upstream is slow (4.8 s)",
        },
        {"at": at(-9), "attempt": 4, "stream": "stdout", "level": "", "logger": "", "text": f"printed {ATTACK}"},
        {
            "at": at(-4.1),
            "attempt": 4,
            "stream": "log",
            "level": "ERROR",
            "logger": "billing",
            "text": "giving up\n  after the last try",
        },
    ],
)
ACTIVE_JOB: Json = job(
    1,
    state="active",
    attempts=2,
    failures=1,
    result=None,
    minted=at(-31),
    due=at(-9),
    started=at(-4.2),
    ended=None,
    progress=[0.42, "row 420 of 1,000"],
    history=[run(1, -30.8, 6.1, "retry", cause="error", cold=True)],
    retries=3,
)
DONE_JOB: Json = job(4, history=[run(1, -83.6, 0.18, "done", wait_ms=0.9)], retries=3)
SCHEDULED_JOB: Json = job(
    3,
    state="scheduled",
    reason="retry",
    attempts=2,
    failures=2,
    minted=at(-20),
    due=at(34),
    started=at(-9),
    ended=None,
    result=None,
    error={"type": "TimeoutError", "message": "no answer within 5 s", "traceback": TRACEBACK[:300], "cause": "timeout"},
    history=[run(1, -19.8, 5.0, "retry", cause="timeout"), run(2, -9, 5.0, "retry", cause="timeout")],
    retries=3,
)
PENDING_JOB: Json = job(
    2, state="pending", attempts=0, started=None, ended=None, result=None, minted=at(-4), due=at(-4), payload=None
)

FUNCTION_LOG: list[Json] = [{**line, "job": one["id"]} for one in (DONE_JOB, DEAD_JOB) for line in DEAD_JOB["log"]]

PAGES: dict[str, tuple[str, Json]] = {
    "/": ("functions", {"functions": FUNCTIONS, "errors": ERRORS, "occurrences": OCCURRENCES}),
    "/calm": ("functions", {"functions": FUNCTIONS[:6], "errors": [], "occurrences": OCCURRENCES}),
    "/none": ("functions", {"functions": [], "errors": []}),
    "/functions/billing.send_invoice": ("function", FUNCTION),
    "/functions/heartbeat.beat": (
        "function",
        {**FUNCTIONS[1], "metrics": metrics(3600, 0.2), "recent": [], "paused": True},
    ),
    "/functions/fresh.nothing_yet": ("function", EMPTY_FUNCTION),
    "/functions/long": ("function", {**FUNCTIONS[7], "metrics": metrics(3600, 1e7), "recent": RECENT}),
    "/jobs/dead": ("job", DEAD_JOB),
    "/jobs/active": ("job", ACTIVE_JOB),
    "/jobs/done": ("job", DONE_JOB),
    "/jobs/scheduled": ("job", SCHEDULED_JOB),
    "/jobs/pending": ("job", PENDING_JOB),
    "/jobs": (
        "jobs",
        {
            "jobs": RECENT,
            "cursor": "abc",
            "filter": {"function": None, "state": None, "lane": None},
            "names": [f["name"] for f in FUNCTIONS],
        },
    ),
    "/jobs-none": ("jobs", {"jobs": [], "cursor": None, "filter": {"function": "x.y"}, "names": []}),
    "/schedules": (
        "schedules",
        {
            "schedules": [
                *FUNCTION["schedules"],
                {
                    **FUNCTION["schedules"][0],
                    "id": "heartbeat.beat/every 20s",
                    "function": "heartbeat.beat",
                    "rule": "every 20s",
                    "tz": "UTC",
                    "paused": True,
                    "missed": 0,
                    "next": None,
                },
                {
                    **FUNCTION["schedules"][0],
                    "id": f"{LONG}/0 6 * * mon Europe/Berlin",
                    "function": LONG,
                    "error": "no next instant within 100 years",
                },
            ]
        },
    ),
    "/morgue": (
        "morgue",
        {
            "jobs": [
                DEAD_JOB,
                {**DEAD_JOB, "id": "JOB0KHTOWn0016"},
                {
                    **DEAD_JOB,
                    "id": "JOB0KHTOWn0026",
                    "function": "flaky.call",
                    "error": {"type": "Killed", "message": "killed", "cause": "signal:SEGV"},
                },
            ],
            "cursor": None,
        },
    ),
    "/lanes": ("lanes", {"lanes": FUNCTION["lanes"]}),
    "/versions": (
        "versions",
        {
            "versions": [
                {
                    "id": "DEP0KHTOWnGLuC",
                    "activated": at(-60),
                    "active": True,
                    "functions": ["shop.pack", "billing.send"],
                    "changes": {
                        "lines": [
                            {"mark": "+", "text": "function billing.send"},
                            {"mark": "~", "text": "function shop.pack: code, limits"},
                            {
                                "mark": "-",
                                "text": "function shop.old: 3 waiting jobs stay until a version has it again",
                            },
                            {
                                "mark": "-",
                                "text": f"schedule {'long-' * 30}: 0 6 * * mon, would have been due tomorrow",
                            },
                            {"mark": "~", "text": "limit of shop.pack: timeout 1m → 30s"},
                        ]
                    },
                },
                {
                    "id": "DEP0KHTOWnGLuB",
                    "activated": at(-3_600),
                    "active": False,
                    "functions": ["shop.pack"],
                    "changes": {"lines": [{"mark": "~", "text": f"function {ATTACK}: code"}]},
                },
                {"id": "DEP0KHTOWnGLuA", "activated": at(-7_200), "active": False, "functions": ["a"], "changes": None},
            ],
            "takes_deploys": True,
        },
    ),
    "/nodes": (
        "nodes",
        {
            "nodes": [
                {
                    "id": "NOD0KHTOWnGLuC",
                    "number": 0,
                    "roles": ["gateway", "pump", "worker"],
                    "host": "atlas",
                    "pid": 4711,
                    "seen": at(-3),
                    "sandbox": "minimal",
                    "workers": 6,
                }
            ]
        },
    ),
    "/bus": (
        "bus",
        {
            "address": "unix:///srv/.echod/valkey.sock",
            "version": "8.1.4",
            "memory": {"used_bytes": 1_930_000, "policy": "noeviction"},
            "persistence": {"aof": True},
            "clients": 5,
        },
    ),
    "/problem": (
        "problem",
        {
            "status": 404,
            "title": "No such function",
            "detail": "expected one of 10 functions, got 'billing.send_invoise'; did you mean billing.send_invoice?",
        },
    ),
    "/login": ("login", {"next": "/", "error": "That token is not valid."}),
}
