"""The control plane's own checks of a discovered folder."""

from __future__ import annotations

import msgspec

from echod.deploy.checks import checked
from echofn.manifest import (
    CronTrigger,
    EveryTrigger,
    Function,
    LoadError,
    Manifest,
    Policy,
    QueueTrigger,
    Trigger,
    WebhookTrigger,
)


def function_of(name: str, *triggers: Trigger, file: str = "shop.py", line: int = 1) -> Function:
    module, _, attribute = name.rpartition(".")
    return Function(name, module, attribute, file, line, Policy(), triggers or (QueueTrigger(),))


def manifest_of(*functions: Function, errors: tuple[LoadError, ...] = ()) -> Manifest:
    return Manifest("functions", functions, errors)


def test_a_recurrence_without_a_name_takes_its_canonical_rule_and_zone() -> None:
    found = checked(manifest_of(function_of("shop.report", CronTrigger("", "0 6 * * MON", "Europe/Berlin", line=3))))
    [function] = found.functions
    [trigger] = function.triggers
    assert isinstance(trigger, CronTrigger)
    assert trigger.name.endswith(" Europe/Berlin")
    assert trigger.rule == "0 6 * * MON"
    assert found.errors == ()


def test_a_bad_rule_is_refused_at_its_line_and_hurts_no_other_function() -> None:
    found = checked(
        manifest_of(
            function_of("shop.good", CronTrigger("", "0 6 * * *")),
            function_of("shop.never", CronTrigger("", "0 0 30 2 *", line=17)),
            function_of("shop.lost", CronTrigger("", "0 6 * * *", "America/New_Yrok", line=23)),
        )
    )
    assert [function.name for function in found.functions] == ["shop.good"]
    assert [(error.file, error.line, error.kind) for error in found.errors] == [
        ("shop.py", 17, "refused"),
        ("shop.py", 23, "refused"),
    ]
    assert "America/New_Yrok" in found.errors[1].message


def test_a_jitter_beyond_the_next_instant_is_refused_at_its_line() -> None:
    found = checked(manifest_of(function_of("shop.bad", EveryTrigger("", 60_000, line=9, jitter_ms=60_000))))
    assert [(error.line, error.message) for error in found.errors] == [
        (9, "jitter: expected less than 1m, the rule's shortest period, got 1m; shorten it")
    ]


def test_every_fault_of_a_function_is_told_at_once() -> None:
    bad = function_of("shop.bad", CronTrigger("", "* * * *", line=4), CronTrigger("", "*/90 * * * *", line=5))
    assert [error.line for error in checked(manifest_of(bad)).errors] == [4, 5]


def test_the_second_of_two_functions_of_one_name_is_refused_and_names_the_first() -> None:
    first = function_of("send", file="a.py", line=3)
    second = function_of("send", file="b.py", line=8)
    found = checked(manifest_of(second, first))
    assert [function.file for function in found.functions] == ["a.py"]
    [error] = found.errors
    assert (error.file, error.line) == ("b.py", 8)
    assert "a.py:3" in error.message


def test_a_name_stays_with_whom_it_was_and_the_newcomer_is_refused() -> None:
    holder, newcomer = function_of("send", file="z.py", line=3), function_of("send", file="a.py", line=8)
    found = checked(manifest_of(newcomer, holder), before=manifest_of(holder))
    assert [function.file for function in found.functions] == ["z.py"]
    assert [(error.file, error.line) for error in found.errors] == [("a.py", 8)]


def test_two_equal_schedules_on_a_function_are_refused_and_named_ones_are_not() -> None:
    twice = function_of("shop.twice", EveryTrigger("", 20_000, line=5), EveryTrigger("", 20_000, line=6))
    named = function_of("shop.named", EveryTrigger("a", 20_000, line=5), EveryTrigger("b", 20_000, line=6))
    found = checked(manifest_of(twice, named))
    assert [function.name for function in found.functions] == ["shop.named"]
    [error] = found.errors
    assert error.line == 6
    assert "line 5" in error.message


def test_errors_come_by_place_and_each_once() -> None:
    late, early = LoadError("z", "z.py", "x", 1), LoadError("a", "a.py", "x", None, kind="hang")
    assert checked(manifest_of(errors=(late, early, late))).errors == (early, late)


def test_rules_that_only_look_different_are_one_and_named_alike() -> None:
    equal = function_of(
        "shop.twice",
        CronTrigger("0 6 * * MON UTC", "0 6 * * MON", line=4),
        CronTrigger("0 6 * * 1 UTC", "0 6 * * 1", line=5),
    )
    period = function_of("shop.beat", EveryTrigger("every 20s", 20_000))
    found = checked(manifest_of(equal, period))
    assert [error.line for error in found.errors] == [5]
    [trigger] = found.functions[0].triggers
    assert isinstance(trigger, EveryTrigger)
    assert trigger.name == "every 20s"


def test_a_path_that_is_none_is_refused() -> None:
    bad = msgspec.structs.replace(function_of("shop.bad", line=7), policy=Policy(lane="a..b"))
    [error] = checked(manifest_of(bad)).errors
    assert error.line == 7
    assert error.message.startswith("lane: ")


def hook(path: str, line: int, **options: str) -> WebhookTrigger:
    return WebhookTrigger(path, "github", ("GH",), line=line, **options)


def test_of_two_webhooks_on_one_path_the_later_is_refused_at_its_line() -> None:
    found = checked(
        manifest_of(
            function_of("b.second", hook("/hooks/{other}/x", 7), file="b.py"),
            function_of("a.first", hook("/hooks/{tenant}/x", 3), file="a.py"),
            function_of("c.third", hook("/hooks/plain/x", 5), hook("/hooks/plain", 6), file="c.py"),
            function_of("d.twice", hook("/hooks/d", 1), hook("/hooks/d", 2), file="d.py"),
        )
    )
    assert [function.name for function in found.functions] == ["a.first", "c.third"]
    assert [(error.file, error.line) for error in found.errors] == [("b.py", 7), ("d.py", 2)]
    assert "got that of a.first (a.py:3)" in found.errors[0].message


def test_a_path_of_a_refused_function_is_free() -> None:
    bad = function_of("a.bad", hook("/hooks/x", 3), CronTrigger("", "* * * *", line=4), file="a.py")
    found = checked(manifest_of(bad, function_of("b.good", hook("/hooks/x", 7), file="b.py")))
    assert [function.name for function in found.functions] == ["b.good"]


def test_a_webhook_at_an_address_of_echods_own_is_refused() -> None:
    paths = ["/jobs", "/functions/x", "/healthz", "/static/x", "/{any}/x", "/login"]
    found = checked(manifest_of(*(function_of(f"shop.f{n}", hook(path, n + 1)) for n, path in enumerate(paths))))
    assert [error.line for error in found.errors] == [1, 2, 3, 4, 5, 6]
    assert found.functions == ()


def test_a_path_into_the_request_that_names_nothing_is_refused_at_its_annotation() -> None:
    found = checked(manifest_of(function_of("shop.f", hook("/hooks/x", 9, lane="json..a", unique="json.[]"))))
    assert [(error.line, error.message.partition(":")[0]) for error in found.errors] == [(9, "lane"), (9, "unique")]
