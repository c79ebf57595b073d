"""What is masked, in text and in values, and what is left as it is."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote, quote_plus, urlencode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echofn import masking
from echofn.masking import ALL, MASK, Mask, covers, leaves, leaves_of, shown, steps

SECRET = 's3cr\'et "wörd"/\\n'
ORDER = {"card": {"number": "4111-1111", "cvc": "971"}, "items": [{"n": 1}, {"n": 2_000_001}], "note": None, "ok": True}


def lower(address: str) -> str:
    return re.sub("%..", lambda found: found[0].lower(), address)


@pytest.mark.parametrize(
    "spelled",
    [
        SECRET,
        f"a{SECRET}b",
        *(repr(SECRET), ascii(SECRET), repr(SECRET.encode()), repr({"k": SECRET}), repr(f"{SECRET} beside it's")),
        *(json.dumps(SECRET), json.dumps(SECRET, ensure_ascii=False), json.dumps(json.dumps({"k": SECRET}))),
        *(json.dumps(json.dumps(SECRET, ensure_ascii=each)) for each in (True, False)),
        *(quote(SECRET), quote(SECRET, safe=""), quote_plus(SECRET), urlencode({"k": SECRET})),
        *(lower(quote(SECRET)), lower(urlencode({"k": SECRET}))),
        quote(SECRET, safe="!#$%&'()*+,/:;=?@[]~"),  # as requests has it in a path
        SECRET.encode("latin-1").decode("utf-8", "backslashreplace"),  # written to sys.stdout.buffer
        SECRET.encode("latin-1").decode("utf-8", "replace"),  # and past Python
    ],
)
def test_a_value_is_masked_however_text_spells_it(spelled: str) -> None:
    masked = Mask([SECRET]).text(f"<{spelled}> and <{spelled}>")
    assert masked.count(MASK) == 2
    assert "s3cr" not in masked
    assert "rd" not in masked


def test_a_value_that_is_spelled_one_way_only_is_looked_for_once() -> None:
    """Most secrets are letters and digits; a text is searched for each spelling."""
    assert len(Mask(["sk_live-" + "4eC39" * 12])._spellings) == 1
    assert len(Mask(["sk_live-" + "4/C+9" * 12])._spellings) <= 8
    assert len(Mask([SECRET])._spellings) <= 32


def test_each_line_of_a_long_value_is_masked_where_it_stands_alone() -> None:
    mask = Mask(["-----BEGIN-----\nAAAAplanted\nshort\n-----END-----\n"])
    assert mask.text("line: AAAAplanted.") == f"line: {MASK}."
    assert mask.text("short") == "short"


def test_what_is_short_or_empty_is_not_looked_for() -> None:
    assert Mask(["", "abcde", 12345, True, None, 1.5]).text("abcde 12345 True None 1.5") == "abcde 12345 True None 1.5"
    assert Mask(["abcdef", 123456]).text("abcdef 123456") == f"{MASK} {MASK}"


def test_the_longer_of_two_values_is_masked_first_and_masks_add_up() -> None:
    mask = Mask(["planted-value"], also=Mask(["planted"]))
    assert mask.text("planted-value planted") == f"{MASK} {MASK}"


def test_a_value_is_masked_wherever_it_recurs_in_builtins() -> None:
    mask = Mask(["planted", 123_456])
    value = {"planted": ["x planted", b"\xffplanted", 123_456, 123_456.0, 1234567, True, None]}
    assert mask.value(value) == {MASK: [f"x {MASK}", b"\xff" + MASK.encode(), MASK, MASK, 1234567, True, None]}


@pytest.mark.parametrize(
    "secret", ["4111111111111111", " 0004111111111111111\n", "+4_111_111_111_111_111", "4.111111111111111e15"]
)
def test_a_value_that_is_a_number_is_found_and_masked_as_one(secret: str) -> None:
    mask, number = Mask([secret]), 4_111_111_111_111_111
    for written in (number, float(number)):
        assert mask.is_in(msgspec.msgpack.encode({"account": [written]}))
        assert mask.value({"account": [written]}) == {"account": [MASK]}
    assert mask.text(f"account {number}") == f"account {MASK}"
    assert not mask.is_in(msgspec.msgpack.encode([number + 1, -number, 4_111]))
    assert mask.value([number + 1, -number, 4_111]) == [number + 1, -number, 4_111]


@pytest.mark.parametrize(
    "secret", ["000001", "0000000000000042", "1.0000000000000", "123e40", "nan", "-inf", "_1_", "9" * 5_000]
)
def test_a_value_that_is_hardly_a_number_hides_no_numbers(secret: str) -> None:
    mask, data = Mask([secret]), [0, 1, 42, 1.0, 0.5, 2**64 - 1, True, None]
    assert mask.value(data) == data
    assert not mask.is_in(msgspec.msgpack.encode(data))


@pytest.mark.parametrize(
    ("redact", "changed"),
    [
        (["card.number"], {"card": {"number": MASK, "cvc": "971"}}),
        (["card.cvc"], {"card": {"number": "4111-1111", "cvc": MASK}}),  # of any length, where a path leads
        (["card"], {"card": MASK}),
        (["items[1].n", "items.0"], {"items": [MASK, {"n": MASK}]}),
        (["json.card.cvc"], {"card": {"number": "4111-1111", "cvc": MASK}}),  # as written for a webhook's body
        (["note", "ok"], {"ok": MASK}),
        (["card.missing", "items.7.n", "items.x", "ok.x", "headers.card"], {}),
    ],
)
def test_a_path_masks_what_it_leads_to_and_nothing_else(redact: list[str], changed: dict[str, Any]) -> None:
    before = json.dumps(ORDER)
    assert shown(ORDER, ORDER, redact) == {**ORDER, **changed}
    assert json.dumps(ORDER) == before


def test_a_result_is_masked_by_the_same_paths_and_by_the_values_of_the_payload() -> None:
    result = {"card": {"number": "another"}, "told": ["<4111-1111>"], "n": 2_000_001, "cvc": "971"}
    hidden = {"card": {"number": MASK}, "told": [f"<{MASK}>"], "n": MASK, "cvc": "971"}
    assert shown(result, ORDER, ["card.number", "items.1"]) == hidden
    assert shown("4111-1111", ORDER, ["card"]) == MASK


def request(body: bytes, kind: str = "application/json", **parts: Any) -> dict[str, Any]:
    told = {
        "method": "POST",
        "path": "/h/acme-planted",
        "params": {"tenant": "acme-planted"},
        "query": {"k": ["a", "b"]},
    }
    return {**told, "headers": {"content-type": kind, "x-key": "v"}, "body": body, **parts}


@pytest.mark.parametrize(
    ("kind", "body", "hidden"),
    [
        ("application/json", b'{"card": 1, "card": {"number": "4111-1111"}}', b'{"card": {"number": "[redacted]"}}'),
        ("application/x-www-form-urlencoded", b"card=4111&id=7", b"card=%5Bredacted%5D&id=7"),
        ("application/json", b"card 4111-1111", b"[redacted]"),
        ("application/json", b"[" * 100_000, b"[redacted]"),
        ("application/json", b"", b""),
    ],
)
def test_a_webhooks_body_is_spelled_anew_or_hidden_whole(kind: str, body: bytes, hidden: bytes) -> None:
    path = "card" if "form" in kind else "json.card.number"
    given = request(body, kind)
    assert shown(given, given, [path]) == {**given, "body": hidden}


CARD = "4333333333333333"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", f'{{"card":"{CARD}"'),
        ("application/json", f'{{"note": "long enough", "card":{CARD}, '),
        ("application/json", f'{{"card":"{CARD}","card":"x"}}'),
        ("application/json", f'{{"card":{{"number":"{CARD}"}},"card":[1]}}'),
        ("application/json", f'{{"card":"x","card":"{CARD}"}}'),
        ("application/json", f"<order><card>{CARD}</card></order>"),
        ("application/json", "[" * 100_000 + f'"{CARD}"'),
        ("application/json; charset=utf-16", f'{{"card":"{CARD}"'),
        ("application/x-www-form-urlencoded", f"card={CARD}&id=7&card=x"),
        ("application/x-www-form-urlencoded", f"card={CARD}&id=%ff"),
    ],
)
def test_a_body_that_says_a_key_twice_or_cannot_be_read_is_hidden_where_it_recurs(kind: str, body: str) -> None:
    data = body.encode("utf-16" if "utf-16" in kind else "utf-8")
    given = request(data, kind)
    mask = Mask(leaves(given, ["card"]))
    for said in (f"declined {CARD}", repr(data), body, f"{CARD} and {body!r}"):
        assert CARD not in mask.text(said)
    assert CARD not in str(shown({"of": [CARD, int(CARD)]}, given, ["card"]))
    assert CARD.encode() not in shown(given, given, ["card"])["body"]


def test_the_words_of_a_body_that_cannot_be_read_are_so_many_at_most() -> None:
    given = request(" ".join(f"word-{n}" for n in range(50_000)).encode() + f" {CARD}".encode())
    found = [str(leaf) for leaf in leaves(given, ["card"])]
    assert (len(found), CARD in found, max(map(len, found))) == (500, True, 256)
    long = "planted-" * 500
    assert "planted-" not in Mask(leaves(request(f'{{"card": "{long}'.encode()), ["card"])).text(f"declined {long}")
    assert leaves(given, ["headers.x-key"]) == ["v"]


def test_the_other_parts_of_a_request_are_masked_by_their_paths_and_its_body_left() -> None:
    given = request(b'{"k": "v"}')
    masked = shown(given, given, ["headers.X-Key", "query.k.1", "params.tenant"])
    assert masked == {
        **given,
        "headers": {**given["headers"], "x-key": MASK},
        "query": {"k": ["a", MASK]},
        "params": {"tenant": MASK},
        "path": f"/h/{MASK}",
    }


def test_leaves_are_every_value_within_what_paths_name() -> None:
    assert leaves(ORDER, ["card", "items[1]", "missing"]) == ["4111-1111", "971", 2_000_001]
    assert leaves(request(b'{"card": {"number": "x"}}'), ["json.card", "headers.x-key"]) == ["v", "x"]
    assert leaves_of(msgspec.msgpack.encode({5: "five"}), ["5"]) == ["five"]
    assert leaves_of(b"\xc1", ["card"]) == []


def test_a_value_deeper_than_can_be_walked_is_hidden_whole() -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    assert shown(deep, ORDER, ["card.number"]) == MASK


@pytest.mark.parametrize(
    ("redact", "path", "is_covered"),
    [
        (["card.number"], "card.number", True),
        (["card"], "card.number", True),
        (["card.number"], "card", False),
        (["card.number"], "json.card.number", True),
        (["json.card"], "card.number", True),
        (["items[0].sku"], "items.0.sku", True),
        ([], "card", False),
    ],
)
def test_what_redact_covers(redact: list[str], path: str, is_covered: bool) -> None:
    assert covers(redact, path) is is_covered


@pytest.mark.parametrize("path", ["", "a..b", "a.", ".a", "a" * 600])
def test_a_path_that_names_nothing_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="expected a path like"):
        steps(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab0"), inner, max_size=3),
    max_leaves=12,
)


@given(JSON, st.text("ab0", min_size=1, max_size=3))
def test_no_text_of_a_redacted_value_is_left_anywhere(payload: Any, letters: str) -> None:
    redact = [".".join(letters)]
    left = json.dumps(shown(payload, payload, redact), ensure_ascii=False)
    for leaf in leaves(payload, redact):
        if isinstance(leaf, str) and len(leaf.strip()) >= 6 and leaf not in MASK:
            assert json.dumps(leaf, ensure_ascii=False)[1:-1] not in left


@given(
    st.lists(st.text("ab", min_size=6, max_size=9), min_size=1, max_size=3),
    st.text("abc", max_size=60),
    st.text("abc", max_size=20),
)
def test_a_text_that_goes_on_is_cut_where_no_value_is_torn(secrets: list[str], text: str, more: str) -> None:
    mask = Mask(secrets)
    at = mask.seam(text)
    assert mask.text(text[:at]) + mask.text(text[at:] + more) == mask.text(text + more)


def test_what_cannot_begin_a_value_does_not_wait_for_more() -> None:
    mask = Mask(["planted-value"])
    assert mask.seam("x" * 100) == 100
    assert mask.seam("x planted-valu") == 2
    assert mask.seam("x planted-value") == 15
    assert Mask().seam("planted") == 7


def test_a_text_that_breaks_off_within_a_value_shows_no_piece_of_it() -> None:
    mask = Mask(["planted-value"])
    assert mask.unended("x planted-value, planted") == f"x {MASK}, {MASK}"
    assert mask.unended("x plan") == "x plan"  # under six characters it would be found everywhere
    assert mask.unbegun("ted-value\xff ä".encode("latin-1")) == MASK.encode() + "\xff ä".encode("latin-1")
    assert mask.unbegun(b"value x") == b"value x"


@pytest.mark.parametrize(
    "hidden",
    [
        [f"r{n:06x}" for n in range(16_000)],
        [f"row {n:06x} é" for n in range(1_000)],
        "\n".join(f"line {n:06x}, and more" for n in range(3_000)),
        "дело, " * 20_000,
    ],
)
def test_what_is_too_much_to_look_for_hides_whatever_may_hold_it(hidden: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line of a run, and each text of a page, is searched for each spelling, on a node's one loop."""
    spelled: list[str] = []
    monkeypatch.setattr(
        masking, "_spellings", lambda text, of=masking._spellings: (spelled.append(text), *of(text))[1:]
    )
    payload = {"hidden": hidden, "shown": ["free", hidden, 7]}
    mask = Mask(leaves(payload, ["hidden"]), also=Mask(["planted-secret"]), is_bounded=True)
    assert mask.is_all
    assert len(spelled) <= 5_002
    assert len(mask._spellings) == 0
    assert [mask.text(text) for text in ("", "\n", "a line", "r000007 planted-secret")] == ["", "\n", ALL, ALL]
    assert (mask.seam("x" * 9), mask.unended("a li"), mask.is_in(b"")) == (9, ALL, True)
    assert mask.text(mask.unbegun(b"a line").decode()) == ALL
    assert shown(payload, payload, ["hidden"]) == ALL
    assert shown(7, payload, ["hidden"]) == ALL
    assert shown(None, payload, ["hidden"]) is None


