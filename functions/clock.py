"""Work that the clock starts: a heartbeat each 20 seconds, a report each Monday morning in Berlin."""

from datetime import UTC, datetime

from echofn import Context, cron, every


@every("20s")
def heartbeat(payload: None, ctx: Context) -> dict[str, int]:
    """Say that we are alive, and how late we were told to."""
    late_ms = int((datetime.now(UTC) - ctx.due).total_seconds() * 1000)
    print(f"alive, {late_ms} ms after {ctx.due:%H:%M:%S}")
    return {"late_ms": late_ms}


@cron("0 6 * * mon", tz="Europe/Berlin", name="monday")
async def weekly_report(payload: None, ctx: Context) -> str:
    """Report on the week that has ended. Minted once per Monday, also when the node was down at six."""
    since = ctx.previous.isoformat() if ctx.previous else "the beginning"
    ctx.log.info("reporting on the week since %s", since)
    return f"report for the week since {since}"
