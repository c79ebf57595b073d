"""What is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from echod.config import Config, Level, is_loopback
from echod.errors import Refused
from echod.node.doors import chosen, reaches_bus, refuse_open_door, unenforced, wanted
from echofn.manifest import Function, Policy
from echofn.walls import trial


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_dev_on_loopback_needs_no_token_and_start_does(host: str) -> None:
    assert is_loopback(host)
    refuse_open_door(Config(host=host), "dev")
    with pytest.raises(Refused, match="every process of this machine"):
        refuse_open_door(Config(host=host), "start")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_beyond_loopback_a_token_is_needed_and_the_command_printed(host: str) -> None:
    with pytest.raises(Refused, match=rf'ECHOD_TOKEN=".*" echod start --host {host}'):
        refuse_open_door(Config(host=host), "start")
    refuse_open_door(Config(host=host, token="0123456789abcdef"), "start")


@pytest.mark.parametrize("verb", ["start", "gateway"])
def test_a_token_that_can_be_guessed_is_refused_and_not_shown(verb: str) -> None:
    for token in ("x", "0123456789abcde"):
        with pytest.raises(Refused, match=rf"expected at least 16 .*, got {len(token)}; .*secrets") as refused:
            refuse_open_door(Config(token=token), verb, has_tokens=True)
        assert "0123456789abcde" not in str(refused.value)
    refuse_open_door(Config(token="x"), "dev")  # where anybody on this machine may


def test_a_level_that_is_not_there_is_refused_and_auto_takes_the_best(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = trial.Available("minimal", ("no landlock",))
    monkeypatch.setattr(trial, "available", lambda _folder, _most: found)
    assert chosen("auto", tmp_path) == ("minimal", ("no landlock",))
    with pytest.raises(Refused, match=r"expected standard walls, got minimal \(no landlock\); .* --sandbox minimal"):
        chosen("standard", tmp_path)


def test_a_level_is_tried_where_it_will_be_used_and_a_folder_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    assert chosen("minimal", tmp_path / "new" / "state") == ("minimal", ())
    assert not list((tmp_path / "new" / "state").iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="--state"):
        chosen("minimal", tmp_path / "file")


def test_without_a_word_dev_takes_the_best_there_is_and_others_the_standard() -> None:
    assert wanted(None, "dev") == "auto"
    assert [wanted(None, verb) for verb in ("start", "worker")] == ["standard", "standard"]
    assert wanted("minimal", "start") == "minimal"


@pytest.mark.parametrize(
    ("network", "port", "fix"),
    [
        (True, 6379, "list the ports it needs in network="),
        ((443, 6379), 6379, "take 6379 out of network="),
        ((443,), 6379, None),
        (False, 6379, None),
        (True, None, None),
    ],
)
def test_a_function_that_reaches_a_bus_without_a_password_is_not_served(
    network: bool | tuple[int, ...], port: int | None, fix: str | None
) -> None:
    why = reaches_bus(Function("m.f", "m", "f", "m.py", 1, Policy(network=network), ()), port)
    if fix is None:
        assert why is None
    else:
        assert why is not None
        assert "m.f is not served" in why
        assert "requirepass" in why
        assert why.endswith(fix)


@pytest.mark.parametrize(
    ("level", "policy", "named"),
    [
        ("minimal", {"network": (443,)}, "network="),
        ("minimal", {"processes": 4, "network": (443,)}, "network=, processes="),
        ("minimal", {"network": True, "memory_bytes": 1, "tmp_bytes": 1}, None),
        ("minimal", {}, None),
        ("off", {"memory_bytes": 1 << 30, "tmp_bytes": 1 << 30}, "memory=, tmp="),
        ("off", {"processes": 1}, "processes="),
        ("off", {"network": True}, None),
        ("off", {}, None),
        ("standard", {"network": (443,), "processes": 4, "memory_bytes": 1, "tmp_bytes": 1}, None),
        ("strict", {"network": (443,), "processes": 4, "memory_bytes": 1, "tmp_bytes": 1}, None),
    ],
)
def test_an_option_that_no_wall_of_the_level_enforces_is_a_reason_not_to_serve(
    level: Level, policy: dict[str, Any], named: str | None
) -> None:
    why = unenforced(Function("m.f", "m", "f", "m.py", 1, Policy(**policy), ()), level)
    if named is None:
        assert why is None
    else:
        assert why == (
            f"m.f is not served: nothing enforces its {named} at --sandbox {level}; take standard, or leave that out"
        )
