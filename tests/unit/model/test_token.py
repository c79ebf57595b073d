"""Tokens as text."""

from __future__ import annotations

import pytest

from echod.model.token import ENTROPY_BYTES, PREFIXES, Kind, digest_of, is_shaped, token_of


@pytest.mark.parametrize("kind", ["token", "session", "link"])
@pytest.mark.parametrize("entropy", [bytes(ENTROPY_BYTES), b"\xff" * ENTROPY_BYTES, bytes(range(ENTROPY_BYTES))])
def test_a_token_has_its_kinds_shape_and_no_others(kind: Kind, entropy: bytes) -> None:
    text = token_of(kind, entropy)
    assert [other for other in PREFIXES if is_shaped(other, text)] == [kind]
    assert len(text) == 55


def test_a_slip_of_one_character_shows() -> None:
    text = token_of("token", bytes(range(ENTROPY_BYTES)))
    for index in range(len(text)):
        other = "1" if text[index] != "1" else "2"
        assert not is_shaped("token", text[:index] + other + text[index + 1 :])
    for wrong in ("", "echod_", text[:-1], text + "0", f" {text}", text.lower(), "é" * 55, "\udcff" * 55):
        assert not is_shaped("token", wrong)


def test_fewer_random_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="32 random bytes"):
        token_of("token", b"x")


def test_a_digest_is_sha_256_of_any_text() -> None:
    assert digest_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert len(digest_of("\udcff")) == 64
