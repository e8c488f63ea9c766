"""The host asks once, twice, never, or about another request: answers and leases stay right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.requests import (
    EXPIRE_EVERY,
    EXPIRE_ITERATIONS,
    EXPIRE_S,
    MAX_FINISHED,
    MAX_OPEN_OFFERS,
    MAX_OVERDUE,
    RequestTable,
)
from protocol.keys import MediaItem, ReuseScope
from tests.adapter.hostlike import facts, geometry, offer, standing, tokens

PROMPT = tokens(40)


def test_repeated_queries_are_one_request() -> None:
    table = RequestTable(geometry())
    first = table.admit(facts(1, PROMPT), 1, 0.0)
    assert table.admit(facts(1, PROMPT), 1, 0.0) is first
    assert table.live_keys() == [first.key]


def test_the_same_id_with_other_content_is_another_request() -> None:
    table = RequestTable(geometry())
    first = table.admit(facts(1, PROMPT), 1, 0.0)
    first.offer, first.asked = offer(geometry(), 0, 8), True
    second = table.admit(facts(1, tokens(40, seed=1)), 1, 0.0)
    third = table.admit(facts(1, tokens(40, seed=1), ReuseScope(cache_salt="x")), 1, 0.0)
    assert len({first.key, second.key, third.key}) == 3
    returns = table.take_returns()
    assert returns.releases == [(b"l" * 16, 0, 0)]
    assert returns.ends == [first.key]
    assert table.take_ended() == [first.key, second.key]
    assert table.live_keys() == [third.key]
    media = tuple(MediaItem(1, bytes([item]) * 32) for item in range(2))
    fourth = table.admit(facts(2, PROMPT, media=media[:1]), 1, 0.0)
    assert table.admit(facts(2, PROMPT, media=media[1:]), 1, 0.0).key != fourth.key


def test_the_salt_says_whose_quota_it_is() -> None:
    table, salted = RequestTable(geometry()), ReuseScope(cache_salt="x")
    assert table.admit(facts(1, PROMPT, salted), 1, 0.0).tenant == salted.tenant() != b""
    assert table.admit(facts(2, PROMPT), 1, 0.0).tenant == ReuseScope().tenant()
    assert table.admit(facts(3, PROMPT, None), 1, 0.0).tenant == b""


def test_a_request_that_began_and_is_asked_about_again_is_a_new_one() -> None:
    table = RequestTable(geometry())
    first = table.admit(facts(1, PROMPT), 1, 0.0)
    first.begin([list(range(10))])
    assert table.admit(facts(1, PROMPT), 2, 0.0).key != first.key
    assert table.take_ended() == [first.key]


@given(st.lists(st.integers(0, 44), max_size=5), st.integers(1, 3))
def test_growing_device_matches_keep_the_end_and_return_the_rest(
    matches: list[int], chunk: int
) -> None:  # B23
    geo = geometry(4, chunk)
    table = RequestTable(geo)
    state = table.admit(facts(1, PROMPT), 1, 0.0)
    state.offer = offer(geo, 0, 36)
    for matched in sorted(matches):
        before = standing(state)
        answer = table.narrow(state, matched)
        if before is None:
            assert answer == 0
        elif matched % 4 or matched >= 36:
            assert answer == 0
            assert standing(state) is None
        else:
            assert matched + answer == 36
            assert state.offer is not None
            assert state.offer.start_tokens == matched
            assert state.offer.first_chunk == matched // 4 // chunk
            assert len(state.offer.slots) == -(-9 // chunk) - state.offer.first_chunk
    table.finish(state)
    given_back = _chunks_given_back(table, -(-9 // chunk))
    assert given_back == set(range(-(-9 // chunk)))


def _chunks_given_back(table: RequestTable, num_chunks: int) -> set[int]:
    chunks: set[int] = set()
    for _, start, count in table.take_returns().releases:
        chunks |= set(range(start, start + count)) if count else set(range(num_chunks))
    return chunks


def test_a_smaller_device_match_asks_anew() -> None:
    table = RequestTable(geometry())
    state = table.admit(facts(1, PROMPT), 1, 0.0)
    state.offer = offer(geometry(), 8, 36)
    assert table.narrow(state, 4) == 0
    assert standing(state) is None
    assert len(table.take_returns().releases) == 1


def test_an_offer_that_was_not_allocated_is_given_back_at_the_report() -> None:  # B23
    table = RequestTable(geometry())
    declined = table.admit(facts(1, PROMPT), 1, 0.0)
    taken = table.admit(facts(2, PROMPT), 1, 0.0)
    for state in (declined, taken):
        state.offer = offer(geometry(), 0, 8)
    taken.allocated = True
    assert table.expire(1, 0.0) == 0
    assert declined.offer is None
    assert taken.offer is not None
    assert len(table.take_returns().releases) == 1


def test_a_host_takes_up_what_it_counts_on() -> None:
    table = RequestTable(geometry())
    state = table.admit(facts(1, PROMPT), 1, 0.0)
    table.take_up(state, 8)
    for taken, left in ((None, 12), (12, 12), (5, 8), (0, None)):
        if standing(state) is None:
            state.offer = offer(geometry(), 4, 16)
        table.take_up(state, taken)
        assert left == (state.offer.num_tokens if state.offer is not None else None)
    assert len(table.take_returns().releases) == 2


def test_a_number_of_tokens_is_believed_as_far_as_some_were_promised() -> None:
    table = RequestTable(geometry())
    state = table.admit(facts(1, PROMPT), 1, 0.0)
    said = [table.believe(1, 8)]
    for promised in (8, 0):
        table.answered(1, promised)
        said += [table.believe(1, 8), table.believe(1, 0), table.believe(1, None)]
    table.answered(1, 8)
    table.begin(state, [[]])
    said.append(table.believe(1, 8))  # promised to a life that is under way
    assert said == [(0, 8), (8, 0), (0, 0), (None, 0), (0, 8), (0, 0), (None, 0), (0, 8)]
    table.answered(2, 8)
    assert table.believe(2, 8) == (0, 8)  # never heard of
    waiting = table.admit(facts(3, PROMPT), 1, 0.0)
    waiting.offer, waiting.allocated = offer(geometry(), 0, 8), True
    table.expire(1 + 10 * EXPIRE_ITERATIONS, 10 * EXPIRE_S)
    assert table.find(3) is None
    assert table.believe(3, 8) == (8, 0)  # given up, but promised


def test_where_the_host_keeps_offers_they_stand_until_it_declines_them() -> None:
    table = RequestTable(geometry(), keeps_offers=True)
    waiting, settled = (table.admit(facts(number, PROMPT), 1, 0.0) for number in (1, 2))
    for state in (waiting, settled):
        state.offer = offer(geometry(), 0, 8)
    settled.allocated = True
    assert table.expire(1, 0.0) == 0
    assert table.expire(1000, 1000.0) == 1  # allocated, and never reported: it is gone
    assert waiting.offer is not None
    assert table.live_keys() == [waiting.key]
    table.cancel(waiting, 0, 8)
    assert table.expire(2000, 2000.0) == 1


def test_how_many_offers_a_host_may_keep_is_bounded() -> None:
    kept, usual = RequestTable(geometry(), keeps_offers=True), RequestTable(geometry())
    for table in (kept, usual):
        for number in range(MAX_OPEN_OFFERS):
            assert table.may_offer()
            table.admit(facts(number, PROMPT), 1, 0.0).offer = offer(geometry(), 0, 8)
    assert (kept.may_offer(), usual.may_offer()) == (False, True)


def test_requests_the_host_no_longer_reports_expire() -> None:  # B22, P19
    table = RequestTable(geometry())
    state = table.admit(facts(1, PROMPT), 1, 0.0)
    state.asked = True
    assert table.expire(EXPIRE_ITERATIONS + 1, EXPIRE_S + 1) == 0
    assert table.expire(EXPIRE_ITERATIONS + 1 + EXPIRE_EVERY, EXPIRE_S) == 0
    assert table.expire(EXPIRE_ITERATIONS + 2 * EXPIRE_EVERY, EXPIRE_S + 1) == 0  # looks rarely
    assert table.expire(EXPIRE_ITERATIONS + 2 * EXPIRE_EVERY + 1, EXPIRE_S + 1) == 1
    assert len(table) == 0
    assert table.live_keys() == []
    assert table.take_returns().ends == [state.key]
    assert table.take_ended() == [state.key]


def test_finishing_is_idempotent_and_keeps_the_answer() -> None:  # P19
    table = RequestTable(geometry())
    state = table.admit(facts(1, PROMPT), 1, 0.0)
    state.asked = True
    ended: list[int] = []
    table.on_end = ended.append
    table.finish(state)
    table.finish(state)
    assert ended == [state.key]
    assert table.unreported() == []
    assert table.take_returns().ends == [state.key]
    assert table.find(1) is state
    assert state.finished
    assert state.tokens == []
    table.drop(state)
    assert table.find(1) is None
    assert table.take_ended() == []
    assert table.live() == []


def test_finished_requests_are_remembered_for_a_while_and_in_bounds() -> None:
    table = RequestTable(geometry())
    for number in range(MAX_FINISHED + 10):
        table.finish(table.admit(facts(number, [1]), 1, 0.0))
    table.expire(1, 0.0)
    assert len(table) == MAX_FINISHED
    assert table.find(9) is None
    assert table.find(10) is not None
    table.expire(2, EXPIRE_S + 1)
    assert len(table) == 0
    assert table.take_ended() == []


@given(
    chunk=st.integers(1, 3),
    ranges=st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), max_size=4),
)
def test_cancelled_ranges_are_given_back_and_the_rest_is_kept(
    chunk: int, ranges: list[tuple[int, int]]
) -> None:  # host contract §3, E4
    geo = geometry(4, chunk)
    table = RequestTable(geo)
    state = table.admit(facts(1, PROMPT), 1, 0.0)
    state.offer = offer(geo, 8, 36)
    kept = set(range(8, 36))
    for begin, length in ranges:
        cancelled = set(range(begin * 4, (begin + length) * 4))
        table.cancel(state, begin * 4, (begin + length) * 4)
        if cancelled & kept:  # what is left must be one piece: the first, unless that is gone
            first = min(kept) if min(kept) not in cancelled else max(cancelled) + 1
            kept = {at for at in kept - cancelled if set(range(first, at)) <= kept - cancelled}
            kept = {at for at in kept if at >= first}
        now = standing(state)
        assert (set(range(now.start_tokens, now.end_tokens)) if now else set()) == kept
    table.finish(state)
    first_chunk = 2 // chunk
    assert set(range(first_chunk, -(-9 // chunk))) <= _chunks_given_back(table, -(-9 // chunk))


def test_an_offer_taken_up_in_part_loads_the_block_it_ends_in() -> None:
    table = RequestTable(geometry())
    state = table.admit(facts(1, PROMPT), 1, 0.0)
    state.offer = offer(geometry(), 8, 36)
    for end, expected in ((40, 36), (36, 36), (29, 32), (9, 12)):
        table.shorten(state, end)
        now = standing(state)
        assert now is not None
        assert (now.start_tokens, now.end_tokens) == (8, expected)
    table.shorten(state, 8)
    assert standing(state) is None
    assert [count for _, _, count in table.take_returns().releases] == [1, 5, 0]


def test_what_was_promised_to_one_that_expired_is_remembered_until_it_is_asked_again() -> None:
    table = RequestTable(geometry())
    for number, is_promised in ((1, True), (2, True), (3, False)):
        state = table.admit(facts(number, PROMPT), 1, 0.0)
        state.allocated = True
        if is_promised:
            state.offer = offer(geometry(), 8, 36)
    assert table.expire(1000, 1000.0) == 3
    assert [table.take_overdue(number) for number in (1, 1, 3, 4)] == [28, 0, 0, 0]
    table.admit(facts(2, PROMPT), 1001, 1001.0)
    assert table.take_overdue(2) == 0


def test_what_is_remembered_of_expired_ones_is_bounded() -> None:
    table = RequestTable(geometry())
    for number in range(MAX_OVERDUE + 10):
        state = table.admit(facts(number, PROMPT), 1, 0.0)
        state.allocated, state.offer = True, offer(geometry(), 8, 36)
    table.expire(1000, 1000.0)
    assert table.take_overdue(9) == 0
    assert table.take_overdue(10) == 28


def test_who_is_told_of_an_end_can_keep_nothing_from_being_given_back() -> None:
    def broken(key: int) -> None:
        raise RuntimeError(key)

    table = RequestTable(geometry())
    table.on_end = broken
    state = table.admit(facts(1, PROMPT), 1, 0.0)
    state.offer, state.asked = offer(geometry(), 0, 8), True
    with pytest.raises(RuntimeError):
        table.finish(state)
    returns = table.take_returns()
    assert (returns.releases, returns.ends) == ([(b"l" * 16, 0, 0)], [state.key])
    assert table.live_keys() == []
