"""Pages as text: escaped, within the strict policy, well-formed, in the glossary's words; and what they are made of."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import re
import uuid
from html.parser import HTMLParser
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import jsonschema_rs
import msgspec
import pydantic
import pytest
from msgspec import UNSET, Meta

from browser import sample
from echod.gateway import pages
from echod.gateway.pages import given, limits, schema, strip, timeline, views, words
from echod.gateway.pages.draw import bars
from echod.gateway.pages.jsontext import LIMIT, plain, pretty
from echofn import codec
from echofn.manifest import Exponential, Linear, Policy, Waits
from echofn.models import json_schema

VOID = {"meta", "link", "input", "line", "path", "rect", "circle", "br", "hr", "img"}
SELF = ("path", "rect", "circle", "line")
BARE: dict[str, dict[str, Any]] = {
    "functions": {},
    "function": {"name": "a.b"},
    "job": {"id": "JOB00000000001"},
    "jobs": {},
    "schedules": {},
    "morgue": {},
    "lanes": {},
    "versions": {},
    "nodes": {},
    "bus": {},
    "problem": {},
    "login": {},
}


class Audit(HTMLParser):
    """Collects what a page must not have."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.wanted: list[str] = []
        self.text: list[str] = []
        self.feed(html)
        self.faults += [f"not closed: {tag}" for tag in self.open]
        self.faults += [f"id twice: {id}" for id in self.ids if self.ids.count(id) > 1]
        self.faults += [f"no such id: {id}" for id in self.wanted if id not in self.ids]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.faults += [f"{tag} {name}" for name in values if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and not values.get("src")):
            self.faults.append(f"inline {tag}")
        for name in ("src", "href", "action"):
            if name in values and not re.match(r"/(?!/)|#|$", values[name]):
                self.faults.append(f"{tag} {name}={values[name]}")
        if "id" in values:
            self.ids.append(values["id"])
        for name in ("for", "aria-labelledby", "aria-controls"):
            self.wanted += values.get(name, "").split()
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"out of order: /{tag}")

    def handle_data(self, data: str) -> None:
        if not {"script", "code", "pre"} & set(self.open):
            self.text.append(data)


def shown(path: str, **more: Any) -> str:
    name, view = sample.PAGES[path]
    return pages.render(name, **{**view, **more}, now=sample.at(0), shell=sample.SHELL)


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", " ".join(Audit(html).text))


@pytest.mark.parametrize("path", sample.PAGES)
def test_a_page_is_well_formed_and_keeps_within_the_strict_policy(path: str) -> None:
    assert Audit(shown(path)).faults == []


@pytest.mark.parametrize("path", sample.PAGES)
def test_markup_in_names_and_payloads_is_text(path: str) -> None:
    assert sample.ATTACK not in shown(path)


def test_the_attack_is_still_readable() -> None:
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown("/jobs/dead")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown("/")


@pytest.mark.parametrize("name", BARE)
def test_a_page_without_data_says_what_to_do_or_shows_a_dash(name: str) -> None:
    html = pages.render(name, **BARE[name])
    assert Audit(html).faults == []
    assert "None</" not in html
    assert "Undefined" not in html


@pytest.mark.parametrize("path", sample.PAGES)
def test_pages_speak_the_glossary(path: str) -> None:
    found = re.findall(r"\b(ring|rings|lane|lanes|minted|mint)\b", text_of(shown(path)), re.IGNORECASE)
    assert found == []


def test_the_policy_has_no_unsafe_source() -> None:
    assert "unsafe" not in pages.CSP
    assert "default-src 'none'" in pages.CSP
    assert "http" not in pages.CSP


def test_a_wrong_type_is_refused_and_an_unknown_key_is_not() -> None:
    with pytest.raises(msgspec.ValidationError):
        pages.render("functions", functions="all")
    assert "<html" in pages.render("functions", functions=[], later="ignored")


def test_a_load_error_shows_file_line_column_and_message() -> None:
    text = text_of(shown("/"))
    assert "shop.py :14:22" in text
    assert "line 14, column 22" in text
    assert "&#39;(&#39; was never closed" in shown("/")
    assert "hangs.py" in text


def test_late_missed_and_skipped_are_kept_apart() -> None:
    html = shown("/functions/billing.send_invoice")
    rows = re.findall(r"<tr[^>]*>\s*<th scope=\"row\">(Late|Missed|Skipped).*?</tr>", html, re.DOTALL)
    assert rows == ["Late", "Missed", "Skipped"]


