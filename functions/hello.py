"""The smallest function: call it with `echod invoke hello.greet --data '{"name": "Ada"}' --wait`."""

import msgspec

from echofn import Context, queue


class Person(msgspec.Struct):
    name: str
    language: str = "en"


WORDS = {"en": "Hello", "de": "Hallo", "fr": "Bonjour", "ja": "こんにちは"}


@queue(timeout="5s")
def greet(payload: Person, ctx: Context) -> dict[str, str | int]:
    """Greet somebody in their language."""
    ctx.log.info("greeting %s", payload.name)
    word = WORDS.get(payload.language, WORDS["en"])
    return {"greeting": f"{word}, {payload.name}!", "attempt": ctx.attempt}
