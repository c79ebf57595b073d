"""What each script may answer, read from its header, and what a test has seen of it.

A kind of reply is an alternative that RETURNS names (a word, or the number that a reply begins with), one of a closed
set of words in it, or a code of ERRORS; `answered` where there is one form alone. SHOWN names a test for each: it fails
when it is over and has not seen that reply.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from echod.bus import scripts
from echod.bus.link import Link
from echod.bus.wire import Argument
from echod.errors import EchodError

PER = re.compile(r"\[per \w+: (.*)\]")
SET = re.compile(r"(?:(\w+): )?\b((?:[a-z_]+\|)+[a-z]+)\b")


def declared(verb: str) -> set[str]:
    """Every kind that the header of `verb` names."""
    header, _ = scripts.parse(scripts.read(verb))
    return _returned(header.returns) | {error.partition(" ")[0] for error in header.errors}


def _returned(text: str) -> set[str]:
    text = re.sub(r" \([^)]*\)", "", text)
    if text.endswith("empty: no such recurrence"):
        return {"answered", "empty"}
    if found := PER.fullmatch(text):
        text = found[1]
    if " | " in text:
        return {_head(each) for each in text.split(" | ")}
    kinds = {"answered"}
    for field, words in SET.findall(text):
        if words.endswith("|absent"):
            kinds.add("rebuilt")
        elif not re.fullmatch(r"\w+\|nil", words):
            kinds |= {f"{field or 'place'} {word}" for word in words.split("|") if word != "nil"}
    return kinds


def _head(alternative: str) -> str:
    found = re.match(r"\[?(\w+)", alternative)
    assert found, alternative
    return found[1]


def told(verb: str, reply: Any) -> set[str]:
    """The kinds that one reply is of."""
    match verb, reply:
        case "mint" | "occur", list():
            return {str(each[0] if isinstance(each, list) else each) for each in reply}
        case "run_now", list():
            return {str(reply[0])}
        case "backfill", list():
            return {"answered" if reply else "empty"}
        case "claim" | "settle", list():
            kinds = {"answered"} | ({"rebuilt"} if len(reply) > 6 else set())
            return kinds | ({f"blocked {reply[3].decode()}"} if reply[3] else set())
        case "lanes", list():
            return {"answered"} | {f"place {each[2].decode()}" for each in reply}
        case "stats", list():
            return {"answered"} | ({f"capped {reply[9].decode()}"} if reply[9] else set())
        case _, bytes() if " | " in scripts.parse(scripts.read(verb))[0].returns:
            return {reply.decode()}
        case _:
            return {"answered"}


class Recorder:
    """Stands before the links' scripts: what they answered, as (verb, kind)."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Until the patch is undone."""
        script = Link.script

        async def recorded(
            link: Link, called: scripts.Script, keys: tuple[str, str], *arguments: list[Argument] | None
        ) -> Any:
            verb = called.name.removesuffix("!")
            try:
                reply = await script(link, called, keys, *arguments)  # type: ignore[arg-type]
            except EchodError as error:
                self.seen |= {(verb, kind) for kind in declared(verb) if str(error).startswith(f"{kind} ")}
                raise
            self.seen |= {(verb, kind) for kind in told(verb, reply)}
            return reply

        patch.setattr(Link, "script", recorded)


def shown_by(file: str, test: str) -> set[tuple[str, str]]:
    """What the test `test` of `test_<file>.py` must see."""
    name = f"{file}: {test.removeprefix('test_')}"
    return {(verb, kind) for verb, kinds in SHOWN.items() for kind, shown in kinds.items() if shown == name}


