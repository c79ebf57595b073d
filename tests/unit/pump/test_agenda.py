import pytest

from echod.pump.agenda import Agenda, rank_delay_s


def test_queues_are_taken_when_their_time_has_come_the_longest_overdue_first() -> None:
    agenda = Agenda()
    for queue, at_s in (("a", 3.0), ("b", 1.0), ("c", 2.0), ("d", 9.0)):
        agenda.bring_forward(queue, at_s)
    assert agenda.soonest() == 1.0
    assert agenda.take(3.0, 2) == ["b", "c"]
    assert agenda.take(3.0, 2) == ["a"]
    assert agenda.take(3.0, 2) == []
    assert agenda.soonest() == 9.0


def test_a_tick_is_brought_forward_and_never_put_off() -> None:
    agenda = Agenda()
    assert agenda.bring_forward("a", 5.0)
    assert not agenda.bring_forward("a", 7.0)
    assert not agenda.bring_forward("b", 6.0)
    assert agenda.bring_forward("b", 4.0)
    assert agenda.take(10.0, 9) == ["b", "a"]
    assert agenda.soonest() is None


@pytest.mark.parametrize(("rank", "delay_s"), [(-1, 0.0), (0, 0.0), (1, 0.05), (2, 0.1), (4, 0.2), (500, 0.2)])
def test_the_first_pump_ticks_at_the_instant_and_the_others_soon_after(rank: int, delay_s: float) -> None:
    assert rank_delay_s(rank) == pytest.approx(delay_s)
