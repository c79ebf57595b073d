"""`@webhook` as discovery reads it: a mark in, a trigger of the manifest out, or a list of refusals."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, get_args

from echofn import values
from echofn.annotations import Mark, is_on
from echofn.manifest import Hmac, Scheme, Verify, WebhookTrigger
from echofn.options import ONE_ANNOTATIONS_OWN, QUEUE, Reading, only, read_secrets
from echofn.quoting import quoted
from echofn.verifiers import Hmac as AsWritten

POLICY = (
    QUEUE - {"lane", "unique", "until", "secrets"} - ONE_ANNOTATIONS_OWN
)  # what is the function's, whichever annotation says it
DELIVERY_MS = 86_400_000  # for so long a delivery that comes again is answered with its first job
_SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")  # of a header's name: RFC 9110, 5.6.2


def read_webhook(reading: Reading, declared: Set[str]) -> WebhookTrigger:
    """The trigger of a `@webhook` mark.

    Without `secret=` those of `secrets=` verify. `declared` are the names that the source has literally.
    """
    path = reading.value("path", only(reading, 'a path, as in @webhook("/hooks/github")', "/hooks"), "", webhook_path)
    before = len(reading.refusals)
    verify = reading.take("verify", None, _verify)
    signing = read_secrets(reading, declared, "secret")
    others = read_secrets(reading, declared)
    if "until" in reading.mark.options and reading.mark.options.get("unique") in (None, False):
        reading.refuse("until=: expected unique= beside it, got none; a sender's own delivery ids hold for 24 hours")
    if len(reading.refusals) == before:
        _check_verified(reading, verify, bool(signing or others))
    return WebhookTrigger(
        path=path,
        verify=verify,
        secrets=(signing or others) if verify is not None else (),
        lane=reading.take("lane", None, values.optional(values.request_path)),
        unique=reading.take("unique", None, _unique),
        until=reading.take("until", DELIVERY_MS, values.until),
        line=reading.mark.line,
    )


def _check_verified(reading: Reading, verify: Verify, has_secret: bool) -> None:
    options = reading.mark.options
    if "verify" not in options:
        reading.refuse(
            f"expected verify= ({', '.join(_SCHEMES)}, hmac(…)), got none; "
            "write verify=None if whoever reaches the path shall be believed"
        )
    elif verify is not None and not has_secret:
        reading.refuse('expected secret="NAME", the variable that holds the secret, got none')
    elif verify is None and "secret" in options:
        reading.refuse("secret=: with verify=None nothing is verified; remove one of them")


def webhook_path(value: Any) -> str:
    """A path like `/hooks/{tenant}/github`: plain segments, and names in braces that stand for one segment each."""
    expected = 'expected a path like "/hooks/github" or "/hooks/{tenant}"'
    if not isinstance(value, str) or not value.startswith("/") or not value.isprintable() or len(value) > 500:
        raise ValueError(f"{expected}, got {quoted(value)}")
    names: set[str] = set()
    for segment in value[1:].split("/"):
        if segment in ("", ".", "..") or any(char in '?#%\\ "<>^`|' for char in segment):
            raise ValueError(f"{expected}, got {quoted(value)}; write segments as they read, without escapes")
        if "{" in segment or "}" in segment:
            name = segment[1:-1]
            if segment != f"{{{name}}}" or not name.isidentifier() or name in names:
                raise ValueError(f"{expected}, each name in braces once and alone, got {quoted(value)}")
            names.add(name)
    return value


def policy_refusals(marks: list[Mark], env: str) -> dict[int, str]:
    """By mark, why its policy cannot stand: a function has one, said in one annotation, on @queue where it has that."""
    speakers = [mark for mark in marks if mark.kind == "queue" and is_on(mark, env)]
    speakers += [m for m in marks if m.kind == "webhook" and POLICY & m.options.keys() and is_on(m, env)]
    found: dict[int, str] = {}
    for mark in speakers[1:]:
        said = ", ".join(sorted(POLICY & mark.options.keys()))
        if mark.kind == "webhook":
            found[id(mark)] = f"{said}: a function has one policy; say it on its @{speakers[0].kind} alone"
    return found


def _verify(value: Any) -> Verify:
    if value is None:
        return None
    if isinstance(value, AsWritten):
        return _hmac(value)
    for known in _SCHEMES:
        if value == known:
            return known
    hint = '; for your own write hmac("X-Signature")' if value in ("hmac", "sha256") or callable(value) else ""
    raise ValueError(f"expected {', '.join(_SCHEMES)}, hmac(…) or None, got {quoted(value)}{hint}")


def _hmac(written: AsWritten) -> Hmac:
    header = values.text("a header's name", 100)(written.header).lower()
    if not set(header) <= _TOKEN:
        raise ValueError(f"hmac: expected a header's name, got {quoted(written.header)}")
    prefix = written.prefix
    if not isinstance(prefix, str) or not prefix.isascii() or len(prefix) > 100:  # pyright: ignore[reportUnnecessaryIsInstance] # user code
        raise ValueError(f"hmac: expected a prefix of ASCII text, got {quoted(prefix)}")
    for algorithm in ("sha1", "sha256", "sha384", "sha512"):
        for encoding in ("hex", "base64"):
            if (written.algorithm, written.encoding) == (algorithm, encoding):
                return Hmac(header, algorithm, encoding, prefix)
    raise ValueError(
        "hmac: expected sha1, sha256, sha384 or sha512 and hex or base64, "
        f"got {quoted(written.algorithm, 50)} and {quoted(written.encoding, 50)}"
    )


def _unique(value: Any) -> str | bool | None:
    return values.unique(value) if value is None or isinstance(value, bool) else values.request_path(value)
