"""Sessions."""

from __future__ import annotations

from echod.gateway.session import cookie_of, is_cookie, is_token


def test_only_the_token_is_the_token() -> None:
    assert is_token("s3cret", "s3cret")
    assert not any(is_token(given, "s3cret") for given in ("", "s3cre", "s3cret ", "S3CRET", "é", "\udcff"))


def test_only_the_tokens_own_cookie_is_its_cookie() -> None:
    assert is_cookie(cookie_of("a"), "a")
    assert not any(is_cookie(given, "a") for given in ("", "a", cookie_of("b"), "é", "\udcff"))