def test_the_next_five_are_on_the_wall_of_the_rules_zone() -> None:
    text = text_of(shown("/functions/billing.send_invoice"))
    assert "Tue 1 Dec, 09:00:00 CET" in text
    assert "Thu 1 Apr, 09:00:00 CEST" in text, "the wall time holds over the change to summer time"
    assert "Europe/Berlin" in text


def test_a_pause_shows_as_one_and_can_be_ended() -> None:
    html = shown("/functions/heartbeat.beat")
    assert 'action="/functions/heartbeat.beat/resume"' in html
    assert "Paused: new jobs wait" in html


@pytest.mark.parametrize(
    ("path", "cancel", "redrive"),
    [
        ("/jobs/dead", False, True),
        ("/jobs/active", True, False),
        ("/jobs/done", False, False),
        ("/jobs/pending", True, False),
    ],
)
def test_a_job_offers_what_can_be_done_with_it(path: str, cancel: bool, redrive: bool) -> None:
    html = shown(path)
    assert (("/cancel" in html), ("/redrive" in html)) == (cancel, redrive)


def test_names_are_percent_encoded_in_addresses() -> None:
    name = "a/b#c?d e%"
    html = pages.render("functions", functions=[{"name": name}])
    assert 'href="/functions/a%2Fb%23c%3Fd%20e%25"' in html


def test_the_same_input_gives_the_same_page() -> None:
    assert shown("/") == shown("/")


# — words —


@pytest.mark.parametrize(
    ("spoken", "text"),
    [
        (words.count(None), "–"),
        (words.count(0), "0"),
        (words.count(9_999), "9,999"),
        (words.count(10_000), "10.0k"),
        (words.count(999_999), "999k"),
        (words.count(1_284_113), "1.2M"),
        (words.count(3e12), "3000B"),
        (words.span(None), "–"),
        (words.span(0), "<1 ms"),
        (words.span(0.4), "<1 ms"),
        (words.span(4.26), "4.2 ms"),
        (words.span(4), "4 ms"),
        (words.span(3000), "3 s"),
        (words.span(999.9), "999 ms"),
        (words.span(9_990), "9.9 s"),
        (words.span(59_999), "59 s"),
        (words.span(252_000), "4m 12s"),
        (words.span(12_000_000), "3h 20m"),
        (words.span(187_200_000), "2d 4h"),
        (words.rate(0), "0/min"),
        (words.rate(0.05), "3/min"),
        (words.rate(0.0004), "<0.1/min"),
        (words.rate(1.25), "1.2/s"),
        (words.rate(212), "212/s"),
        (words.share(0, 0), "–"),
        (words.share(0, 10), "0%"),
        (words.share(1, 10_000), "<0.1%"),
        (words.share(1, 3), "33%"),
        (words.size(0), "0 B"),
        (words.size(512 * 1024 * 1024), "512 MB"),
        (words.size(1_930_000), "1.8 MB"),
        (words.until(-5), "now"),
        (words.until(200), "in 1 s"),
        (words.until(11_001), "in 12 s"),
        (words.ago(300), "just now"),
        (words.ago(61_000), "1 min ago"),
        (words.wall("2026-03-29T01:30:00Z", "Europe/Berlin"), "Sun 29 Mar, 03:30:00 CEST"),
        (words.wall("2026-03-29T01:30:00Z", "No/Where"), "Sun 29 Mar, 01:30:00 UTC"),
        (words.wall("soon"), "–"),
        (words.cause("signal:SEGV"), "killed by signal SEGV"),
        (words.cause("wall:network"), "blocked by the sandbox: network"),
        (words.cause("new-kind"), "new-kind"),
    ],
)
def test_numbers_and_instants_read_well(spoken: str, text: str) -> None:
    assert spoken == text


def test_limits_are_told_in_words() -> None:
    told = dict(
        limits.limits(
            Policy(
                retries=2,
                backoff=Waits((200, 400)),
                fail_on=("ValueError", "Declined"),
                timeout_ms=90_000,
                lane="customer",
                unique=True,
                isolation="job",
            ),
            given.Limits(concurrency=4, lane_rate="5/m", lane_weight=3, by_hand=("lane_rate", "rate")),
        )
    )
    assert told == {
        "Tries": "up to 3",
        "Not tried again after": "ValueError, Declined",
        "Pause between tries": "200 ms, 400 ms",
        "Time limit": "1m 30s",
        "Memory": "512 MB",
        "Fair share by": "customer",
        "At once, on all nodes": "4",
        "Starts": "no limit, set by hand",
        "Starts, each share": "5/m at most, set by hand",
        "Weight of a share": "3",
        "Workers": "0 to one per CPU",
        "Isolation": "each run in a process of its own",
        "Unique by": "the whole payload",
        "Kept in history": "7d",
    }
    assert limits.backoff(Exponential()) == "500 ms, doubling to 10m"
    assert limits.backoff(Linear(10_000, 60_000)) == "10 s more each time, up to 1m"
    assert "Pause between tries" not in dict(limits.limits(Policy(retries=0), given.Limits()))


