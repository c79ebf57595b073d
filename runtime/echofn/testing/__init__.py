"""Tests of functions: a context of the test's own, and a bus of the test's own whose clock the test drives.

    from functions import shop
    from echofn.testing import bus, fake_context        # `bus` is a pytest fixture: importing it is all there is to do

    def test_pack():                                     # a function is a plain function
        ctx = fake_context(attempt=2)
        assert shop.pack({"n": 4}, ctx) == 8

    def test_daily(bus):                                 # the real scripts, a real server, the real pump
        bus.load(shop)
        bus.advance("1d")
        bus.run_due()
        assert [job.result for job in bus.jobs(shop.pack)] == [8]

This is the one part of echofn that imports echod: what becomes due, how long a retry waits, what a schedule missed is
decided by what decides it in production. Handlers run in the test's own process and thread, without walls, time limits
or forks, so that a debugger, coverage and monkeypatching work as in any test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from echofn.testing.fake import Enqueued, FakeContext, fake_context

if TYPE_CHECKING:
    from echofn.testing.fixture import bus
    from echofn.testing.kit import Bus, Job
    from echofn.testing.stage import running_bus

__all__ = ["Bus", "Enqueued", "FakeContext", "Job", "bus", "fake_context", "running_bus"]


def __getattr__(name: str) -> object:
    """What needs echod or pytest is loaded when it is asked for: a fake context needs neither."""
    if name == "bus":
        from echofn.testing.fixture import bus

        return bus
    if name in ("Bus", "Job"):
        from echofn.testing import kit

        return getattr(kit, name)
    if name == "running_bus":
        from echofn.testing.stage import running_bus

        return running_bus
    raise AttributeError(f"module 'echofn.testing' has no attribute {name!r}")
