"""STOREs without an answer: withdrawn until that is acknowledged, their slots kept until then."""

from __future__ import annotations

import numpy as np

from adapter.ring import Lot
from adapter.tickets import MAX_ORPHANS, Purpose, Ticket, Tickets


def lot(number: int) -> Lot:
    return Lot(0, np.array([number], dtype=np.int32))


def orphans(tickets: Tickets, now_s: float = 1e9) -> list[tuple[int, Lot | None]]:
    found = []
    for number in range(1000, 1000 + tickets.num_orphans):
        ticket = tickets.next_orphan(now_s)
        assert ticket is not None
        assert ticket.purpose is Purpose.WITHDRAW
        found.append((ticket.store, ticket.lot))
        tickets.withdrawing(number)
        tickets.answered(number)
    return found


def test_what_is_in_flight_is_found_until_it_is_answered() -> None:
    tickets = Tickets()
    assert not tickets
    tickets.sent(5, Ticket(Purpose.STORE, 1, 7))
    assert tickets
    assert tickets.find(5) == tickets.find(5) == Ticket(Purpose.STORE, 1, 7)
    assert tickets.find(6) is None
    tickets.answered(5)
    assert not tickets
    assert tickets.find(5) is None


def test_each_lost_store_is_withdrawn_once_with_what_it_reads() -> None:
    tickets, lent = Tickets(), lot(3)
    tickets.sent(1, Ticket(Purpose.STORE, 11, 7, lot=lent))
    tickets.sent(2, Ticket(Purpose.SETTLE, 12, 8))
    tickets.orphan(10, None)
    tickets.lose([12, 13], is_same=True)
    assert not tickets
    assert orphans(tickets) == [(10, None), (11, lent), (12, None), (13, None)]
    assert tickets.registered() == []


def test_a_cancel_without_an_answer_is_asked_again_with_its_slots() -> None:
    tickets, lent = Tickets(), lot(3)
    tickets.orphan(11, lent)
    assert tickets.next_orphan(0) is not None
    tickets.withdrawing(1)
    assert tickets
    tickets.lose([], is_same=True)
    assert orphans(tickets) == [(11, lent)]


def test_what_was_put_off_waits() -> None:
    tickets = Tickets()
    tickets.orphan(11, None, again_at_s=5.0)
    assert tickets.next_orphan(4.9) is None
    assert tickets.next_orphan(5.0) is not None


def test_slots_of_another_registration_come_back_with_the_next_one() -> None:
    tickets, lent = Tickets(), [lot(1), lot(2)]
    tickets.sent(1, Ticket(Purpose.STORE, 11, 7, lot=lent[0]))
    tickets.orphan(10, lent[1])
    tickets.lose([12], is_same=False)
    assert tickets.num_orphans == 0
    assert set(tickets.registered()) == set(lent)
    assert tickets.registered() == []


def test_orphans_are_bounded_and_no_slot_is_forgotten() -> None:
    tickets, lent = Tickets(), [lot(number) for number in range(MAX_ORPHANS + 2)]
    for number, one in enumerate(lent):
        tickets.orphan(number, one)
    assert tickets.num_orphans == MAX_ORPHANS
    assert orphans(tickets)[0] == (2, lent[2])
    assert tickets.registered() == lent[:2]


def test_it_says_whose_it_is() -> None:
    assert str(Ticket(Purpose.STORE, 1, 7).who) == "request 7"