def test_a_command_is_quoted_for_a_shell() -> None:
    page = msgspec.convert({"name": "it's", "payload_schema": {"type": "string", "default": "a'b"}}, given.FunctionPage)
    assert views.command(page) == "echod invoke 'it'\\''s' --data '\"a'\\''b\"'"


def test_an_authors_own_payload_is_the_one_to_try_with() -> None:
    told = {"name": "m.f", "payload_schema": {"type": "integer"}, "triggers": [{"kind": "queue", "payload": 7}]}
    page = msgspec.convert(told, given.FunctionPage)
    assert views.command(page) == "echod invoke m.f --data 7"
    assert views.row(page).sample == "7"


# — shapes —


def test_a_bar_stands_for_a_minute_and_failures_lie_on_top() -> None:
    drawn = bars([0] * 59 + [8], [0] * 59 + [2], width=120, height=100, gap=1)
    assert drawn.peak == 10
    assert drawn.done == "M118 28h1v72h-1z"
    assert drawn.failed == "M118 10h1v18h-1z"


def test_a_short_or_long_series_is_read_from_its_end() -> None:
    assert bars([3], [0], width=60, height=10, gap=0) == bars([9, *[0] * 59, 3], [0] * 61, width=60, height=10, gap=0)
    assert bars([], [], width=60, height=10, gap=0).peak == 0


def test_a_single_run_among_thousands_is_still_seen() -> None:
    assert "v1.5h" in bars([10_000] + [0] * 58 + [1], [0] * 60, width=60, height=20, gap=0).done


# — the strip —


def strip_of(*due: float, next: tuple[float, ...] = ()) -> strip.Line:
    page = given.FunctionsPage(
        functions=(given.Function(name="a.b", triggers=({"kind": "every"},), next=tuple(sample.at(s) for s in next)),),
        occurrences=tuple(given.SeenOccurrence("a.b", due=sample.at(s), job="JOB1", state="done") for s in due),
    )
    return strip.strip(page, sample.NOW.timestamp() * 1000)[0]


def test_a_due_time_moves_from_the_right_past_now_to_the_left() -> None:
    line = strip_of(-300, -150, 0, next=(120,))
    assert [mark.left for mark in line.marks] == [0, 35.71, 71.43, 100]


def test_a_due_time_that_is_a_job_is_one_mark() -> None:
    line = strip_of(5, next=(5, 25))
    assert [(mark.state, mark.job) for mark in line.marks] == [("done", "JOB1"), ("due", None)]


def test_what_is_too_old_or_too_far_is_left_out() -> None:
    assert strip_of(-301, next=(121,)).marks == ()


# — the timeline —


def line_of(view: dict[str, Any]) -> timeline.Timeline:
    return timeline.timeline(msgspec.convert(view, given.JobPage), sample.NOW.timestamp() * 1000)


def kinds(drawn: timeline.Timeline) -> list[list[str]]:
    return [[span.kind for span in row.spans] for row in drawn.rows]


def test_every_attempt_has_a_row_with_its_pause_wait_and_run() -> None:
    drawn = line_of(sample.DEAD_JOB)
    assert kinds(drawn) == [["delay", "wait", "run"], *[["backoff", "wait", "run"]] * 3]
    assert [row.outcome for row in drawn.rows] == ["retry", "retry", "lost", "dead"]


@pytest.mark.parametrize("path", [path for path, (name, _) in sample.PAGES.items() if name == "job"])
def test_spans_follow_one_another_and_fill_the_width(path: str) -> None:
    spans = [span for row in line_of(sample.PAGES[path][1]).rows for span in row.spans]
    if not spans:
        assert path == "/jobs/pending"
        return
    edge = 0.0
    for span in spans:
        assert span.left == pytest.approx(edge, abs=0.01)
        edge += span.width
    assert edge == pytest.approx(100, abs=0.1)


