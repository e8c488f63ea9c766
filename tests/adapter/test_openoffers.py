"""When nothing of a server can be loaded any more: what the leader knows, what the others learn."""

from __future__ import annotations

import pytest

from adapter.metadata import ConnectorMetadata
from adapter.openoffers import OpenOffers
from protocol.ids import Epoch

OLD, NEW = Epoch(b"o" * 16), Epoch(b"n" * 16)
QUIET_NS = 1000


def iteration(number: int, *still_open: bytes) -> ConnectorMetadata:
    return ConnectorMetadata(number, still_open=still_open)


@pytest.fixture
def offers() -> OpenOffers:
    return OpenOffers()


def test_a_leader_without_offers_is_done_at_once(offers: OpenOffers) -> None:
    offers.lead()
    assert offers.is_over(offers.watch(OLD, 0), 0, QUIET_NS)


def test_a_leader_waits_for_each_step_of_an_offer(offers: OpenOffers) -> None:
    offers.lead()
    offers.asking(OLD)
    watch = offers.watch(OLD, 0)
    assert not offers.is_over(watch, 0, QUIET_NS)
    offers.built(1, [], [OLD])  # promised, allocated later on
    offers.begun(iteration(1, OLD))
    assert not offers.is_over(watch, 0, QUIET_NS)
    offers.built(2, [OLD], [])
    assert not offers.is_over(watch, 0, QUIET_NS)
    offers.begun(iteration(2))
    assert offers.is_over(watch, 0, QUIET_NS)


def test_a_question_without_an_offer_is_over_with_its_iteration(offers: OpenOffers) -> None:
    offers.lead()
    offers.asking(OLD)
    offers.built(1, [], [])
    assert offers.is_over(offers.watch(OLD, 0), 0, QUIET_NS)


def test_orders_of_an_iteration_that_never_began_are_over_with_the_next(
    offers: OpenOffers,
) -> None:
    offers.lead()
    offers.built(1, [OLD], [])
    offers.built(2, [], [])
    watch = offers.watch(OLD, 0)
    assert not offers.is_over(watch, 0, QUIET_NS)
    offers.begun(iteration(2))
    assert offers.is_over(watch, 0, QUIET_NS)


def test_another_server_s_offers_keep_nobody(offers: OpenOffers) -> None:
    offers.lead()
    offers.asking(NEW)
    offers.built(1, [NEW], [NEW])
    assert offers.is_over(offers.watch(OLD, 0), 0, QUIET_NS)
    assert not offers.is_over(offers.watch(NEW, 0), 0, QUIET_NS)


def test_another_rank_waits_for_an_iteration_that_was_built_later(offers: OpenOffers) -> None:
    offers.begun(iteration(7))
    watch = offers.watch(OLD, 0)
    assert not offers.is_over(watch, 0, QUIET_NS)
    offers.begun(iteration(8))  # may have been built before
    assert not offers.is_over(watch, 0, QUIET_NS)
    offers.begun(iteration(8))  # the same again
    assert not offers.is_over(watch, 0, QUIET_NS)
    offers.begun(iteration(9, OLD))
    assert not offers.is_over(watch, 0, QUIET_NS)
    offers.begun(iteration(10))
    assert offers.is_over(watch, 0, QUIET_NS)


def test_silence_counts_from_the_last_iteration_on(offers: OpenOffers) -> None:
    watch = offers.watch(OLD, 0)
    assert not offers.is_over(watch, QUIET_NS - 1, QUIET_NS)
    offers.begun(iteration(1, OLD))
    assert not offers.is_over(watch, QUIET_NS + 5, QUIET_NS)
    assert not offers.is_over(watch, 2 * QUIET_NS + 4, QUIET_NS)
    assert offers.is_over(watch, 2 * QUIET_NS + 5, QUIET_NS)


def test_only_who_waits_is_woken() -> None:
    woken: list[int] = []
    offers = OpenOffers(lambda: woken.append(1))
    offers.begun(iteration(1))
    assert not woken
    watch = offers.watch(OLD, 0)
    offers.is_over(watch, 0, QUIET_NS)
    offers.begun(iteration(2))
    assert len(woken) == 1
    offers.begun(iteration(3))
    assert len(woken) == 1
