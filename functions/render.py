"""CPU-bound work in a process of its own: a picture of the Mandelbrot set, under a timeout that nothing escapes."""

import struct
import zlib

import msgspec

from echofn import queue


class View(msgspec.Struct):
    width: int = 160
    height: int = 120
    depth: int = 80


@queue(timeout="20s", retries=0, workers=(0, 2))
def mandelbrot(payload: View) -> bytes:
    """Render a view as a grey PNG."""
    rows = bytearray()
    for y in range(payload.height):
        rows.append(0)  # PNG filter: none
        for x in range(payload.width):
            c = complex(3.0 * x / payload.width - 2.1, 2.4 * y / payload.height - 1.2)
            rows.append(255 - 255 * _steps(c, payload.depth) // payload.depth)
    header = struct.pack(">IIBBBBB", payload.width, payload.height, 8, 0, 0, 0, 0)
    chunks = (_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(bytes(rows))), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _steps(c: complex, depth: int) -> int:
    z = 0j
    for step in range(depth):
        z = z * z + c
        if abs(z) > 2:
            return step
    return depth


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
