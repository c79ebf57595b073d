"""A scripted HTTP server, in the place of an echod, for the verbs that ask one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class Asked:
    """One request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Gateway:
    """Answers by (method, path); remembers what it was asked."""

    url: str
    answers: dict[tuple[str, str], tuple[int, list[object]]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def says(self, method: str, path: str, *bodies: object, status: int = 200) -> None:
        """One body after the other, the last one from then on."""
        self.answers[method, path] = (status, list(bodies))


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    class Handler(BaseHTTPRequestHandler):
        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            stand_in.asked.append(Asked(self.command, self.path, headers, body))
            missing = {"title": "No such function", "detail": f"nothing scripted at {self.command} {self.path}"}
            status, bodies = stand_in.answers.get((self.command, self.path), (404, [missing]))
            said = bodies.pop(0) if len(bodies) > 1 else bodies[0]
            raw = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            kind = "text/event-stream" if isinstance(said, bytes) else "application/json"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = do

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    stand_in = Gateway(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("ECHOD_URL", stand_in.url)
    monkeypatch.delenv("ECHOD_TOKEN", raising=False)
    yield stand_in
    server.shutdown()
    thread.join()
    server.server_close()
