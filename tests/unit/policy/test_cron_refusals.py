"""What is no rule, no zone, or could never fire is refused at once, with what was expected."""

import string
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echod.errors import Refused
from echod.policy.cron import parse

REFUSED = {
    "it can never fire": [
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "* * 31 2 *",
        "0 0 30,31 2 *",
        "0 0 31 2 */2",
        "0 0 * 2 */1#1",
    ],
    "a step larger than the field": [
        "*/90 * * * *",
        "*/60 * * * *",
        "0/9999 * * * *",
        "0 */24 * * *",
        "0 0 */31 * *",
        "0 0 1 */12 *",
        "0 0 * * */7",
        "*/60 * * * * *",
        "10-20/11 * * * *",
    ],
    "a step that is none": ["*/0 * * * *", "*/-1 * * * *", "*/ * * * *", "*/x * * * *", "/5 * * * *", "*/5/5 * * * *"],
    "the number of fields": ["", " ", "*", "* * * *", "* * * * * * *", "every minute", "0 0 1 1 * 2026 *"],
    "a value out of range": [
        "60 * * * *",
        "0 24 * * *",
        "0 0 0 * *",
        "0 0 32 * *",
        "0 0 1 13 *",
        "0 0 1 0 *",
        "0 0 * * 8",
    ],
    "no number": ["0.5 * * * *", "+5 * * * *", "-5 * * * *", "1e1 * * * *", "0x5 * * * *", "1_0 * * * *", "5a * * * *"],
    "digits of other scripts": ["\u0665 * * * *", "\uff15 * * * *", "0 0 * * \u0665L", "\u00b2 * * * *"],
    "blanks that are no space": ["0\t0 * * *", "0 0 * *\n*", "0\u00a00 * * *", "0 0 * * *\x00"],
    "an empty item": ["1,,2 * * * *", ",1 * * * *", "1, * * * *", ", * * * *", "0 0 1,,L * *"],
    "a range that is none": [
        "5-1 * * * *",
        "1- * * * *",
        "-1 * * * *",
        "1-2-3 * * * *",
        "*-5 * * * *",
        "0 0 * * fri-sun",
    ],
    "names in other fields": [
        "jan * * * *",
        "0 0 mon * *",
        "0 0 * mon *",
        "0 0 * * jan",
        "0 0 * foo *",
        "0 0 * * monday",
    ],
    "L, W and # where they mean nothing": [
        "L * * * *",
        "0 0 15W * *",
        "0 0 31W * *",
        "0 0 L-3 * *",
        "0 0 L/2 * *",
        "0 0 WL * *",
        "0 0 * L *",
        "0 0 * * L",
        "0 0 * * 8#1",
        "0 0 * * 5#0",
        "0 0 * * 5#6",
        "0 0 * * 5#",
        "0 0 * * #5",
        "0 0 * * 5#1-2",
        "0 0 * * 5L/2",
        "0 0 5#1 * *",
    ],
    "an unknown alias": ["@reboot", "@every 5m", "@Hourly", "@", "@hourly *"],
    "Quartz": ["0 0 ? * *", "0 0 * * ?", "0 0 12 ? * MON"],
}


@pytest.mark.parametrize("rule", [rule for rules in REFUSED.values() for rule in rules])
def test_what_is_no_rule_is_refused_with_what_was_expected(rule: str) -> None:
    with pytest.raises(Refused, match=r"expected .*, got "):
        parse(rule)


@pytest.mark.parametrize(
    "rule", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "* * 31 2 *", "*/5 2 * 3 0L", "," * 10_000, "9" * 10_000]
)
def test_a_refusal_is_quick(rule: str) -> None:
    started = process_time()
    with pytest.raises(Refused) as caught:
        parse(rule, "Europe/Berlin")
    assert process_time() - started < 0.5  # ten times what it takes
    assert len(str(caught.value)) < 300


def test_a_time_that_lies_in_the_gap_of_every_year_is_refused_in_that_zone_only() -> None:
    with pytest.raises(Refused, match="none of its times in Europe/Berlin"):
        parse("*/5 2 * 3 0L", "Europe/Berlin")
    parse("*/5 2 * 3 0L", "UTC")
    parse("5 2 * 3 0L", "Europe/Berlin")  # a fixed time is due at the gap's end


@pytest.mark.parametrize(
    ("tz", "hint"),
    [
        ("America/New_Yrok", "did you mean 'America/New_York'"),
        ("Americas/Vancouver", "did you mean 'America/Vancouver'"),
        ("europe/berlin", "did you mean 'Europe/Berlin'"),
        ("utc", "did you mean 'UTC'"),
        ("", "got ''"),
        ("local", "got 'local'"),
        ("localtime", "got 'localtime'"),
        ("posix/UTC", "got 'posix/UTC'"),
        ("Europe", "got 'Europe'"),
        ("../UTC", "got '../UTC'"),
        ("/etc/localtime", "got '/etc/localtime'"),
        ("UTC\x00", "got 'UTC"),
        ("+02:00", "got '\\+02:00'"),
        ("x" * 10_000, "got 'xxx"),
    ],
)
def test_an_unknown_zone_is_refused_and_never_taken_for_another(tz: str, hint: str) -> None:
    with pytest.raises(Refused, match="expected a time zone") as caught:
        parse("0 0 * * *", tz)
    caught.match(hint)
    assert len(str(caught.value)) < 300


@settings(max_examples=500, deadline=None)
@given(st.text(alphabet=string.digits + "*,-/#LWlw @adjmonsunfeb.+\t\u0665", max_size=40))
def test_any_text_is_taken_or_refused_and_what_is_taken_can_fire(rule: str) -> None:
    try:
        parsed = parse(rule, "America/New_York")
    except Refused:
        return
    assert parsed.next_after(1_800_000_000_000) > 1_800_000_000_000
    assert parse(parsed.canonical, "America/New_York").canonical == parsed.canonical
