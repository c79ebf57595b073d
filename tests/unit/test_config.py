"""Settings: every variable, every fault at once, nothing secret shown."""

from pathlib import Path

import pytest

from echod.config import Config, from_env
from echod.errors import Refused


def test_without_variables_the_defaults_hold() -> None:
    assert from_env({}) == Config()


def test_every_setting_has_its_variable() -> None:
    given = {
        "ECHOD_HOST": "0.0.0.0",
        "ECHOD_PORT": "9000",
        "ECHOD_STATE": "/var/lib/echod",
        "ECHOD_BUS": "valkey://bus:6379/0",
        "ECHOD_SANDBOX": "minimal",
        "ECHOD_LEASE": "30s",
        "ECHOD_RELOAD": "no",
        "ECHOD_CLOCK": "1",
        "ECHOD_APP": "staging",
        "ECHOD_TOKEN": "t0ken",
        "ECHOD_ENV": "prod",
        "ECHOD_ALLOW_HOST": "a.example, b.example",
        "ECHOD_REQUEST_LIMIT": "100/s",
        "ECHOD_VALKEY_SERVER": "/usr/bin/valkey-server",
    }
    config = from_env(given)
    defaults = Config()
    assert all(getattr(config, name) != getattr(defaults, name) for name in Config.__struct_fields__)
    assert (config.port, config.lease_ms, config.reload) == (9000, 30_000, False)
    assert config.allow_host == ("a.example", "b.example")
    assert config.state == Path("/var/lib/echod")


def test_a_flag_wins_over_its_variable_and_an_absent_flag_does_not() -> None:
    config = from_env({"ECHOD_PORT": "9000", "ECHOD_HOST": "::1"}, port=9001, host=None)
    assert (config.port, config.host) == (9001, "::1")


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    assert from_env({"ECHOD_PORT": "", "ECHOD_BUS": ""}) == Config()


def test_all_faults_are_told_at_once() -> None:
    wrong = {
        "ECHOD_PORT": "http",
        "ECHOD_SANDBOX": "tight",
        "ECHOD_LEASE": "soon",
        "ECHOD_RELOAD": "maybe",
        "ECHOD_APP": "a b",
    }
    with pytest.raises(Refused) as refused:
        from_env(wrong)
    for name, value in wrong.items():
        assert name in str(refused.value)
        assert value in str(refused.value)


@pytest.mark.parametrize("lease_ms", [0, 999, 3_600_001])
def test_a_lease_that_cannot_be_kept_is_refused(lease_ms: int) -> None:
    with pytest.raises(Refused, match="1s to 1h"):
        from_env({}, lease_ms=lease_ms)


def test_what_people_are_shown_holds_no_secret() -> None:
    config = Config(token="s3cret", bus="valkey://user:pa@ss@bus:6379/0")
    assert config.masked()["token"] == "***"
    assert config.masked()["bus"] == "valkey://***@bus:6379/0"
    assert "s3cret" not in str(config.masked())
    assert "pa@ss" not in str(config.masked())
