"""Where a bus is and how to get a socket to it: valkey:// valkeys:// redis:// rediss:// unix://, parsed by redis-py."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable, Generator
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from echod.errors import BusAbsent, BusAway, BusUnfit

P = TypeVar("P", bound=asyncio.Protocol)
_PATH_LIMIT = 100  # sun_path holds 108 bytes
_SCHEMES = ("redis://", "rediss://", "unix://")


class Address(msgspec.Struct, frozen=True):
    """A parsed bus address."""

    host: str = "localhost"
    port: int = 6379
    path: str | None = None
    username: str | None = None
    password: str | None = None
    db: int = 0
    tls: ssl.SSLContext | None = None


def parse(url: str) -> Address:
    """The address in `url`. Raises BusUnfit for anything that is none."""
    text = url
    if text.startswith("valkey"):
        text = "redis" + text[len("valkey") :]
    if not text.startswith(_SCHEMES):
        raise BusUnfit(f"expected valkey://…, valkeys://…, redis://…, rediss://… or unix:///path, got {_masked(url)}")
    try:
        options = _options(text)
        tls = _tls(options) if text.startswith("rediss://") else None
    except (ValueError, OSError, ssl.SSLError) as error:
        raise BusUnfit(f"expected a bus address, got {_masked(url)}: {error}") from None
    if text.startswith("unix://") and not options.get("path"):
        raise BusUnfit(f"expected unix:///path, got {_masked(url)}")
    return Address(
        host=options.get("host", "localhost"),
        port=int(options.get("port", 6379)),
        path=options.get("path"),
        username=options.get("username"),
        password=options.get("password"),
        db=int(options.get("db", 0)),
        tls=tls,
    )


def _options(text: str) -> dict[str, Any]:
    """What an address says. A plain socket path, as the embedded server has, is read without loading redis-py for it:
    that would be a quarter of a node's start."""
    parts = urlsplit(text)
    if parts.scheme == "unix" and not parts.netloc and not parts.query:
        return {"path": unquote(parts.path)}
    from redis.asyncio.connection import parse_url

    return dict(parse_url(text))


def _masked(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}***@{rest.rpartition('@')[2]}" if "@" in rest else repr(url)


def _tls(options: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"), capath=options.get("ssl_ca_path"))
    if str(options.get("ssl_cert_reqs", "required")) in {"none", "CERT_NONE"}:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif str(options.get("ssl_check_hostname", "true")).lower() in {"false", "0", "no"}:
        context.check_hostname = False
    if options.get("ssl_certfile"):
        context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"), options.get("ssl_password"))
    return context


async def connect(address: Address, factory: Callable[[], P]) -> P:
    """A connected protocol. Raises BusAway where nothing answers."""
    loop = asyncio.get_running_loop()
    try:
        if address.path is not None:
            with _short(address.path) as path:
                _, protocol = await loop.create_unix_connection(factory, path)
        else:
            transport, protocol = await loop.create_connection(factory, address.host, address.port, ssl=address.tls)
            _keep_alive(transport.get_extra_info("socket"))
    except OSError as error:
        text = f"no bus answers at {where(address)}: {error.strerror or error}; start it, or give another address"
        is_absent = isinstance(error, ConnectionRefusedError | FileNotFoundError | socket.gaierror)
        raise (BusAbsent if is_absent else BusAway)(text) from None
    return protocol


def where(address: Address) -> str:
    """The address for people, without credentials."""
    if address.path is not None:
        return f"unix://{address.path}"
    return f"{'valkeys' if address.tls else 'valkey'}://{address.host}:{address.port}"


def _keep_alive(sock: socket.socket | None) -> None:
    """A half-open connection is noticed within about a minute although nothing is sent on it."""
    if sock is None:
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


@contextlib.contextmanager
def _short(path: str) -> Generator[str, None, None]:
    """`path`, or where it is too long for a socket address, another name of it through its folder's descriptor."""
    if len(os.fsencode(path)) <= _PATH_LIMIT:
        yield path
        return
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)
