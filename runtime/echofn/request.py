"""The raw request of a webhook, as its handler gets it; and what its body says, decoded.

Imports nothing until a method needs it. A test makes one by hand: `Request(body=b'{"ref": "main"}')`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers read this name as true; a handler pays for no import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Objects = Callable[[list[tuple[str, Any]]], Any]

FORM = "application/x-www-form-urlencoded"
ENVELOPE = frozenset({"method", "path", "params", "query", "headers", "body"})  # the payload's keys

# What a sender may name: text that is decoded in one pass. Others of Python's take quadratic time (punycode, idna),
# reach files' and mails' formats (uu, quopri) or are read as another text by everybody else (utf-7, EBCDIC).
_CHARSETS = (
    "ascii utf_8 utf_8_sig utf_16 utf_16_be utf_16_le utf_32 utf_32_be utf_32_le latin_1 "
    "iso8859_1 iso8859_2 iso8859_3 iso8859_4 iso8859_5 iso8859_6 iso8859_7 iso8859_8 iso8859_9 iso8859_10 "
    "iso8859_11 iso8859_13 iso8859_14 iso8859_15 iso8859_16 "
    "cp1250 cp1251 cp1252 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 cp437 cp737 cp775 cp850 cp852 cp855 cp857 "
    "cp858 cp860 cp861 cp862 cp863 cp864 cp865 cp866 cp869 cp874 cp932 cp949 cp950 "
    "koi8_r koi8_u mac_roman mac_cyrillic tis_620 big5 big5hkscs euc_jp euc_kr gb18030 gb2312 gbk shift_jis"
)
CHARSETS = frozenset(_CHARSETS.split())


class Headers(dict[str, str]):
    """Headers by name, whatever its case. One that came several times is joined with commas."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        super().__init__({name.lower(): value for name, value in (given or {}).items()})

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name.lower())

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name.lower(), default)


class Query(dict[str, str]):
    """Parameters of the address by name: the last value of each, and `all(name)` for those that came several times."""

    def __init__(self, given: Mapping[str, str | list[str]] | None = None) -> None:
        self._all = {name: value if isinstance(value, list) else [value] for name, value in (given or {}).items()}
        super().__init__({name: values[-1] for name, values in self._all.items() if values})

    def all(self, name: str) -> list[str]:
        """Every value of a parameter, in order."""
        return list(self._all.get(name, ()))


class Request:
    """What came to a webhook's path: `method path params query headers body`, the body as the bytes that were signed.

    `Authorization`, `Cookie` and the signature's header are not among the headers: they are never stored.
    """

    __slots__ = ("body", "headers", "method", "params", "path", "query")

    def __init__(
        self,
        method: str = "POST",
        path: str = "/",
        *,
        params: Mapping[str, str] | None = None,
        query: Mapping[str, str | list[str]] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        self.method = method
        self.path = path
        self.params: dict[str, str] = dict(params or {})
        self.query = Query(query)
        self.headers = Headers(headers)
        self.body = body

    def json(self) -> Any:
        """The body as JSON. Raises ValueError when it is none."""
        return json_of(self.body, self.headers.get("content-type", ""))

    def text(self) -> str:
        """The body as text, by the charset its sender named, else by its byte order mark, else as UTF-8.

        Raises ValueError when it is none.
        """
        return text_of(self.body, self.headers.get("content-type", ""))

    def form(self) -> dict[str, str]:
        """The fields of a form-encoded body; the last value of each. Raises ValueError when it is none."""
        return form_of(self.body)

    def __repr__(self) -> str:
        return f"<Request {self.method} {self.path} {len(self.body)} bytes>"


def media_type(content_type: str) -> str:
    """The type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def json_of(body: bytes, content_type: str = "", objects: Objects = dict) -> Any:
    """A body as JSON (RFC 8259: no NaN). UTF-8, -16 and -32 are told apart by their bytes. Raises ValueError."""
    import json

    named = _charset(content_type)
    text: str | bytes = body if named is None or named.startswith("utf") else body.decode(named)
    try:
        return json.loads(text, parse_constant=_no_number, object_pairs_hook=objects)
    except RecursionError:
        raise ValueError("expected JSON of fewer levels") from None


def text_of(body: bytes, content_type: str = "") -> str:
    """A body as text. Raises ValueError."""
    return body.decode(_charset(content_type) or _marked(body))


def form_of(body: bytes) -> dict[str, str]:
    """The fields of a form-encoded body. Raises ValueError."""
    return dict(_fields(body))


def decoded(body: bytes, content_type: str, objects: Objects = dict) -> Any:
    """What a body says: the fields of a form, nothing where nothing came, else JSON. Raises ValueError.

    `objects` makes what stands for an object, or a form, of its keys and values.
    """
    if media_type(content_type) == FORM:
        return objects(_fields(body))
    return json_of(body, content_type, objects) if body else None


def _fields(body: bytes) -> list[tuple[str, Any]]:
    from urllib.parse import parse_qsl

    return [*parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=10_000)]


def _charset(content_type: str) -> str | None:
    """Python's name of the charset that a Content-Type names; None for what is not of `CHARSETS`."""
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            from encodings import normalize_encoding
            from encodings.aliases import aliases

            # codecs.lookup remembers every name that it was ever asked for
            wanted = normalize_encoding(value.strip().strip("\"'").lower())
            found = aliases.get(wanted, wanted)
            return ("utf_8_sig" if found == "utf_8" else found) if found in CHARSETS else None
    return None


def _marked(body: bytes) -> str:
    if body.startswith((b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")):
        return "utf-32"
    return "utf-16" if body.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"


def _no_number(text: str) -> Any:
    raise ValueError(f"expected JSON, got {text}, which it does not know")
