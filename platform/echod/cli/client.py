"""The HTTP side of the verbs: one connection a call on the standard library, so that a verb starts fast."""

from __future__ import annotations

import http.client
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, cast
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from echod.config import DEFAULT_PORT
from echod.errors import BusAway, EchodError, NothingListens, Refused, TimedOut

Json = Any  # what a JSON body decodes to; every verb picks from it by §11's names
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"


class Answer(msgspec.Struct, frozen=True):
    """Status, headers in lower case, and the decoded body."""

    status: int
    headers: dict[str, str]
    body: Json


class Client:
    """Calls to one echod. `url` may carry a path prefix (behind a proxy)."""

    def __init__(self, url: str | None, token: str | None = None) -> None:
        self.url = (url or os.environ.get("ECHOD_URL") or DEFAULT_URL).rstrip("/")
        self._token = token or os.environ.get("ECHOD_TOKEN")
        parts = urlsplit(self.url)
        try:
            self._host, self._port = parts.hostname, parts.port
        except ValueError:
            self._host = None
        if parts.scheme not in {"http", "https"} or not self._host:
            raise Refused(f"--url: expected http://HOST:PORT, got {self.url!r}")
        self._secure, self._prefix = parts.scheme == "https", parts.path

    def get(self, path: str, **query: object) -> Json:
        """The JSON at `path`; raises as `call` does."""
        return self.call("GET", _asked(path, query)).body

    def post(self, path: str, **query: object) -> Json:
        """What an operator's action answers."""
        return self.call("POST", _asked(path, query)).body

    def send(self, method: str, path: str, body: object) -> Json:
        """What is answered to a JSON body."""
        return self.call(method, path, msgspec.json.encode(body), {"Content-Type": "application/json"}).body

    def call(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> Answer:
        """One call; a body in parts needs its Content-Length. A problem becomes the error whose exit code fits it."""
        answer = self.ask(method, path, body, headers, timeout)
        if answer.status >= 400:
            raise self.error_of(answer)
        return answer

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> Answer:
        """One call, whatever its status. Raises NothingListens, TimedOut."""
        connection, response = self._open(method, path, body, headers, timeout)
        try:
            raw = response.read()
        except TimeoutError:
            raise TimedOut(f"{self.url} did not answer within {timeout:.0f} s") from None
        except (http.client.HTTPException, OSError) as error:
            raise NothingListens(f"{self.url} went away while answering ({error})") from None
        finally:
            connection.close()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, _decoded(raw))

    def events(self, path: str, last: str = "", **query: object) -> Iterator[tuple[str, str, str]]:
        """(event, data, id) of a stream of server-sent events, those after `last`, until it ends or is cut.

        Raises as `call` does where no stream begins.
        """
        sent = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
        connection, response = self._open("GET", _asked(path, query), None, sent, None)
        try:
            if response.status >= 400:
                raise self.error_of(Answer(response.status, {}, _decoded(response.read())))
            kind, data = "message", list[str]()
            while line := response.readline():
                text = line.decode("utf-8", errors="replace").rstrip("\r\n")
                field, _, value = text.partition(":")
                value = value.removeprefix(" ")
                if not text:
                    if data:
                        yield kind, "\n".join(data), last
                    kind, data = "message", []
                elif field == "id":
                    last = value
                elif field == "event":
                    kind = value
                elif field == "data":
                    data.append(value)
        except (http.client.HTTPException, OSError):
            pass  # cut
        finally:
            connection.close()

    def error_of(self, answer: Answer, called: Mapping[str, str] | None = None) -> EchodError:
        """The error that a problem+json body tells of; headers are `called` after the options they were made of."""
        text = message_of(answer)
        for header, option in (called or {}).items():
            text = text.replace(header, option)
        match answer.status:
            case 401:
                return Refused(f"{text}; set ECHOD_TOKEN to a token of {self.url}")
            case 503:
                return BusAway(text)
            case 504:
                return TimedOut(text)
            case status if status < 500:
                return Refused(text)
            case _:
                return EchodError(text)

    def _open(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None,
        headers: Mapping[str, str] | None,
        timeout: float | None,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host or "", self._port, timeout=timeout)
        sent = {"Accept": "application/json", **(headers or {})}
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        try:
            connection.connect()
        except TimeoutError:
            raise TimedOut(f"{self.url} did not answer within {timeout or 0:.0f} s") from None
        except (socket.gaierror, OSError) as error:
            raise NothingListens(
                f"nothing listens at {self.url} ({_reason(error)}); start it with `echod dev`, "
                "or name another with --url"
            ) from None
        try:
            # A body that is too large is answered before its end, and its connection closed: the answer is what counts.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self._prefix + path, body, sent)
            return connection, connection.getresponse()
        except TimeoutError:
            connection.close()
            raise TimedOut(f"{self.url} did not answer within {timeout or 0:.0f} s") from None
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            outcome = "" if method == "GET" else "; what was asked of it may be done or not: look before you ask again"
            raise NothingListens(f"{self.url} went away before it answered ({_reason(error)}){outcome}") from None


def message_of(answer: Answer) -> str:
    """What a problem says, in one line."""
    members = members_of(answer.body)
    return str(members.get("detail") or members.get("title") or f"HTTP {answer.status}")


def members_of(body: Json) -> dict[str, Json]:
    """A body that is a JSON object, as one; anything else has no members."""
    return cast("dict[str, Json]", body) if isinstance(body, dict) else {}


def part(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


def _asked(path: str, query: Mapping[str, object]) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return path + (f"?{urlencode(given)}" if given else "")


def _decoded(raw: bytes) -> Json:
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return raw.decode("utf-8", errors="replace")


def _reason(error: BaseException) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
