import msgspec
import pytest

from echod.errors import Refused
from echod.policy.recurring import Standing, identified, next_due, restored, rule_of, stored, text_of, zone_of
from echofn.manifest import CronTrigger, EveryTrigger, Recurring

CRON = CronTrigger("", "0 6 * * mon", "Europe/Berlin", line=12)
EVERY = EveryTrigger("", 20_000, anchor_ms=5_000, line=12)


@pytest.mark.parametrize(
    ("trigger", "name"),
    [
        (CRON, "0 6 * * 1 Europe/Berlin"),
        (CronTrigger("", "@daily"), "0 0 * * *"),
        (EVERY, "every 20s from 5s"),
        (CronTrigger("weekly", "0 6 * * mon"), "weekly"),
    ],
)
def test_a_recurrence_is_named_by_its_author_or_by_rule_and_zone(trigger: Recurring, name: str) -> None:
    assert identified(trigger).name == name


def test_two_spellings_of_one_rule_have_one_name() -> None:
    assert identified(CronTrigger("", "0 6 * * 1")).name == identified(CronTrigger("", "00 06 * * MON")).name


def test_a_row_keeps_all_but_the_line() -> None:
    for trigger in (CRON, EVERY):
        assert restored(stored(trigger)) == msgspec.structs.replace(trigger, line=0)
    assert stored(CRON) == stored(msgspec.structs.replace(CRON, line=99))


def test_stored_bytes_stay_readable() -> None:  # golden: rows outlive the version that wrote them
    assert stored(CronTrigger("n", "0 6 * * mon", missed="all", cap=3)) == bytes.fromhex(
        "85a474797065a463726f6ea46e616d65a16ea472756c65ab302036202a202a206d6f6ea66d6973736564a3616c6ca363617003"
    )
    assert restored(bytes.fromhex("83a474797065a56576657279a46e616d65a16ea9706572696f645f6d73cd4e20")) == EveryTrigger(
        "n", 20_000
    )


def test_pages_show_the_rule_as_written() -> None:
    assert (text_of(CRON), zone_of(CRON)) == ("0 6 * * mon", "Europe/Berlin")
    assert (text_of(EVERY), zone_of(EVERY)) == ("every 20s from 5s", "UTC")


@pytest.mark.parametrize(
    "trigger", [CronTrigger("", "*/90 * * * *"), CronTrigger("", "* * * * *", "Mars"), EveryTrigger("", 10)]
)
def test_a_trigger_that_cannot_be_is_refused_named_or_not(trigger: Recurring) -> None:
    for each in (trigger, msgspec.structs.replace(trigger, name="given")):
        with pytest.raises(Refused):
            identified(each)
        with pytest.raises(Refused):
            rule_of(each)


HOUR = 3_600_000
DAY = 24 * HOUR  # of the epoch: hours are counted from its second day


@pytest.mark.parametrize(
    ("held", "since", "expected"),
    [
        pytest.param(None, 12.1, 12.25, id="a new one begins with its version"),
        pytest.param((13, 12), 12.6, 12.25, id="changed: from the last due"),
        pytest.param((13, 12), 11.1, 12.25, id="changed after the clock was set back: none twice"),
        pytest.param((14, None), 13.1, 13.25, id="changed before it was ever due"),
        pytest.param((13, None), 13.1, 13.0, id="changed when its first had come and has no outcome"),
        pytest.param((13, 12, 12.6), 15.1, 15.25, id="back: what came while it was gone is not its own"),
        pytest.param((13, 12, 13.1), 15.1, 12.25, id="back: one had come before it went"),
        pytest.param((13, None, 13.1), 15.1, 13.0, id="back: its first had come before it went"),
        pytest.param((17, 16, 16.1), 15.1, 16.25, id="back after the clock was set back: none twice"),
        pytest.param((None, 12, 16.1), 15.1, 15.25, id="back: nothing was to follow"),
    ],
)
def test_where_a_rule_goes_on_that_is_written_over_another(
    held: tuple[float | None, ...] | None, since: float, expected: float
) -> None:
    """Each instant has one outcome: of what stands, `due` is the first without and `last` the newest with."""

    def ms(hours: float | None) -> int | None:
        return None if hours is None else DAY + round(hours * HOUR)

    standing = Standing(*map(ms, held)) if held else None  # type: ignore[arg-type]
    assert next_due(rule_of(EveryTrigger("", HOUR // 4)), ms(since) or 0, standing) == ms(expected)
