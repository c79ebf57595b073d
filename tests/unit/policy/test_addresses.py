"""Which webhook a path is, and which paths are nobody's but ours."""

from __future__ import annotations

import pytest

from echod.gateway.app import TABLE
from echod.policy.addresses import Match, is_own, match, segments, shape


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("/hooks/gh", Match(0, {})),
        ("/hooks/other", Match(1, {"who": "other"})),
        ("/hooks/a/b", Match(2, {"x": "a", "y": "b"})),
        ("/hooks/a/c", Match(3, {"x": "a"})),
        ("/hooks/", None),
        ("/hooks", None),
        ("/hooks/gh/", None),
        ("/Hooks/gh", None),
        ("//hooks/gh", None),
        ("/", None),
    ],
)
def test_plain_segments_go_before_names(asked: str, found: Match | None) -> None:
    patterns = ["/hooks/gh", "/hooks/{who}", "/hooks/{x}/{y}", "/hooks/{x}/c"]
    assert match(patterns, segments(asked)) == found


def test_a_name_stands_for_one_decoded_segment() -> None:
    assert match(["/hooks/{who}"], ("hooks", "a/b 🦊")) == Match(0, {"who": "a/b 🦊"})


def test_the_leftmost_plain_segment_decides() -> None:
    assert match(["/h/{x}/b", "/h/a/{y}"], ("h", "a", "b")) == Match(1, {"y": "b"})


def test_names_do_not_make_two_patterns_apart() -> None:
    assert shape("/hooks/{a}/x") == shape("/hooks/{b}/x") != shape("/hooks/a/x")


def test_every_route_of_ours_is_nobody_elses() -> None:
    for entry in TABLE:
        if entry.path != "/":
            assert is_own(entry.path.partition(":")[0]), entry.path
    assert is_own("/static/x")
    assert is_own("/{anything}/hooks")
    assert not is_own("/hooks/jobs")
