"""docker-compose.yml and Procfile name real verbs, and every service that others wait for says when it is well."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import yaml
from click.testing import CliRunner

from echod.cli.app import group
from echod.gateway.app import TABLE

ROOT = Path(__file__).resolve().parents[2]
KEYS = {"image", "build", "restart", "environment", "depends_on", "command", "volumes", "healthcheck", "ports", "init"}


def check_command(words: list[str]) -> None:
    """A verb of ours, with flags that it takes."""
    shown = CliRunner().invoke(group, [words[0], "--help"])
    assert shown.exit_code == 0
    for flag in (word for word in words if word.startswith("--")):
        assert re.search(rf"{flag}\b", shown.output), flag


def test_compose_runs_one_container_per_role_and_waits_for_a_healthy_bus():
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    services = compose["services"]
    assert set(services) == {"valkey", "gateway", "pump", "worker"}
    assert "healthcheck" in services["valkey"]
    assert "healthcheck" in services["gateway"]
    for role in ("gateway", "pump", "worker"):
        assert services[role]["depends_on"] == {"valkey": {"condition": "service_healthy"}}
        assert services[role]["command"][0] == role
    assert set(compose["volumes"]) == {"bus"}


def test_compose_says_nothing_that_compose_does_not_know():
    """Keys, interpolation, commands and volumes are judged without the client; with one, the file by it, too."""
    text = (ROOT / "docker-compose.yml").read_text()
    compose = yaml.safe_load(text)
    assert set(compose) <= {"name", "services", "volumes", "x-echod"}
    for name, service in compose["services"].items():
        assert set(service) <= KEYS, name
        assert ("image" in service) != ("build" in service)
        assert set(service.get("healthcheck", {})) <= {"test", "interval", "timeout", "retries"}
        assert set(service.get("depends_on", {})) <= set(compose["services"])
        assert {volume.split(":")[0] for volume in service.get("volumes", [])} <= set(compose["volumes"])
        if "build" in service:
            check_command(service["command"])
    assert re.findall(r"\$(?!\{[A-Z_]+(?::[-?][^}]+)?\})", text) == []
    (probe,) = re.findall(r"http://127.0.0.1:8321(/\w+)", compose["services"]["gateway"]["healthcheck"]["test"][-1])
    assert probe in [entry.path for entry in TABLE]

    docker = shutil.which("docker")
    has_client = docker and subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0
    if has_client:
        run = subprocess.run(
            ["docker", "compose", "config", "-q"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env={**os.environ, "ECHOD_TOKEN": "x"},
        )
        assert run.returncode == 0, run.stderr


def test_every_line_of_the_procfile_is_a_command_that_the_cli_knows():
    lines = [line for line in (ROOT / "Procfile").read_text().splitlines() if line and not line.startswith("#")]
    assert [line.partition(":")[0] for line in lines] == ["gateway", "pump", "worker"]
    for line in lines:
        _, verb, *words = shlex.split(line.partition(":")[2])
        check_command([verb, *words])
