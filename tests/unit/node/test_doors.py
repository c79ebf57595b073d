"""What is refused before anything starts."""

from __future__ import annotations

import pytest

from echod.config import Config
from echod.errors import Refused
from echod.node.doors import chosen, is_loopback, refuse_open_door
from echofn import walls


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    assert is_loopback(host)
    refuse_open_door(Config(host=host), "dev")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_beyond_loopback_a_token_is_needed_and_the_command_printed(host: str) -> None:
    with pytest.raises(Refused, match=rf'ECHOD_TOKEN=".*" echod start --host {host}'):
        refuse_open_door(Config(host=host), "start")
    refuse_open_door(Config(host=host, token="t"), "start")


def test_a_level_that_is_not_there_is_refused_and_auto_takes_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walls, "available", lambda: walls.Available("minimal", ("no landlock",)))
    assert chosen("auto") == ("minimal", ("no landlock",))
    assert chosen("off") == ("off", ())
    with pytest.raises(Refused, match=r"expected standard walls, got minimal \(no landlock\); use --sandbox minimal"):
        chosen("standard")