def test_a_job_in_hand_ends_with_what_it_does_now() -> None:
    assert kinds(line_of(sample.ACTIVE_JOB))[-1] == ["backoff", "wait", "run"]
    assert kinds(line_of(sample.SCHEDULED_JOB))[-1] == ["backoff"]
    assert kinds(line_of(sample.PENDING_JOB)) == [["wait"]]


def test_two_milliseconds_beside_ten_minutes_are_drawn_wide_enough_to_see() -> None:
    drawn = line_of(sample.job(1, minted=sample.at(-600), history=[sample.run(1, -0.002, 0.002, "done", wait_ms=0)]))
    assert drawn.rows[0].spans[-1].width >= timeline.LEAST - 0.001
    assert sum(span.width for span in drawn.rows[0].spans) == pytest.approx(100, abs=0.01)


def test_a_thousand_attempts_still_fit() -> None:
    history = [sample.run(n, -2000 + n, 0.5, "retry") for n in range(1000)]
    drawn = line_of(sample.job(1, minted=sample.at(-2001), history=history))
    assert sum(span.width for row in drawn.rows for span in row.spans) == pytest.approx(100, abs=1.5)


# — the form —


class Item(msgspec.Struct):
    name: str
    quantity: int = 1


class Order(msgspec.Struct):
    customer: str
    items: list[Item]
    note: str | None = None
    express: bool = False
    weight: float = 0.5
    tags: tuple[str, int] | None = None


class Tree(msgspec.Struct):
    name: str
    children: list[Tree]


class Node(msgspec.Struct):
    name: str
    next: Node | None
    children: dict[str, Node] = {}


class Endless(msgspec.Struct):
    next: Endless


class Point(NamedTuple):
    x: int
    label: str
    at: datetime.datetime


class Card(msgspec.Struct, tag="card"):
    number: str


class Cash(msgspec.Struct, tag="cash"):
    at: datetime.time


class Reviewed(msgspec.Struct):
    """What was offered and refused."""

    naive: datetime.datetime
    local: Annotated[datetime.datetime, Meta(tz=False)]
    aware: Annotated[datetime.datetime, Meta(tz=True)]
    time: datetime.time
    aware_time: Annotated[datetime.time, Meta(tz=True)]
    day: datetime.date
    wait: datetime.timedelta
    price: decimal.Decimal
    id: uuid.UUID
    raw: bytes
    fifth: Annotated[int, Meta(multiple_of=5)]
    half: Annotated[float, Meta(multiple_of=0.5, gt=2)]
    low: Annotated[int, Meta(lt=-3)]
    between: Annotated[float, Meta(gt=0, lt=0.1)]
    within: Annotated[int, Meta(ge=10, le=11)]
    several: Annotated[set[int], Meta(min_length=3)]
    days: Annotated[set[datetime.date], Meta(min_length=2)]
    pairs: Annotated[list[tuple[int, str]], Meta(min_length=2)]
    named: Annotated[dict[str, int], Meta(min_length=2)]
    keyed: Annotated[dict[Annotated[str, Meta(min_length=8)], Point], Meta(min_length=2)]
    colours: Annotated[frozenset[Literal["red", "blue"]], Meta(min_length=2)]
    point: Point
    paid: Card | Cash | None
    text: Annotated[str, Meta(min_length=20, max_length=21)]
    anything: Any


SAMPLED = [
    *[Order, Tree, Item, dict[str, int], list[Item], str, int, float, bool, int | str, None, Node, Point, Reviewed],
    *[kind for kind in get_type_hints(Reviewed, include_extras=True).values() if kind is not Any],
    *[Card | Cash, tuple[int, str], list[Tree], dict[str, Tree] | None, Any],
]


@pytest.mark.parametrize("type", SAMPLED)
@pytest.mark.parametrize("is_short", [False, True])
def test_a_sample_fits_the_type_it_was_made_for(type: Any, is_short: bool) -> None:
    given_schema = json_schema(type, "validation")
    payload = schema.sample(given_schema, is_short=is_short)
    assert payload is not UNSET
    codec.convert(payload, type)
    jsonschema_rs.validate(given_schema, payload)
    assert len(json.dumps(payload)) < 2_000


@pytest.mark.parametrize("type", [Endless, Annotated[str, Meta(pattern="^[A-Z]{3}-[0-9]+$")], list[Endless] | Endless])
def test_no_sample_is_offered_rather_than_one_that_does_not_fit(type: Any) -> None:
    given_schema = json_schema(type, "validation")
    payload = schema.sample(given_schema)
    assert payload is UNSET or jsonschema_rs.is_valid(given_schema, payload)
    holder = msgspec.defstruct("Holder", [("it", type), ("n", int)])
    by_name = {field.name: field.value for field in schema.fields(json_schema(holder, "validation"))}
    assert by_name["n"] == "1"
    assert by_name["it"] == ("" if payload is UNSET else "[]")


