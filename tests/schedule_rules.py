"""The recurrence machine's rules for what becomes of rules: deploys and rollbacks, pauses, backfills, damage.

What people do goes over HTTP, as they do it; the gateway is called in this process.
"""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from echod.config import Config
from echod.gateway.app import create_app
from echod.gateway.views import instant
from echod.model.ids import VersionId, branded
from echod.policy.recurring import rule_of, stored
from echofn.manifest import Constant, CronTrigger, EveryTrigger, Function, Manifest, Policy, QueueTrigger, Recurring
from pump_rules import NEAR_MS, PumpRules, numbers, opened
from standing import OWN, QUEUE
from system.test_pump import Node, function

HOUR_MS = 3_600_000
POLICY = Policy(retries=1, backoff=Constant(5000))
BERLIN, KOLKATA = "Europe/Berlin", "Asia/Kolkata"
# What a version may say under each name. The first four keep their overlap, whatever else changes.
VARIANTS: dict[str, tuple[Recurring, ...]] = {
    "allow": (
        CronTrigger("allow", "30 2 * * *", BERLIN, missed="all", cap=3),
        CronTrigger("allow", "15 */4 * * *", BERLIN, missed="skip"),
        EveryTrigger("allow", 5 * HOUR_MS, 7 * 60_000, missed="all", cap=9),
    ),
    "skip": (
        CronTrigger("skip", "*/30 * * * *", BERLIN, missed="all", cap=5, overlap="skip", jitter_ms=60_000),
        CronTrigger("skip", "*/20 * * * *", BERLIN, overlap="skip"),
        CronTrigger("skip", "*/30 * * * *", BERLIN, missed="skip", overlap="skip"),
    ),
    "queue": (
        CronTrigger("queue", "30 * * * *", BERLIN, overlap="queue"),
        CronTrigger("queue", "30 * * * *", KOLKATA, missed="all", overlap="queue"),
        EveryTrigger("queue", HOUR_MS, overlap="queue"),
    ),
    "replace": (
        EveryTrigger("replace", 20 * 60_000, missed="all", cap=4, overlap="replace", jitter_ms=30_000),
        EveryTrigger("replace", 45 * 60_000, 7 * 60_000, overlap="replace"),
        CronTrigger("replace", "0,10 * * * *", missed="all", cap=2, overlap="replace"),
    ),
    "any": (
        EveryTrigger("any", HOUR_MS, missed="all", cap=6),
        EveryTrigger("any", HOUR_MS, overlap="replace", jitter_ms=60_000),
        CronTrigger("any", "0 */2 * * *", BERLIN, missed="skip", overlap="queue"),
    ),
}
NAMES = (*sorted(VARIANTS), OWN)
_every = EveryTrigger(OWN, HOUR_MS)
REGISTERED: tuple[tuple[Recurring, dict[str, Any]], ...] = (
    (_every, {"every": "1h"}),
    (
        msgspec.structs.replace(_every, missed="all", cap=4, jitter_ms=5_000),
        {"every": "1h", "missed": "all", "cap": 4, "jitter": "5s"},
    ),
    (
        CronTrigger(OWN, "20 */3 * * *", KOLKATA, overlap="skip"),
        {"cron": "20 */3 * * *", "tz": KOLKATA, "overlap": "skip"},
    ),
)
DAMAGED = (b"\x93garbage", stored(CronTrigger("nowhere", "* * * * *", "Mars/Olympus")))


