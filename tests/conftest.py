"""Fixtures that every test may use."""

from valkey import bus, server, shared_server

__all__ = ["bus", "server", "shared_server"]
