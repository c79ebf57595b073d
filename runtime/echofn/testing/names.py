"""Which part of a module's name is the folder's: what `echod dev FOLDER` would serve it as."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from echofn.annotations import marks_of

FOLDER = "functions"


def package_of(module: str) -> str:
    """The served folder's package in a module's full name: up to `functions` where that is a part, else the first part.

    "functions.shop" → "functions", "acme.functions.eu.shop" → "acme.functions", "jobs.shop" → "jobs", "shop" → "".
    """
    above = module.split(".")[:-1]
    if FOLDER in above:
        return ".".join(above[: above.index(FOLDER) + 1])
    return above[0] if above else ""


def package_around(function: Callable[..., Any] | str) -> str:
    """The package of an annotated function's module; "" for a name, or without an annotation."""
    marks = () if isinstance(function, str) else marks_of(function)
    return package_of(str(marks[0].scope.get("__name__", ""))) if marks else ""
