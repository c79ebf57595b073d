"""Verifying webhooks: the senders' documented vectors, rotation, skew, and every odd header one can send."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echod.policy.signatures import MAX_HEADER_BYTES, Unverified, Verified, is_usable, verify, withheld
from echofn.manifest import Hmac, Verify

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "data/webhooks.json").read_text())
SCHEMES: tuple[Verify, ...] = (
    *("github", "stripe", "slack", "standard-webhooks", "bearer", "basic"),
    Hmac("x-signature", "sha512", "base64", "sha512="),
)
NOW = 1_700_000_000
KEY = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()


def raw(headers: dict[str, str] | list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [(name.lower().encode(), value.encode("utf-8", "surrogateescape")) for name, value in pairs]


def signed(how: Verify, body: bytes, secret: str = KEY, at: int = NOW) -> list[tuple[str, str]]:
    """The headers that a sender would put with a body."""

    def mac(key: bytes, *parts: bytes, algorithm: str = "sha256") -> bytes:
        return hmac.new(key, b"".join(parts), algorithm).digest()

    key, time = secret.encode(), str(at).encode()
    match how:
        case "github":
            return [("X-Hub-Signature-256", "sha256=" + mac(key, body).hex())]
        case "stripe":
            return [("Stripe-Signature", f"t={at},v1={mac(key, time, b'.', body).hex()}")]
        case "slack":
            value = "v0=" + mac(key, b"v0:", time, b":", body).hex()
            return [("X-Slack-Request-Timestamp", str(at)), ("X-Slack-Signature", value)]
        case "standard-webhooks":
            bare = base64.b64decode(secret.removeprefix("whsec_"))
            value = "v1," + base64.b64encode(mac(bare, b"msg_1.", time, b".", body)).decode()
            return [("webhook-id", "msg_1"), ("webhook-timestamp", str(at)), ("webhook-signature", value)]
        case "bearer":
            return [("Authorization", f"Bearer {secret}")]
        case "basic":
            return [("Authorization", "Basic " + base64.b64encode(key).decode())]
        case Hmac():
            value = base64.b64encode(mac(key, body, algorithm=how.algorithm)).decode()
            return [(how.header, how.prefix + value)]
        case None:
            return []


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['verify']}: {row['why']}" for row in ROWS])
def test_a_row_of_the_table_is_judged_as_it_says(row: dict[str, Any]) -> None:
    said = verify(row["verify"], row["body"].encode(), raw(row["headers"]), row["secrets"], row.get("now", NOW))
    assert isinstance(said, Verified if row["ok"] else Unverified), said


@pytest.mark.parametrize("how", SCHEMES, ids=str)
def test_what_a_sender_signed_is_verified_under_any_of_several_secrets(how: Verify) -> None:
    other = "whsec_" + base64.b64encode(b"another").decode()
    headers = raw(signed(how, b"body"))
    for secrets in ([KEY], [other, KEY], [KEY, other], [other, other, KEY]):
        assert isinstance(verify(how, b"body", headers, secrets, NOW), Verified)
    assert isinstance(verify(how, b"body", headers, [other], NOW), Unverified)
    assert isinstance(verify(how, b"body", headers, [], NOW), Unverified)


@pytest.mark.parametrize("how", [how for how in SCHEMES if how not in ("bearer", "basic")], ids=str)
def test_one_changed_byte_of_the_body_is_not_verified(how: Verify) -> None:
    body = b'{"b": 1, "a": "\\u001b caf\xc3\xa9"}\n'
    headers = raw(signed(how, body))
    assert isinstance(verify(how, body, headers, [KEY], NOW), Verified)
    for changed in (body[:-1], body + b"\n", body.replace(b"1", b"2"), json.dumps(json.loads(body)).encode(), b""):
        assert isinstance(verify(how, changed, headers, [KEY], NOW), Unverified), changed


@pytest.mark.parametrize("how", ["stripe", "slack", "standard-webhooks"])
@pytest.mark.parametrize(("off_s", "ok"), [(0, True), (300, True), (-300, True), (301, False), (-301, False)])
def test_time_may_be_300_seconds_off_either_way(how: Verify, off_s: int, ok: bool) -> None:
    said = verify(how, b"x", raw(signed(how, b"x", at=NOW + off_s)), [KEY], NOW)
    assert isinstance(said, Verified) == ok
    if not ok:
        assert isinstance(said, Unverified)
        assert ("ahead" if off_s > 0 else "old") in said.why


@pytest.mark.parametrize(
    "time", ["", "-1", "1e9", "1700000000.0", "٣", " ", "0x10", "9" * 4000, "inf", "nan", "17000 00000", "1,2"]
)
def test_a_timestamp_that_is_none_is_not_verified(time: str) -> None:
    for how, header in (("slack", "X-Slack-Request-Timestamp"), ("standard-webhooks", "webhook-timestamp")):
        headers = [(name, time if name == header else value) for name, value in signed(how, b"x")]  # type: ignore[arg-type]
        assert isinstance(verify(how, b"x", raw(headers), [KEY], NOW), Unverified)  # type: ignore[arg-type]
    stripe = [("Stripe-Signature", f"t={time},v1={'0' * 64}")]
    assert isinstance(verify("stripe", b"x", raw(stripe), [KEY], NOW), Unverified)


@pytest.mark.parametrize("how", SCHEMES, ids=str)
def test_a_signature_that_is_missing_empty_strange_or_huge_is_not_verified(how: Verify) -> None:
    whole = signed(how, b"x")
    name, right = whole[-1]
    odd = ["", " ", "sha256=", "\udcff\udcfe", "é", "v1,", "t=", ",", "=" * 99, right[:-1], right + "0", right[:10]]
    for value in [*odd, right.upper().swapcase().replace("=", ""), "A" * (MAX_HEADER_BYTES + 1), right * 3000]:
        headers = raw([*whole[:-1], (name, value)])
        assert isinstance(verify(how, b"x", headers, [KEY], NOW), Unverified), value[:50]
    for missing in range(len(whole)):
        headers = raw(whole[:missing] + whole[missing + 1 :])
        assert isinstance(verify(how, b"x", headers, [KEY], NOW), Unverified)


@pytest.mark.parametrize("how", SCHEMES, ids=str)
@given(values=st.lists(st.binary(max_size=200), max_size=4), body=st.binary(max_size=50))
def test_no_bytes_in_the_headers_raise_or_pass(how: Verify, values: list[bytes], body: bytes) -> None:
    names = [name.lower().encode() for name, _ in signed(how, b"")]
    headers = [(name, value) for name in names for value in values]
    assert isinstance(verify(how, body, headers, [KEY], NOW), Unverified)


def test_every_signature_is_tried_and_the_header_may_come_twice() -> None:
    (github,) = signed("github", b"x")
    assert isinstance(verify("github", b"x", raw([("X-Hub-Signature-256", "sha256=00"), github]), [KEY], NOW), Verified)
    many = [("Stripe-Signature", signed("stripe", b"x")[0][1] + ",v1=00" * 40)]
    assert isinstance(verify("stripe", b"x", raw(many), [KEY], NOW), Unverified)  # more than anybody rotates
    few = [("Stripe-Signature", "v1=zz,v1=00," + signed("stripe", b"x")[0][1])]
    assert isinstance(verify("stripe", b"x", raw(few), [KEY], NOW), Verified)


@pytest.mark.parametrize("how", ["stripe", "standard-webhooks"])
def test_of_two_headers_with_a_timestamp_neither_counts(how: Verify) -> None:
    assert isinstance(verify(how, b"x", raw(signed(how, b"x") * 2), [KEY], NOW), Unverified)
    twice = [("Stripe-Signature", f"t={NOW},{signed('stripe', b'x')[0][1]}")]
    assert isinstance(verify("stripe", b"x", raw(twice), [KEY], NOW), Unverified)


@pytest.mark.parametrize("algorithm", ["sha1", "sha256", "sha384", "sha512"])
@pytest.mark.parametrize("encoding", ["hex", "base64"])
@pytest.mark.parametrize("prefix", ["", "sig="])
def test_hmac_in_every_form(algorithm: Any, encoding: Any, prefix: str) -> None:
    digest = hmac.new(b"k\xc3\xa9y", b"body", algorithm).digest()
    text = digest.hex() if encoding == "hex" else base64.b64encode(digest).decode()
    how = Hmac("x-sig", algorithm, encoding, prefix)
    assert isinstance(verify(how, b"body", raw({"X-Sig": prefix + text}), ["kéy"], NOW), Verified)
    assert isinstance(verify(how, b"body", raw({"X-Sig": text}), ["kéy"], NOW), Verified) == (prefix == "")
    if encoding == "hex":  # some senders write capitals
        assert isinstance(verify(how, b"body", raw({"X-Sig": prefix + text.upper()}), ["kéy"], NOW), Verified)


def test_credentials_are_compared_whole_and_their_scheme_in_any_case() -> None:
    assert isinstance(verify("bearer", b"", raw({"Authorization": "bEaReR  token "}), ["token"], NOW), Verified)
    for value in ("token", "Bearer toke", "Bearer tokens", "Basic token", "Bearer", "Bearer token token"):
        assert isinstance(verify("bearer", b"", raw({"Authorization": value}), ["token"], NOW), Unverified)
    basic = base64.b64encode(b"ada:pass:word").decode()
    assert isinstance(verify("basic", b"", raw({"Authorization": f"Basic {basic}"}), ["ada:pass:word"], NOW), Verified)
    assert isinstance(
        verify("basic", b"", raw({"Authorization": f"Bearer {basic}"}), ["ada:pass:word"], NOW), Unverified
    )


def test_nothing_is_verified_only_where_that_was_said() -> None:
    assert isinstance(verify(None, b"x", [], [], NOW), Verified)


@pytest.mark.parametrize(
    ("how", "secret", "usable"),
    [
        ("github", "", False),
        ("github", "x", True),
        ("standard-webhooks", "whsec_", False),
        ("standard-webhooks", "not base64!", False),
        ("standard-webhooks", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", True),
        ("standard-webhooks", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLa", True),  # without its padding
    ],
)
def test_a_secret_that_can_verify_nothing_is_known_as_such(how: Verify, secret: str, usable: bool) -> None:
    assert is_usable(how, secret) == usable


@pytest.mark.parametrize("how", [*SCHEMES, None], ids=str)
def test_no_header_that_carries_a_credential_is_kept(how: Verify) -> None:
    secret = {name.lower() for name, _ in signed(how, b"x")} - {"webhook-id", "webhook-timestamp"}
    secret -= {"x-slack-request-timestamp"}
    assert {"authorization", "cookie", "proxy-authorization", *secret} <= withheld(how)


def test_no_answer_names_the_secret_or_what_was_expected() -> None:
    expected = hmac.new(KEY.encode(), b"x", hashlib.sha256).hexdigest()
    said = verify("github", b"x", raw({"X-Hub-Signature-256": "sha256=00"}), [KEY], NOW)
    assert isinstance(said, Unverified)
    assert KEY not in said.why
    assert expected not in said.why
