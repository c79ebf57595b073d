"""A machine whose resolver answers over TCP alone: `unshare --mount --net python resolving.py PORTS LEVEL ACT`.

In a network of its own, at 127.0.0.1:53, with an /etc/resolv.conf that says so. A worker that has opened PORTS runs ACT
there; what became of it, and what was asked, is printed as JSON.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import struct
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from echofn.manifest import Policy
from unit.runtime.driving import Base

KNOWN = b"\x04shop\x07example\x00"
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def main(ports: str, level: str, act: str) -> None:
    with tempfile.TemporaryDirectory(prefix="echod-walls-") as place:
        os.chmod(place, 0o755)
        resolve_here(Path(place, "resolv.conf"))
        asked: list[str] = []
        threading.Thread(target=answer, args=(socket.create_server(("127.0.0.1", 53)), asked), daemon=True).start()
        shop = socket.create_server(("127.0.0.1", 8443))
        shop.listen()
        base = Base(Path(place))
        network = tuple(json.loads(ports))
        ran = base.serve(f"import socket\ndef f(): return {act}\n", level=level, policy=Policy(network=network)).one()
        assert ran.ended is not None
        said = ran.fault.message if ran.ended.fault else ran.result
        print(json.dumps({"outcome": ran.outcome, "said": said, "asked": asked}))
        base.close()


def resolve_here(settings: Path) -> None:
    settings.write_text("nameserver 127.0.0.1\noptions timeout:30 attempts:1\n")
    settings.chmod(0o644)
    libc = ctypes.CDLL(None, use_errno=True)
    for source, target, flags in ((b"none", b"/", MS_REC | MS_PRIVATE), (os.fsencode(settings), REAL, MS_BIND)):
        if libc.mount(source, target, None, ctypes.c_ulong(flags), None):
            raise OSError(ctypes.get_errno(), f"mount {target!r}")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


REAL = os.fsencode(os.path.realpath("/etc/resolv.conf"))


def answer(server: socket.socket, asked: list[str]) -> None:
    """RFC 1035, as far as an address of one name needs it; over TCP each message has its length before it."""
    while True:
        client, _ = server.accept()
        with client, client.makefile("rb") as stream:
            while length := stream.read(2):
                query = stream.read(struct.unpack(">H", length)[0])
                name, kind = query[12 : query.index(0, 12) + 1], struct.unpack(">H", query[-4:-2])[0]
                if query[10:12] != b"\0\0":  # with an OPT record after its question
                    kind = struct.unpack_from(">H", query, 12 + len(name))[0]
                asked.append(f"{name!r} {kind}")
                is_known = name == KNOWN
                has_address = is_known and kind == 1
                head = query[:2] + struct.pack(">5H", 0x8180 if is_known else 0x8183, 1, has_address, 0, 0)
                question = name + struct.pack(">HH", kind, 1)
                record = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + bytes((127, 0, 0, 1))
                reply = head + question + (record if has_address else b"")
                client.sendall(struct.pack(">H", len(reply)) + reply)


if __name__ == "__main__":
    main(*sys.argv[1:])
