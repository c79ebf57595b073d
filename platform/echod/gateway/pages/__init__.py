"""The pages, as pure functions: JSON objects of the gateway in, HTML out. No bus, no clock, no request in here.

`render("function", **answer, now=now, shell=shell)`: the dict that the JSON route would send (`gateway/shapes.py`), and
the extras of `given.py`; `now` is RFC 3339, the bus's time. What is missing shows as "–", unknown keys are ignored, and
a wrong type raises msgspec.ValidationError. `/static/<file>?v=<digest>` is served from `STATIC`.
"""

from __future__ import annotations

from echod.gateway.pages.rendering import CSP, HEADERS, STATIC, render

__all__ = ["CSP", "HEADERS", "STATIC", "render"]
