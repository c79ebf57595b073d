"""Server-sent events on the wire."""

from __future__ import annotations

from echod.gateway.sse import Event, encoded


def test_an_event_is_its_id_name_and_one_line_of_json() -> None:
    assert encoded(Event("log", {"text": "a\nb\r\u2028"}, id="5-0")) == (
        'id: 5-0\nevent: log\ndata: {"text":"a\\nb\\r\u2028"}\n\n'.encode()
    )


def test_an_event_without_an_id_has_no_id_line() -> None:
    assert encoded(Event("end", None)) == b"event: end\ndata: null\n\n"
