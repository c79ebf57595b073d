"""Stored versions of the folder, and the one that is active."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from echod.bus.answers import Active
from echod.bus.clock import NODE_LEASE_MS
from echod.bus.core import Core
from echod.model.ids import VersionId

TRANSFER_TIMEOUT_S = 5.0
_switch_of = msgspec.msgpack.Decoder(tuple[str, int]).decode


class Versions(Core):
    """put, get, activate."""

    async def put_version(self, version: VersionId, pieces: Sequence[bytes], manifest: bytes) -> None:
        """Store a snapshot. Content-addressed: storing it again changes nothing.

        The manifest comes last and completes it. One that is never activated is collected an hour later.
        """
        await self._transfer("ZADD", self.keys.uploads, self.clock.now_ms(), version)
        for number, piece in enumerate(pieces):
            await self._transfer("SET", self.keys.piece(version, number), piece)
        await self._transfer("SET", self.keys.piece(version, "pieces"), len(pieces))
        await self._transfer("SET", self.keys.piece(version, "manifest"), manifest)

    async def get_version(self, version: VersionId) -> tuple[list[bytes], bytes] | None:
        """The pieces and the manifest of a stored version."""
        manifest = await self.get_manifest(version)
        count = await self._transfer("GET", self.keys.piece(version, "pieces"))
        if manifest is None or count is None:
            return None
        pieces = [await self._transfer("GET", self.keys.piece(version, number)) for number in range(int(count))]
        return None if any(piece is None for piece in pieces) else (pieces, manifest)

    async def get_manifest(self, version: VersionId) -> bytes | None:
        manifest: bytes | None = await self._transfer("GET", self.keys.piece(version, "manifest"))
        return manifest

    async def activate(self, version: VersionId, *, errors: bytes = b"") -> Active:
        """Switch to a stored version. Raises Refused where it is not stored whole.

        What no node runs and is older than the ten before it is collected. Sent again by the link it switches nothing
        twice, nor back from what another switched to since.
        """
        call = secrets.token_hex(8)
        generation, at_ms = await self.run(
            "activate", version=version, errors=errors, call=call, lease_ms=NODE_LEASE_MS
        )
        return Active(version, generation, at_ms)

    async def warm(self, version: VersionId) -> str:
        """Ask the worker nodes to make workers of a stored version ready; the call that they name with their beats."""
        call = secrets.token_hex(4)
        await self.link.command("PUBLISH", self.keys.news, msgspec.msgpack.encode(("warm", version, call)))
        return call

    async def active(self) -> tuple[Active | None, bytes]:
        """What is active, and the errors it was activated with."""
        version, generation, errors, at_ms = await self.link.command(
            "HMGET", self.keys.active, "version", "generation", "errors", "at"
        )
        if version is None:
            return None, b""
        return Active(VersionId(version.decode()), int(generation), int(at_ms) if at_ms else None), errors or b""

    async def versions(self) -> list[tuple[VersionId, int]]:
        """Versions that were activated, and when last, newest first."""
        flat = await self.link.command("ZRANGE", self.keys.versions, 0, -1, "REV", "WITHSCORES")
        return [(VersionId(flat[index].decode()), int(float(flat[index + 1]))) for index in range(0, len(flat), 2)]

    async def switches(self, limit: int) -> list[tuple[VersionId, int]]:
        """The last switches from one version to another, and when each was, newest first; of 200 at most."""
        rows = await self.link.command("LRANGE", self.keys.switches, 0, limit - 1)
        return [(VersionId(version), at_ms) for version, at_ms in map(_switch_of, rows)]

    async def _transfer(self, *command: str | bytes | int) -> Any:
        return await self.link.command(*command, timeout_s=TRANSFER_TIMEOUT_S)
