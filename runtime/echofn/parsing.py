"""What a file's syntax says before anything of it runs: what it imports, and the secrets that its annotations name.

A syntax tree takes hundreds of times the bytes of what it is made from, and making it holds the interpreter until it is
whole. So this is a child's work, forked for it, and bounded as an import is.
"""

from __future__ import annotations

import ast
import os
import resource
import socket
from collections.abc import Iterable
from typing import NoReturn

from echofn.discovery_protocol import Import, Said, declared, framed

MEMORY_BYTES = 1024 * 1024 * 1024


def said_of(source: bytes) -> Said:
    """What one file says; nothing where it is no Python, which its import will tell."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Said()
    imports: dict[Import, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {Import(None, alias.name): None for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            imports[Import(node.level, node.module or "", names)] = None
    return Said(tuple(imports), declared(tree).secrets)


def say_all(sources: Iterable[bytes], channel: socket.socket) -> NoReturn:
    """The child: a `Said` for each source, in order, as far as memory takes it."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        for source in sources:
            channel.sendall(framed(said_of(source)))
    finally:
        os._exit(0)
