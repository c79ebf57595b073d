"""`echod invoke`: one call, by hand or in a script."""

from __future__ import annotations

import sys
import time

import click
import msgspec

from echod.cli.client import Client, Json, members_of, message_of, part
from echod.cli.options import asks, print_json, seconds_of
from echod.errors import EchodError, Refused, TimedOut

_OPTIONS = {"Echo-Lane": "lane", "Echo-Delay": "delay", "Echo-At": "at", "Idempotency-Key": "key"}
LONGEST_WAIT_S = 30  # one request; a longer --timeout asks again


@click.command()
@click.argument("name")
@click.option("--data", default="null", metavar="JSON", help="The payload: JSON, @FILE, or - for stdin.")
@click.option("--wait", is_flag=True, help="Wait for the result and print it, nothing else.")
@click.option("--timeout", default="5m", callback=seconds_of, show_default=True, help="How long to wait with --wait.")
@click.option("--lane", help="The job's lane.")
@click.option("--delay", metavar="DURATION", help="Not before this long from now, as 5m.")
@click.option("--at", metavar="INSTANT", help="Not before this instant (RFC 3339).")
@click.option("--key", metavar="KEY", help="Idempotency key: the same key and payload answer with the first job.")
@asks
def invoke(
    name: str,
    data: str,
    wait: bool,
    timeout: float,
    lane: str | None,
    delay: str | None,
    at: str | None,
    key: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Call a function. Prints the job's id; with --wait its result as JSON.

    A run that failed exits 1 with the error on stderr.
    """
    client = Client(url)
    headers = {"Content-Type": "application/json"}
    given = {"lane": lane, "delay": delay, "at": at, "key": key}
    headers |= {header: value for header, option in _OPTIONS.items() if (value := given[option]) is not None}
    end = time.monotonic() + timeout
    if wait:
        headers["Prefer"] = f"wait={max(1, min(int(timeout), LONGEST_WAIT_S))}"
    answer = client.ask("POST", f"/functions/{part(name)}", payload_of(data), headers, LONGEST_WAIT_S + 15)
    if answer.status == 202:
        if not wait:
            print_json(answer.body) if as_json else click.echo(answer.body["id"])
            return
        print_json(_result(client, answer.body["id"], end))
    elif answer.status == 500 and (job_id := members_of(answer.body).get("job")):
        raise failure_of(client.get(f"/jobs/{part(job_id)}"), message_of(answer))
    elif answer.status >= 400:
        raise client.error_of(answer, {header: f"--{option}" for header, option in _OPTIONS.items()})
    else:
        print_json(answer.body)


def payload_of(data: str) -> bytes:
    """The payload's JSON from an option. Raises Refused when it is no JSON."""
    raw = data_of(data)
    try:
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(f"--data: expected JSON, got {data[:60]!r} ({error})") from None
    return raw


def data_of(data: str) -> bytes:
    """The bytes of an option: its text, `@FILE`, or `-` for stdin. Raises Refused."""
    try:
        if data == "-":
            return sys.stdin.buffer.read()
        if data.startswith("@"):
            with open(data[1:], "rb") as file:
                return file.read()
    except OSError as error:
        raise Refused(f"--data: {data[1:]}: {error.strerror}") from None
    return data.encode("utf-8", errors="surrogateescape")


def failure_of(job: Json, otherwise: str = "the run failed") -> EchodError:
    """Why a job ended badly, for stderr."""
    error = members_of(job.get("error"))
    text = f"{job['id']} ended {job['state']}"
    if error:
        text += f": {error.get('type')}: {error.get('message')}"
        if error.get("cause") not in {None, "error"}:
            text += f" (cause: {error['cause']})"
        if error.get("traceback"):
            text += f"\n{error['traceback'].rstrip()}"
    else:
        text += f": {otherwise}"
    return EchodError(text)


def _result(client: Client, job_id: str, end: float) -> Json:
    """The result of a job once it ends: a call that waits has no second form, so this asks, ever more slowly."""
    pause = 0.05
    while time.monotonic() < end:
        job = client.get(f"/jobs/{part(job_id)}")
        if job["state"] == "done":
            return job["result"]
        if job["state"] in {"dead", "cancelled"}:
            raise failure_of(job)
        time.sleep(min(pause, max(0.0, end - time.monotonic())))
        pause = min(pause * 1.5, 2.0)
    raise TimedOut(f"{job_id} has not ended in time; see `echod job {job_id}`")