def test_as_much_as_can_be_looked_for_is() -> None:
    payload = {"hidden": [f"r{n:06x}" for n in range(4_000)], "shown": "free r000007"}
    assert Mask(leaves(payload, ["hidden"]), is_bounded=True).text("a line of r000007") == f"a line of {MASK}"
    assert shown(payload, payload, ["hidden"]) == {"hidden": MASK, "shown": f"free {MASK}"}


def test_a_payload_of_too_many_texts_for_what_is_looked_for_is_hidden_whole() -> None:
    payload = {"hidden": [f"r{n:06x}" for n in range(4_000)], "shown": ["free"] * 6_000}
    assert shown(payload, payload, ["hidden"]) == ALL
    payload["shown"] = ["free " * 20_000] * 6
    assert shown(payload, payload, ["hidden"]) == ALL
    payload["shown"] = ["free"] * 4_000
    assert shown(payload, payload, ["hidden"])["shown"] == payload["shown"]


def test_secrets_are_looked_for_however_many_they_are() -> None:
    """A mask in a result would be a wrong result: and who has so many wrote them himself."""
    bundle = "\n".join(f"line {n:06x}, and more" for n in range(3_000))
    assert not Mask([bundle]).is_all
    assert Mask([bundle]).text("a line 000007, and more") == f"a {MASK}"