SHOWN: dict[str, dict[str, str]] = {  # verb, kind: the test that must have seen it when it is over
    "activate": {
        "UNKNOWN": "operating: a_version_that_lacks_a_piece_is_not_switched_to",
        "answered": "operating: a_version_is_stored_in_pieces_and_switched_to_by_one_write",
    },
    "backfill": {
        "answered": "recurrences: a_backfill_mints_each_instant_once_and_of_no_unknown_rule",
        "empty": "recurrences: a_backfill_mints_each_instant_once_and_of_no_unknown_rule",
    },
    "beat": {
        "LEASE": "nodes: a_beat_after_another_took_the_number_leases_a_new_one",
        "answered": "nodes: an_idle_node_costs_two_calls_a_beat_at_most",
    },
    "cancel": {
        "cancelled": "operating: a_pending_job_is_cancelled_at_once",
        "cancelling": "operating: a_running_job_is_asked_to_stop_and_all_hear_of_it",
        "ended": "operating: what_ended_or_never_was_cannot_be_cancelled",
        "unknown": "operating: what_ended_or_never_was_cannot_be_cancelled",
    },
    "check": {
        "answered": "operating: a_check_finds_what_is_not_in_its_one_place",
    },
    "claim": {
        "answered": "claim: a_claim_for_n_serves_lanes_in_turn",
        "blocked capped": "limits: so_many_start_in_a_window_that_begins_with_the_first",
        "blocked empty": "claim: an_empty_queue_says_empty",
        "blocked full": "full: a_queue_whose_children_cannot_be_minted_rests_and_others_go_on",
        "blocked paused": "claim: a_paused_queue_says_paused_and_serves_after_resume",
        "rebuilt": "claim: a_claim_sent_again_gets_the_same_jobs",
    },
    "clock": {
        "answered": "clock: it_moves_forward_only_and_the_same_move_again_moves_nothing",
    },
    "configure": {
        "ok": "recurrences: what_is_registered_at_run_time_is_of_no_generation",
        "older": "recurrences: an_older_generation_is_refused",
    },
    "drain": {
        "answered": "bulk: a_drain_sent_again_answers_the_same_and_counts_once",
    },
    "extend": {
        "answered": "settle: extend_renews_and_tells_what_is_lost_and_what_shall_stop",
    },
    "jobs": {
        "answered": "operating: a_list_is_filtered_by_state_and_lane",
    },
    "join": {
        "NONODE": "nodes: no_number_free_is_a_clear_error",
        "answered": "nodes: nodes_get_numbers_of_their_own_and_keep_them_when_they_join_again",
    },
    "lanes": {
        "answered": "operating: lanes_with_work_are_listed_as_people_wrote_them",
        "place held": "operating: lanes_with_work_are_listed_as_people_wrote_them",
        "place idle": "limits: lanes_of_any_name_are_limited_and_shown_as_written[{a}:b]",
        "place later": "limits: lanes_tell_why_they_wait_and_for_how_long",
        "place ring": "operating: lanes_with_work_are_listed_as_people_wrote_them",
    },
    "leave": {
        "answered": "nodes: ids_are_made_under_a_lease_only",
    },
    "listen": {
        "ended": "operating: who_listens_is_told_of_an_end_whoever_minted_the_job",
        "listening": "operating: at_most_eight_listen_to_a_job_the_last_that_asked",
        "unknown": "operating: who_listens_is_told_of_an_end_whoever_minted_the_job",
    },
    "log": {
        "answered": "operating: a_log_comes_back_line_by_line",
    },
    "mint": {
        "1": "mint: a_mint_sent_again_changes_nothing",
        "2": "mint: a_unique_key_answers_its_owner_until_the_owner_is_done",
        "3": "mint: a_unique_key_with_another_body_is_a_conflict",
        "4": "mint: max_pending_refuses_mints_from_outside_only",
        "5": "mint: another_callers_id_is_taken",
        "6": "mint: a_resend_long_after_is_stale_where_its_row_is_gone",
        "MALFORMED": "mint: a_mint_that_is_malformed_is_refused_before_anything_is_written[8-7-parent]",
    },
    "move": {
        "answered": "bulk: a_move_sent_again_answers_the_same",
    },
    "occur": {
        "1": "recurrences: an_occurrence_is_minted_once_and_answered_again",
        "2": "recurrences: an_occurrence_is_minted_once_and_answered_again",
        "3": "recurrences: a_drop_advances_with_a_counted_reason",
        "4": "recurrences: a_stale_question_mints_nothing[due]",
        "5": "recurrences: many_occurrences_of_one_call_have_each_its_own_verdict",
        "6": "recurrences: what_is_due_after_a_switch_waits_until_the_row_is_of_the_new_version",
        "7": "recurrences: a_malformed_occurrence_leaves_the_others_of_its_call_alone[revision]",
    },
    "pick": {
        "answered": "bulk: jobs_are_picked_by_state_and_lane_in_the_order_of_their_place",
    },
    "progress": {
        "ok": "settle: progress_is_the_holders_to_tell",
        "stale": "settle: progress_is_the_holders_to_tell",
    },
    "purge": {
        "answered": "bulk: a_purge_sent_again_answers_the_same",
    },
    "recur": {
        "changed": "recurrences: a_recurrence_is_created_then_the_same_then_changed",
        "created": "recurrences: a_recurrence_is_created_then_the_same_then_changed",
        "moved": "recurrences: a_next_that_was_computed_from_another_last_due_is_refused",
        "older": "recurrences: an_older_generation_is_refused",
        "same": "recurrences: a_recurrence_is_created_then_the_same_then_changed",
        "taken": "recurrences: a_name_of_code_is_not_taken_at_run_time",
    },
    "recurrence": {
        "ok": "recurrences: a_paused_rule_is_silent_and_resumes_from_the_instant_given",
        "stale": "recurrences: a_resume_computed_by_a_rule_that_was_changed_writes_nothing",
        "unknown": "recurrences: a_parked_rule_shows_its_error_and_is_tried_again_in_a_minute",
    },
    "redrive": {
        "answered": "bulk: a_redrive_sent_again_answers_the_same",
    },
    "relieve": {
        "answered": "full: archives_give_way_until_jobs_can_be_minted_again",
    },
    "ring": {
        "answered": "nodes: a_bell_that_is_handed_on_rings_once",
    },
    "run_now": {
        "1": "recurrences: run_now_mints_by_hand_and_does_not_move_the_due",
        "4": "recurrences: run_now_mints_by_hand_and_does_not_move_the_due",
        "5": "recurrences: run_now_mints_by_hand_and_does_not_move_the_due",
    },
    "set": {
        "WHAT": "limits: a_setting_that_is_not_there_is_refused_and_changes_nothing",
        "answered": "limits: a_setting_sent_again_changes_nothing_more",
    },
    "settle": {
        "MALFORMED": "settle: a_malformed_verdict_settles_none_of_its_call[done-0-ended-kind]",
        "answered": "settle: a_settle_claims_the_next_in_the_same_step",
        "blocked capped": "limits: a_limit_below_what_runs_takes_nothing_back",
        "blocked empty": "settle: a_settle_that_asks_for_more_says_why_there_is_nothing",
        "blocked full": "full: a_queue_whose_children_cannot_be_minted_rests_and_others_go_on",
        "blocked paused": "settle: a_settle_that_asks_for_more_says_why_there_is_nothing",
        "rebuilt": "settle: a_settle_sent_again_gets_its_reply_and_changes_nothing",
    },
    "stats": {
        "answered": "operating: stats_count_by_state",
        "capped concurrency": "limits: stats_tell_which_limit_stands_against_a_start",
        "capped rate": "limits: stats_tell_which_limit_stands_against_a_start",
    },
    "tick": {
        "answered": "tick: due_jobs_go_to_their_lanes_by_due_alone",
    },
    "token": {
        "full": "tokens: two_thousand_tokens_are_the_most_and_what_ended_makes_room",
        "made": "tokens: a_token_is_listed_with_what_it_may_do_and_a_resend_makes_it_once",
        "taken": "tokens: a_name_is_given_once_and_is_free_again_after_its_token_was_revoked",
    },
    "token_login": {
        "begun": "tokens: a_link_opens_one_session_and_a_resend_finds_it",
        "gone": "tokens: a_link_opens_one_session_and_a_resend_finds_it",
    },
    "token_revoke": {
        "answered": "tokens: revoking_a_token_ends_its_sessions_and_links_and_no_others",
    },
    "token_used": {
        "answered": "tokens: use_is_noted_once_a_minute_and_never_brings_a_revoked_token_back",
    },
    "unrecur": {
        "absent": "recurrences: an_older_generation_is_refused",
        "older": "recurrences: an_older_generation_is_refused",
        "removed": "recurrences: an_older_generation_is_refused",
        "taken": "recurrences: a_name_of_code_is_not_taken_at_run_time",
    },
}
