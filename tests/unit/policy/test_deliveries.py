"""Which delivery a request is, by the word of each sender."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from echod.policy.deliveries import challenge_of, delivery_of
from echofn.manifest import Hmac


@pytest.mark.parametrize(
    ("how", "headers", "body", "id"),
    [
        ("github", [(b"x-github-delivery", b"72d3162e")], None, "72d3162e"),
        ("github", [(b"x-github-delivery", b" ")], None, None),
        ("github", [], {"id": "x"}, None),
        ("standard-webhooks", [(b"webhook-id", b"msg_\xff")], None, "msg_ÿ"),
        ("stripe", [], {"id": "evt_1"}, "evt_1"),
        ("stripe", [], {"id": 7}, None),
        ("stripe", [], ["evt_1"], None),
        ("slack", [(b"x-slack-request-timestamp", b"7")], {"event_id": "Ev1"}, "Ev1"),
        ("slack", [(b"x-slack-request-timestamp", b"7")], {"command": "/x"}, f"7 {sha256(b'raw').hexdigest()}"),
        ("bearer", [(b"x-github-delivery", b"1")], {"id": "x"}, None),
        (Hmac("x"), [(b"webhook-id", b"1")], {"id": "x"}, None),
        (None, [(b"webhook-id", b"1")], {"id": "x"}, None),
    ],
)
def test_a_delivery_is_told_by_its_senders_own_id(how: Any, headers: Any, body: object, id: str | None) -> None:
    assert delivery_of(how, headers, b"raw", lambda: body) == id


@pytest.mark.parametrize(
    ("how", "body", "challenge"),
    [
        ("slack", {"type": "url_verification", "challenge": "3eZbrw1a"}, "3eZbrw1a"),
        ("slack", {"type": "event_callback", "challenge": "3eZbrw1a"}, None),
        ("slack", {"type": "url_verification", "challenge": 1}, None),
        ("slack", "url_verification", None),
        ("github", {"type": "url_verification", "challenge": "3eZbrw1a"}, None),
    ],
)
def test_only_slack_asks_who_is_there(how: Any, body: object, challenge: str | None) -> None:
    assert challenge_of(how, lambda: body) == challenge
