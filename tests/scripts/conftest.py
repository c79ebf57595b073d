"""Replies of scripts are recorded where a test is said to show one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scripts.replies import Recorder, declared, shown_by


@pytest.fixture(autouse=True)
def replies_are_seen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that `replies.SHOWN` names has seen what it is to show, and no reply that its header does not name."""
    expected = shown_by(request.node.path.stem.removeprefix("test_"), request.node.name)
    recorder = Recorder()
    if expected:
        recorder.install(monkeypatch)
    yield
    assert expected - recorder.seen == set(), "this test is to show these replies (tests/scripts/replies.py)"
    assert {(verb, kind) for verb, kind in recorder.seen if kind not in declared(verb)} == set()
