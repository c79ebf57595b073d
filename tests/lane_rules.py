"""The bus machine's rules for lanes: paused, weighed, limited; by hand, and by what code says."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from echod.bus.operating import NO_LIMIT
from echofn.manifest import Policy
from echofn.units import rate_text
from model import Limits

if TYPE_CHECKING:
    from echod.bus import Bus
    from model import Model

T = TypeVar("T")
LANES = st.sampled_from(["-", "a", "b", "ü"])
NAMES = ["concurrency", "rate", "lane_concurrency", "lane_rate"]


def worth(name: str, value: int) -> int | tuple[int, int] | bool | None:
    """Of what is drawn: nothing, lifted, or a limit."""
    if value < 2:
        return None if value == 0 else False
    return (value - 1, 1500) if name.endswith("rate") else value - 1


class LaneRules:
    """For a machine with one queue `f`."""

    bus: Bus
    model: Model
    generation: int
    limited: ClassVar[bool]

    if TYPE_CHECKING:

        def do(self, work: Coroutine[Any, Any, T]) -> T: ...
        def now_ms(self) -> int: ...
        def judged_anew(self, before_ms: int) -> None: ...
        def policy(self) -> Policy: ...

    @rule(lane=st.one_of(st.none(), LANES), paused=st.booleans())
    def pause(self, lane: str | None, paused: bool) -> None:
        before_ms = self.now_ms()
        work = self.bus.pause("f", lane=lane) if paused else self.bus.resume("f", lane=lane)
        self.do(work)
        self.model.pause(lane, paused, before_ms)
        self.judged_anew(before_ms)

    @rule(lane=LANES, weight=st.integers(1, 4))
    def weigh(self, lane: str, weight: int) -> None:
        before_ms = self.now_ms()
        self.do(self.bus.set("f", {"weight": weight}, lane=lane))
        self.model.weigh(lane, weight, before_ms)
        self.judged_anew(before_ms)

    @precondition(lambda self: self.limited)
    @rule(name=st.sampled_from(NAMES), value=st.integers(0, 4), twice=st.booleans())
    def limit(self, name: str, value: int, twice: bool) -> None:
        """By hand, of the queue: back to code's, lifted, or so many."""
        before_ms = self.now_ms()
        said = worth(name, value)
        for _ in range(1 + twice):
            self.do(self.bus.set("f", {name: NO_LIMIT if said is False else said}))
        self.model.set_limit(name, said, before_ms)
        self.judged_anew(before_ms)

    @precondition(lambda self: self.limited)
    @rule(name=st.sampled_from(["concurrency", "rate"]), lane=LANES, value=st.integers(0, 4), twice=st.booleans())
    def limit_lane(self, name: str, lane: str, value: int, twice: bool) -> None:
        before_ms = self.now_ms()
        said = worth(name, value)
        for _ in range(1 + twice):
            self.do(self.bus.set("f", {name: NO_LIMIT if said is False else said}, lane=lane))
        self.model.set_lane_limit(name, lane, said, before_ms)
        self.judged_anew(before_ms)

    @precondition(lambda self: self.limited)
    @rule(names=st.sets(st.sampled_from(NAMES)), value=st.integers(2, 4), weight=st.integers(1, 3))
    def code_says(self, names: set[str], value: int, weight: int) -> None:
        """A deploy with other limits."""
        before_ms = self.now_ms()
        said = {name: worth(name, value) for name in names}
        rates = {name: rate_text(*each) for name, each in said.items() if isinstance(each, tuple)}
        weights = {"b": weight} if weight > 1 else {}
        policy = msgspec.structs.replace(self.policy(), **(said | rates), lane_weight=weights or 1)  # type: ignore[arg-type]
        self.do(self.bus.configure("f", policy, self.generation))
        self.model.code_says(Limits(**said, weights=weights), before_ms)  # type: ignore[arg-type]
        self.judged_anew(before_ms)
