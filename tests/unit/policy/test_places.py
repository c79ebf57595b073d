"""A job's lane and unique key, by its function's policy."""

import hashlib

import pytest

from echod.errors import Refused
from echod.model.job import Unique
from echod.policy.places import lane_of, unique_of
from echofn.manifest import Policy

PAYLOAD = {"tenant": "acme", "order": {"id": 7}, "empty": "", "none": None}


@pytest.mark.parametrize(
    ("path", "lane"), [(None, "-"), ("tenant", "acme"), ("order.id", "7"), ("empty", "-"), ("none", "-"), ("gone", "-")]
)
def test_a_lane_is_what_lies_at_the_path_or_none(path: str | None, lane: str) -> None:
    assert lane_of(Policy(lane=path), PAYLOAD) == lane


@pytest.mark.parametrize(
    "find", [lambda: lane_of(Policy(lane="order"), PAYLOAD), lambda: unique_of(Policy(unique="order"), PAYLOAD, b"")]
)
def test_an_object_is_no_lane_and_no_key(find: object) -> None:
    with pytest.raises(Refused, match="an object"):
        find()  # type: ignore[operator]


def test_a_key_is_the_text_at_the_path_and_lasts_as_the_policy_says() -> None:
    assert unique_of(Policy(unique="order.id", until=60_000), PAYLOAD, b"") == Unique("7", 60_000)
    assert unique_of(Policy(unique="gone"), PAYLOAD, b"") is None


def test_empty_text_is_no_key_that_jobs_without_one_could_share() -> None:
    assert unique_of(Policy(unique="empty"), PAYLOAD, b"") is None


@pytest.mark.parametrize("unique", [None, False])
def test_without_a_policy_nothing_is_unique(unique: bool | None) -> None:
    assert unique_of(Policy(unique=unique), PAYLOAD, b"") is None


def test_unique_by_the_whole_payload_is_the_hash_of_its_bytes() -> None:
    assert unique_of(Policy(unique=True), PAYLOAD, b"\x01") == Unique(hashlib.sha256(b"\x01").hexdigest(), "done")
