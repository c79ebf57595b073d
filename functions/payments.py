"""A call to a service that is having a bad day: retried with growing waits, then in the morgue until redriven."""

from echofn import Context, Retry, queue


class ServiceUnavailable(Exception):
    """What a payment provider's client raises on a 503."""


def call_provider(amount_cents: int, fence: int) -> str:
    """Stands in for a provider's client: amounts that end in 13 always fail. A real one would be given `fence`."""
    if amount_cents % 100 == 13:
        raise ServiceUnavailable("503 from the provider")
    return f"charged {amount_cents} ({fence})"


@queue(retries=2, backoff=["200ms", "400ms"], timeout="10s")
def charge(payload: int, ctx: Context) -> str:
    """Charge an amount in cents. `ctx.fence` grows with each claim, so the provider can refuse a call we gave up on."""
    if payload % 100 == 77 and ctx.attempt == 1:
        raise Retry("the provider asks for a little patience", after="100ms")
    return call_provider(payload, ctx.fence)
