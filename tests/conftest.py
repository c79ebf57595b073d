"""Fixtures that every test may use."""

from server import bus, server, shared_server

__all__ = ["bus", "server", "shared_server"]
