"""Values in messages of ours, cut to a length that can be read.

What nobody may see is masked first, while it is whole: half of a secret is not recognised by whoever masks the message
later. Light on purpose: `import echofn` loads it. Who has secrets says how to mask them (`hide_by`), once a process.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, without importing it
if TYPE_CHECKING:
    from collections.abc import Callable

_hide: Callable[[str], str] = str


def hide_by(mask: Callable[[str], str]) -> None:
    """Mask by this, from now on, whatever is quoted in this process."""
    global _hide
    _hide = mask


def hidden(text: str, most: int) -> str:
    """At most `most` characters of a text, masked while it is whole."""
    return _hide(text)[:most]


def quoted(value: object, most: int = 100) -> str:
    """The repr of a value, in at most `most` characters."""
    try:
        text = _hide(repr(value))
    except ValueError:
        if type(value) is not int:
            raise
        text = "an integer of too many digits"  # past sys.set_int_max_str_digits, which is of no use to its author
    return text if len(text) <= most else f"{text[: most - 1]}…"