class ScheduleRules(PumpRules):
    """Of a machine with pumps and a gateway."""

    desk: Node
    http: httpx.AsyncClient
    versions: list[tuple[VersionId, dict[str, Recurring] | None]]
    filled: dict[tuple[str, int], str]

    @initialize()
    def begin(self) -> None:
        self.do(self._open())
        self.switch({name: variants[0] for name, variants in VARIANTS.items()})
        self.turn(self.nodes[0])

    async def _open(self) -> None:
        self.nodes = [await opened(self.server.address, self.place) for _ in range(2)]
        self.desk, self.sleeper = [await opened(self.server.address, self.place) for _ in range(2)]
        self.bus = self.desk.bus
        config = Config(port=8321, state=self.place)
        app = create_app(self.bus, self.desk.registry, config, status=lambda: {"mode": "dev"}, level="minimal")
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
        self.http = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8321")

    async def _close(self) -> None:
        await self.http.aclose()
        for node in (*self.nodes, self.desk, self.sleeper):
            await node.bus.close()

    # ---- versions ---------------------------------------------------------------------------------------------------

    def switch(self, version: dict[str, Recurring] | None) -> None:
        """Publish a version, and switch to it; no pump has heard of it."""
        other = Function("shop.other", "shop", "other", "shop.py", 9, Policy(), (QueueTrigger(),))
        own = () if version is None else (function(QueueTrigger(), *version.values(), policy=POLICY),)
        id = VersionId(branded("DEP", next(numbers)))
        self.do(self.bus.put_version(id, [b""], msgspec.msgpack.encode(Manifest("functions", (*own, other)))))
        self.versions.append((id, version))
        self.activate(id, version)

    def activate(self, id: VersionId, version: dict[str, Recurring] | None) -> None:
        self.do(self.bus.activate(id))
        self.version = version

    @rule(name=st.sampled_from(sorted(VARIANTS)), which=st.integers(0, 3))
    def deploy(self, name: str, which: int) -> None:
        """One rule is another, or is not there any more."""
        version = {key: each for key, each in (self.version or {}).items() if key != name}
        if which < len(VARIANTS[name]):
            version[name] = VARIANTS[name][which]
        self.switch(version)

    @rule(name=st.sampled_from(["any", "any", "replace", "skip"]), which=st.integers(0, 2), hours=st.integers(1, 3))
    def deploy_while_a_pump_computes_the_old_rule(self, name: str, which: int, hours: int) -> None:
        self.server.clock.advance(hours * HOUR_MS)
        self.a_pump_falls_asleep_over_what_is_due()
        self.deploy(name, which)
        self.a_switch_is_written()
        self.it_wakes_and_goes_on()

    @rule(name=st.sampled_from(sorted(VARIANTS)), which=st.integers(0, 3), hours=st.sampled_from([1, 6]))
    def deploy_while_a_pump_goes_on_by_the_old_rule(self, name: str, which: int, hours: int) -> None:
        self.server.clock.advance(hours * HOUR_MS)
        self.deploy(name, which)
        self.a_pump_falls_asleep_over_a_switch()
        self.turn(self.nodes[0], heard=False)
        self.it_wakes_and_writes()

    @rule()
    def deploy_without_the_function(self) -> None:
        self.switch(None)

    @rule(back=st.integers(1, 6))
    def roll_back(self, back: int) -> None:
        self.activate(*self.versions[-1 - back % len(self.versions)])

    # ---- people -----------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """Of a gateway that has heard of everything."""

        async def asked() -> httpx.Response:
            await self.desk.registry.refresh()
            await self.bus.beat(pump=False)  # its clock follows, and ids are made for a minute
            return await self.http.request(method, path, json=body)

        return self.do(asked())

    def standing(self, name: str) -> bool:
        return name in self.stood and self.stood[name].gone_ms is None

    @rule(name=st.sampled_from(NAMES))
    def pause(self, name: str) -> None:
        answer = self.ask("POST", f"/schedules/{QUEUE}%2F{name}/pause")
        assert answer.status_code == (200 if self.standing(name) else 404)
        if self.standing(name):
            self.stood[name].paused = True
            self.look()

    @rule(name=st.sampled_from(NAMES))
    def resume(self, name: str) -> None:
        """All that came meanwhile is skipped, and counted; what follows is to come."""
        stood, before_ms = self.stood.get(name), self.now_ms() - NEAR_MS
        answer = self.ask("POST", f"/schedules/{QUEUE}%2F{name}/resume")
        if stood is None or not self.standing(name):
            assert answer.status_code == 404
            return
        if stood.paused and stood.spoiled:
            assert answer.status_code == 422, answer.text
            return
        assert answer.status_code == 200, answer.text
        if stood.paused:
            stood.paused, due_ms = False, stood.next_ms
            self.look(resumed=name)
            assert stood.next_ms > before_ms
            assert stood.next_ms == due_ms or rule_of(stood.trigger).previous(stood.next_ms) <= self.now_ms() + NEAR_MS

    @rule(name=st.sampled_from(NAMES))
    def run_by_hand(self, name: str) -> None:
        answer = self.ask("POST", f"/schedules/{QUEUE}%2F{name}/run")
        assert answer.status_code == (202 if self.standing(name) and self.version is not None else 404)

    @rule(name=st.sampled_from(NAMES), hours=st.integers(1, 7), ago=st.integers(0, 3), more=st.integers(0, 2))
    def backfill(self, name: str, hours: int, ago: int, more: int) -> None:
        """Each instant of the window has one job by hand while that is kept, whatever else it has; asked twice, too."""
        to_ms = self.now_ms() - ago * HOUR_MS - 1000
        for hours_now in (hours, hours + more):
            self.fill(name, to_ms - hours_now * HOUR_MS, to_ms)

    def fill(self, name: str, from_ms: int, to_ms: int) -> None:
        path = f"/schedules/{QUEUE}%2F{name}/backfill"
        answer = self.ask("POST", path, {"from": instant(from_ms), "to": instant(to_ms)})
        if not self.standing(name) or self.version is None:
            assert answer.status_code == 404
            return
        if self.stood[name].spoiled:
            assert answer.status_code == 422, answer.text
            return
        due_ms, dues, stood_by = from_ms - 1, list[int](), rule_of(self.stood[name].trigger)
        while (due_ms := stood_by.next_after(due_ms)) <= to_ms:
            dues.append(due_ms)
        fresh = [due_ms for due_ms in dues if self.filled.get((name, due_ms)) not in self.books.rows]
        told = answer.json()
        assert (told["instants"], told["already"], told["minted"]) == (len(dues), len(dues) - len(fresh), len(fresh))
        self.filled |= {(name, due_ms): id for due_ms, id in zip(fresh, told["jobs"], strict=True)}
        self.look()
        for due_ms in dues:
            row = self.books.rows[self.filled[name, due_ms]]
            assert msgspec.msgpack.decode(row[b"oc"]) == [name, due_ms, 1]

    @rule(which=st.integers(0, 2))
    def register(self, which: int) -> None:
        """At run time, of nobody's code; or it is changed, and goes on from its last due."""
        trigger, body = REGISTERED[which]
        before_ms = self.now_ms() - NEAR_MS
        answer = self.ask("POST", "/schedules", {"function": QUEUE, "name": OWN, **body})
        if self.version is None:
            assert answer.status_code == 404
            return
        assert answer.status_code == (200 if OWN in self.stood else 201), answer.text
        self.registered = trigger
        self.look(registered_ms=(before_ms, self.now_ms() + NEAR_MS))

    @rule()
    def cancel_registered(self) -> None:
        answer = self.ask("DELETE", f"/schedules/{QUEUE}%2F{OWN}")
        assert answer.status_code == (200 if OWN in self.stood else 404)
        self.stood.pop(OWN, None)
        self.registered = None
        self.look()

    @rule(name=st.sampled_from(NAMES), damage=st.sampled_from(DAMAGED))
    def a_rule_computes_no_more(self, name: str, damage: bytes) -> None:
        """As where another node wrote what this one cannot read, or a zone is gone."""
        if self.standing(name):
            key = f"emq:{{{QUEUE}}}:repeat:{name}"
            self.server.command("HSET", key, "trigger", damage)
            self.server.command("HINCRBY", key, "rev", 1)
            self.stood[name].revision += 1
            self.stood[name].spoiled = True
