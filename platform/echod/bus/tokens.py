"""Tokens, sessions and login links on the bus: their digests, scopes and terms, never themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, cast

import msgspec

from echod.bus.core import Core
from echod.model.token import SCOPES, Kind, Scope

_CLOSED = b"closed"
_row = msgspec.msgpack.Decoder()


class TokenRow(msgspec.Struct, frozen=True):
    """A digest and what it opens. `parent`: the token that a session or link came of; empty for ECHOD_TOKEN's."""

    digest: str
    kind: Kind
    name: str
    parent: str
    scopes: frozenset[Scope]
    made_ms: int
    expires_ms: int | None
    used_ms: int | None

    def is_over(self, now_ms: int) -> bool:
        return self.expires_ms is not None and self.expires_ms <= now_ms


class TokensHeld(msgspec.Struct, frozen=True):
    """All rows. `closed`: a token was made here once; the gateways ask for one ever since."""

    rows: tuple[TokenRow, ...]
    closed: bool


class Tokens(Core):
    """make, begin, revoke, use, list."""

    async def make_token(
        self,
        digest: str,
        *,
        kind: Literal["token", "link"] = "token",
        name: str = "",
        parent: str = "",
        scopes: Iterable[Scope],
        expires_in_ms: int = 0,
    ) -> Literal["made", "taken", "full"]:
        """Store a token's digest under a name that no other token has. `expires_in_ms` 0: it does not expire."""
        reply = await self.run(
            "token",
            digest=digest,
            kind=kind,
            name=name,
            parent=parent,
            scopes=_text_of(scopes),
            expires_in_ms=expires_in_ms,
        )
        return cast("Literal['made', 'taken', 'full']", reply.decode())

    async def begin_session(
        self, digest: str, *, link: str = "", parent: str, scopes: Iterable[Scope], expires_in_ms: int
    ) -> bool:
        """Begin a session; with the digest of a `link`, only if that was not used or revoked before."""
        reply = await self.run(
            "token_login",
            session=digest,
            link=link,
            parent=parent,
            scopes=_text_of(scopes),
            expires_in_ms=expires_in_ms,
        )
        return bool(reply == b"begun")

    async def revoke_token(self, *, name: str = "", digest: str = "") -> int:
        """Revoke a token with all its sessions, or one row by its digest; how many rows went."""
        (removed,) = await self.run("token_revoke", name=name, digest=digest)
        return int(removed)

    async def used_token(self, digest: str) -> None:
        """Note that a token was used."""
        await self.run("token_used", digest=digest)

    async def token_row(self, digest: str) -> TokenRow | None:
        """The row of a digest, an expired one too."""
        raw: bytes | None = await self.link.command("HGET", self.keys.tokens, digest)
        return None if raw is None else _token(digest, raw)

    async def tokens(self) -> TokensHeld:
        """Every row, expired ones too; and whether a token was ever made here."""
        flat: list[bytes] = await self.link.command("HGETALL", self.keys.tokens)
        pairs = {flat[index]: flat[index + 1] for index in range(0, len(flat), 2)}
        closed = pairs.pop(_CLOSED, None) is not None
        return TokensHeld(tuple(_token(digest.decode(), raw) for digest, raw in pairs.items()), closed)


def _text_of(scopes: Iterable[Scope]) -> str:
    given = set(scopes)
    return " ".join(scope for scope in SCOPES if scope in given)


def _token(digest: str, raw: bytes) -> TokenRow:
    kind, name, parent, scopes, made_ms, expires_ms, used_ms = _row.decode(raw)
    known: frozenset[Scope] = frozenset(
        scope for scope in SCOPES if scope in scopes.split()
    )  # of a newer echod we honour what we know
    return TokenRow(
        digest,
        cast("Kind", kind),
        name,
        parent,
        known,
        int(made_ms),
        int(expires_ms) or None,
        int(used_ms) or None,
    )
