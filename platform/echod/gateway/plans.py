"""What a switch changes, as JSON and in sentences: the same for the command line and the versions page."""

from __future__ import annotations

from echod.gateway.views import View, instant_or_none
from echod.policy.plan import Gone, Option, Plan, Schedule, option_text


def plan_view(plan: Plan) -> View:
    """A plan; `lines` tells it in words, "+" what begins, "~" what changes, "-" what ends."""
    return {
        "functions": {
            "new": list(plan.new),
            "changed": [{"name": each.name, "what": list(each.what)} for each in plan.changed],
            "gone": [{"name": each.name, "waiting": each.waiting} for each in plan.gone],
        },
        "schedules": {
            "start": [_schedule(each) for each in plan.start],
            "change": [{**_schedule(each.now), "was": _schedule(each.was)} for each in plan.change],
            "end": [_schedule(each) for each in plan.end],
            "options": [_option(each) for each in plan.rules],
        },
        "limits": [_option(each) for each in plan.limits],
        "walls": [_option(each) for each in plan.walls],
        "lines": [{"mark": mark, "text": text} for mark, text in lines(plan)],
    }


def lines(plan: Plan) -> list[tuple[str, str]]:
    """Mark and sentence of each change."""
    found = (
        []
        if plan.unknown is None
        else [("~", f"all is shown as new, for what is served now is unknown: {plan.unknown}")]
    )
    found += [("+", f"function {name}") for name in plan.new]
    found += [("~", f"function {each.name}: {', '.join(each.what)}") for each in plan.changed]
    found += [("-", f"function {each.name}{_orphans(each)}") for each in plan.gone]
    found += [("+", f"schedule {each.id}: {_rule(each)}{_due(each, ', first due')}") for each in plan.start]
    for each in plan.change:
        rules = f"{_rule(each.was)} → {_rule(each.now)}" if _rule(each.was) != _rule(each.now) else _rule(each.now)
        was = "" if each.was.paused else _due(each.was, ", was due")  # a pause stays: said once
        dues = was + _due(each.now, ", is due")
        found.append(("~", f"schedule {each.now.id}: {rules}{dues}"))
    found += [("-", f"schedule {each.id}: {_rule(each)}{_due(each, ', would have been due')}") for each in plan.end]
    found += [("~", f"schedule {each.function}: {_text(each)}") for each in plan.rules]
    found += [("~", f"limit of {each.function}: {_text(each)}") for each in plan.limits]
    return found + [("~", f"wall of {each.function}: {_text(each)}") for each in plan.walls]


def _rule(schedule: Schedule) -> str:
    return schedule.rule if schedule.tz == "UTC" else f"{schedule.rule} {schedule.tz}"


def _due(schedule: Schedule, words: str) -> str:
    if schedule.paused:
        return ", paused"
    due = instant_or_none(schedule.next_ms)
    return f"{words} {due}" if due else ""


def _orphans(gone: Gone) -> str:
    if not gone.waiting:
        return ""
    jobs = "1 waiting job stays" if gone.waiting == 1 else f"{gone.waiting} waiting jobs stay"
    return f": {jobs} until a version has it again"


def _text(option: Option) -> str:
    name, was = option_text(option.name, option.was)
    return f"{name} {was} → {option_text(option.name, option.now)[1]}"


def _schedule(schedule: Schedule) -> View:
    due = instant_or_none(schedule.next_ms)
    return {"id": schedule.id, "rule": schedule.rule, "tz": schedule.tz, "next": due, "paused": schedule.paused}


def _option(option: Option) -> View:
    return {"function": option.function, "option": option.name, "was": option.was, "now": option.now}
