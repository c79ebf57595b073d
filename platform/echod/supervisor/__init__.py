"""The supervisor: claims jobs, feeds them to confined workers, and settles what became of them."""

from echod.supervisor.supervisor import Supervisor

__all__ = ["Supervisor"]
