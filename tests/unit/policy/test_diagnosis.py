"""What a server's state means, in words."""

from __future__ import annotations

from typing import Any

import pytest

from echod.policy.diagnosis import Finding, Vitals, ails, of_disk, of_server, of_skew, worst

GOOD: dict[str, Any] = {
    "policy": "noeviction",
    "append_only": True,
    "append_fsync": "everysec",
    "memory_bytes": 10_000_000,
    "memory_limit_bytes": 100_000_000,
    "listpack_bytes": 1024,
}


def found(topic: str, **vitals: Any) -> Finding:
    """The gravest finding of a topic."""
    about = [finding for finding in of_server(Vitals(**{**GOOD, **vitals})) if finding.topic == topic]
    return next(finding for finding in about if finding.level == worst(about))


def test_a_server_as_it_should_be_is_fine() -> None:
    findings = of_server(Vitals(**GOOD))
    assert worst(findings) == "fine"
    assert [finding.do for finding in findings if finding.do] == []
    assert ails(Vitals(**GOOD)) == []


@pytest.mark.parametrize(
    ("topic", "vitals", "level", "said"),
    [
        ("role", {"role": "slave"}, "problem", "takes no writes"),
        ("role", {"replicas": 2}, "fine", "2 replicas"),
        ("durability", {"append_only": False, "snapshots": ""}, "warning", "loses everything on it"),
        ("durability", {"append_only": False, "snapshots": "3600 1"}, "warning", "since its last snapshot"),
        ("durability", {"append_fsync": "always"}, "fine", "nothing that was acknowledged"),
        ("durability", {"append_fsync": "no"}, "warning", "appendfsync is no"),
        ("durability", {"append_fsync": None}, "fine", "not told"),
        ("durability", {"append_ok": False}, "problem", "failed"),
        ("durability", {"rewrite_ok": False}, "warning", "only grows"),
        ("durability", {"snapshot_ok": False}, "warning", "snapshot"),
        ("memory", {"memory_limit_bytes": 0}, "advice", "no limit"),
        ("memory", {"memory_bytes": 79_000_000}, "fine", "left"),
        ("memory", {"memory_bytes": 80_000_000}, "warning", "left"),
        ("memory", {"memory_bytes": 95_000_000}, "problem", "at its memory limit (90.6 MB of 95.4 MB)"),
        ("eviction", {"policy": "allkeys-lru"}, "problem", "allkeys-lru"),
        ("eviction", {"policy": "volatile-ttl"}, "problem", "volatile-ttl"),
        ("rows", {"listpack_bytes": 64}, "advice", "hash-max-listpack-value is 64"),
    ],
)
def test_each_state_is_judged(topic: str, vitals: dict[str, Any], level: str, said: str) -> None:
    finding = found(topic, **vitals)
    assert (finding.level, said in finding.text) == (level, True), finding
    assert bool(finding.do) == (level != "fine")


def test_a_node_shows_problems_alone_as_what_it_lacks() -> None:
    assert ails(Vitals(**{**GOOD, "memory_bytes": 90_000_000})) == []
    assert len(ails(Vitals(**{**GOOD, "memory_bytes": 99_000_000, "policy": "allkeys-lfu"}))) == 2
    assert ails(Vitals(**{**GOOD, "role": "slave"})) == []  # then it is not ready, which is more


def test_a_disk_needs_room_for_the_file_once_more() -> None:
    assert of_disk(1_000, 2_000).level == "fine"
    assert of_disk(1_000, 1_999).level == "warning"


@pytest.mark.parametrize(
    ("ahead_ms", "level"), [(0, "fine"), (999, "fine"), (-999, "fine"), (1000, "warning"), (-60_000, "warning")]
)
def test_clocks_that_are_apart_are_called_out(ahead_ms: int, level: str) -> None:
    assert of_skew(ahead_ms).level == level
