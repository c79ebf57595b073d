"""The bus: jobs, lanes, leases and recurrences in a Valkey server, one script per transition."""

from echod.bus.bus import Bus

__all__ = ["Bus"]
