"""Walls: what is put around a process before it imports user code.

The order and the levels are in `levels`, each wall in a module of its own; `trial` tries them on this machine before
anything relies on them. All of it is for the kernel to enforce: nothing here asks user code to behave. The threat model
is your own code, contained: the kernel is shared, and there is no promise against its bugs or against side channels.
"""

from __future__ import annotations

from echofn.walls.levels import LEVELS, WALLS, Level, Order, Wall, raise_walls
from echofn.walls.openings import Openings
from echofn.walls.process import CHANNEL, LINE, adopt_orphans, die_with_parent, keep_descriptors

__all__ = [
    "CHANNEL",
    "LEVELS",
    "LINE",
    "WALLS",
    "Level",
    "Openings",
    "Order",
    "Wall",
    "adopt_orphans",
    "die_with_parent",
    "keep_descriptors",
    "raise_walls",
]
