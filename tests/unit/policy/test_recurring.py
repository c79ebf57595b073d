import msgspec
import pytest

from echod.errors import Refused
from echod.policy.recurring import identified, restored, rule_of, stored, text_of, zone_of
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
