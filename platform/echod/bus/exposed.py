"""Whether a bus serves strangers: asked as one, over TCP and without credentials.

A handler that may connect to the bus's port has neither its address nor its password. Where none is asked for, that
handler could read and change every job of every function.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from echod.bus.address import Address, parse
from echod.bus.bus import Bus
from echod.errors import BusError

ANSWER_S = 1.0


async def open_port(bus: Bus, url: str) -> int | None:
    """The TCP port of the bus at `url` when it answers without a password; None when it does not, or has no port.

    `bus` is connected to it: one that is used by its unix socket is asked at the port that it says it has.
    """
    address = parse(url)
    if address.path is not None:
        if not (port := await _listens(bus)):
            return None
        address = Address(host="127.0.0.1", port=port, password=address.password)
    try:
        async with asyncio.timeout(ANSWER_S):
            return address.port if await _serves_strangers(address) else None
    except (OSError, TimeoutError):
        # No answer is no proof. Our own way in needs no password: then neither does another's.
        return address.port if address.password is None and address.tls is None else None


async def _listens(bus: Bus) -> int:
    with contextlib.suppress(BusError):  # who may not ask for INFO does not hear of a port
        return int(str((await bus.server())["tcp_port"]))
    return 0


async def _serves_strangers(address: Address) -> bool:
    tls: ssl.SSLContext | None = None
    if address.tls is not None:  # a certificate of ours is a credential, too; the server's is of no interest here
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls)
    try:
        writer.write(b"PING\r\n")
        return (await reader.readline()).startswith(b"+PONG")
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