def test_the_form_has_a_field_for_each_property() -> None:
    found = {field.name: (field.kind, field.required, field.value) for field in schema.fields(sample.INVOICE)}
    assert found == {
        "customer": ("text", True, "acme"),
        "amount_cents": ("integer", True, "1"),
        "currency": ("select", False, '"EUR"'),
        "due": ("text", False, "2026-01-01"),
        "send_copy": ("checkbox", False, "false"),
        "note": ("text", False, ""),
        "items": ("json", True, '[{"name":"Ada","quantity":1}]'),
    }


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Address(pydantic.BaseModel):
    street: str
    zip: str | None = None


class Booking(pydantic.BaseModel):
    at: datetime.datetime
    address: Address
    nights: int = pydantic.Field(gt=0, description="How many")
    ratio: float = pydantic.Field(gt=0, lt=0.1)
    colour: Colour = Colour.BLUE
    other: Colour | None
    kind: Literal["room"]
    note: str | None = None
    total: decimal.Decimal
    tags: set[str] = set()


@pytest.mark.parametrize("type", [Booking, list[Booking], dict[str, Booking], Booking | None])
def test_a_sample_fits_the_model_it_was_made_for(type: Any) -> None:
    given_schema = json_schema(type, "validation")
    payload = schema.sample(given_schema)
    jsonschema_rs.validate(given_schema, payload)
    codec.convert(payload, type)


@pytest.mark.parametrize("type", [Booking, Booking | None])
def test_the_form_of_a_model_has_its_choices_and_bounds(type: Any) -> None:
    found = {field.name: field for field in schema.fields(json_schema(type, "validation"))}
    assert {name: (field.kind, field.required, field.value) for name, field in found.items()} == {
        "at": ("text", True, "2026-01-01T09:00:00Z"),
        "address": ("json", True, '{"street":"street","zip":null}'),
        "nights": ("integer", True, "1"),
        "ratio": ("number", True, "0.05"),
        "colour": ("select", False, '"blue"'),
        "other": ("select", True, '"red"'),
        "kind": ("select", True, '"room"'),
        "note": ("text", False, ""),
        "total": ("number", True, "1.5"),
        "tags": ("json", False, "[]"),
    }
    assert found["nights"].hint == "How many"
    assert found["colour"].options == (("red", '"red"'), ("blue", '"blue"'))
    assert found["other"].options == (("red", '"red"'), ("blue", '"blue"'), ("null", "null"))
    assert found["kind"].options == (("room", '"room"'),)


@pytest.mark.parametrize(
    "odd", [None, True, [], "x", {"$ref": "#/$defs/None"}, {"properties": {"a": True}}, {"required": 3}]
)
def test_an_odd_schema_never_breaks_a_page(odd: Any) -> None:
    assert "Payload, as JSON" in pages.render("function", name="a.b", payload_schema=odd)


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    name: str


def test_a_payload_of_several_kinds_has_no_form_that_could_send_one_of_them_alone() -> None:
    for kind in (Cat | Dog, Cat | Dog | None):
        schema_of_it = json_schema(kind, "validation")
        assert schema.fields(schema_of_it) == ()
        assert schema.sample(schema_of_it) == {"type": "cat", "lives": 1}
    assert [field.name for field in schema.fields(json_schema(Cat | None, "validation"))] == ["type", "lives"]


def test_json_keeps_every_character_and_marks_its_kinds() -> None:
    value = {"a<b": ["x & y", -1.5e-3, None, True], "größe": "日本"}
    html = str(pretty(value))
    assert re.sub(r"<[^>]+>", "", html) == plain(value).replace("&", "&amp;").replace("<", "&lt;").replace('"', "&#34;")
    assert '<span class="j-key">&#34;a&lt;b&#34;</span>' in html
    assert '<span class="j-number">-0.0015</span>' in html


def test_a_mebibyte_of_json_is_cut_before_it_is_coloured() -> None:
    for value in ([1] * 400_000, "x" * 1_000_000, {str(n): n for n in range(100_000)}):
        html = str(pretty(value))
        assert "cut here" in html
        assert len(re.sub(r"<[^>]+>", "", html)) < LIMIT * 6 + 100  # a quotation mark is five characters of HTML
    assert "cut here" not in str(pretty([1] * 100))
