"""Reports become loads, names and frontiers: never a token too far (host contract §3, §5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.metadata import ConnectorMetadata, LastWord
from adapter.naming import last_word
from adapter.reports import build_metadata, without_saves
from adapter.requests import EXPIRE_ITERATIONS, EXPIRE_S, RequestTable
from adapter.requeststate import RequestState
from tests.adapter.hostlike import Output, Report, facts, geometry, offer, standing, tokens

PROMPT = tokens(21)


def table_with(
    chunk: int = 1, prompt: list[int] | None = None
) -> tuple[RequestTable, RequestState]:
    table = RequestTable(geometry(4, chunk))
    return table, table.admit(facts(1, prompt or PROMPT), 1, 0.0)


def pages_of(new_pages: tuple[Any, ...]) -> list[int]:
    """Of the only group."""
    (pages,) = new_pages
    return [int(page) for page in pages]


def build(table: RequestTable, output: Output, iteration: int = 1) -> ConnectorMetadata:
    return build_metadata(table, output, iteration, 0.0)


def first(computed: int, scheduled: int, prompt: list[int] | None = None) -> Output:
    prompt = PROMPT if prompt is None else prompt
    pages = list(range(10, 10 + -(-len(prompt) // 4)))
    return Output([Report(1, list(prompt), pages, computed, scheduled)])


def later(new: list[int], pages: list[int], computed: int, scheduled: int = 1) -> Output:
    return Output(cached_requests=[Report(1, new, pages, computed, scheduled)])


def test_chunked_prefill_names_only_what_the_forward_completes() -> None:
    table, state = table_with()
    metadata = build(table, first(0, 10))
    assert pages_of(metadata.new_pages) == [10, 11, 12, 13, 14, 15]
    assert metadata.alive.tolist() == [state.key]
    assert metadata.valid_chunks.tolist() == [0]
    assert metadata.names[0].pages[0].tolist() == [10, 11]
    metadata = build(table, later([], [], 10, 11), 2)
    assert metadata.valid_chunks.tolist() == [2]
    assert metadata.names[0].first_chunk == 2
    assert metadata.names[0].pages[0].tolist() == [12, 13, 14]
    assert metadata.names[0].parent == state.chunk_keys(1, 2, 1)


def test_an_overstated_chunk_is_confirmed_only_as_far_as_it_came() -> None:
    table, _ = table_with()
    build(table, first(0, 16))
    metadata = build(table, later([], [], 9, 12), 2)
    assert metadata.valid_chunks.tolist() == [2]


def test_generation_with_and_without_overlap() -> None:
    prompt = tokens(7)
    table, state = table_with(prompt=prompt)
    build(table, first(0, 7, prompt))
    # Overlap: the token being fed is unknown at first.
    metadata = build(table, later([], [], 6), 2)
    assert metadata.names == ()
    metadata = build(table, later([5], [], 7), 3)
    assert metadata.valid_chunks.tolist() == [1]
    assert metadata.names[0].first_chunk == 1
    assert state.extend_chain() == 2
    metadata = build(table, later([6], [99], 8), 4)
    assert metadata.valid_chunks.tolist() == [2]
    assert pages_of(metadata.new_pages) == [99]


def test_device_match_and_partial_match_raise_ticks_rightly() -> None:
    table, _ = table_with()
    metadata = build(table, first(8, 13))
    assert pages_of(metadata.new_pages) == [12, 13, 14, 15]
    table, _ = table_with()
    metadata = build(table, first(9, 12))
    assert pages_of(metadata.new_pages) == [12, 13, 14, 15]
    assert metadata.valid_chunks.tolist() == [2]


def test_a_promise_becomes_a_load() -> None:
    table, state = table_with()
    state.offer, state.allocated, state.named_chunks = offer(table.geometry, 4, 20), True, 5
    metadata = build(table, first(4, 1))
    (load,) = metadata.loads
    assert load.pages.ravel().tolist() == [11, 12, 13, 14]
    assert metadata.failure == ""
    assert metadata.names == ()
    assert metadata.valid_chunks.tolist() == [5]
    assert standing(state) is None
    assert table.take_returns().releases == []  # the workers give it back


def test_reuse_off_behind_our_back_loads_nothing() -> None:  # host contract §2
    table, state = table_with()
    state.offer, state.allocated = offer(table.geometry, 0, 20), True
    metadata = build(table, first(-20, 21))
    assert metadata.loads == ()
    assert metadata.failure == ""
    assert metadata.valid_chunks.tolist() == [0]
    assert len(table.take_returns().releases) == 1


def test_a_promise_that_cannot_be_kept_fails_loudly() -> None:
    table, state = table_with()
    state.offer, state.allocated = offer(table.geometry, 4, 20), True
    assert "promised" in build(table, first(8, 1)).failure
    table, state = table_with()
    state.offer, state.allocated = offer(table.geometry, 0, 20), True
    short = Output([Report(1, PROMPT, [1, 2], 0, 1)])
    assert "promised" in build(table, short).failure
    assert table.take_returns().releases == [(b"l" * 16, 0, 0)]
    table, state = table_with()
    state.offer, state.allocated = offer(table.geometry, 0, 20), True
    assert "other tokens" in build(table, first(0, 1, tokens(21, seed=3))).failure


def test_unknown_and_finished_requests_only_raise_ticks() -> None:
    table, state = table_with()
    stranger = Output([Report(9, [1, 2, 3, 4], [7], 0, 4)], [Report(8, [1], [6], 3, 1)])
    metadata = build(table, stranger)
    assert pages_of(metadata.new_pages) == [7, 6]
    assert metadata.alive.size == 0
    table.finish(state)
    assert build(table, first(0, 21), 2).alive.size == 0
    table, state = table_with()
    build(table, first(0, 21))
    table.finish(state)
    # The batch that was launched before its end was seen (host contract §6, early stop).
    assert build(table, later([5], [], 21), 2).alive.size == 0


def test_a_request_that_is_reported_is_not_forgotten() -> None:
    table, state = table_with()
    begin = 2 * EXPIRE_ITERATIONS
    build_metadata(table, first(0, 21), begin, begin * EXPIRE_S)
    for iteration in range(begin + 1, 3 * begin):
        build_metadata(table, later([7], [], 20 + iteration), iteration, iteration * EXPIRE_S)
    assert table.find(1) is state
    assert table.take_ended() == []


def test_a_replay_without_a_query_ends_the_old_life() -> None:
    table, state = table_with()
    build(table, first(0, 21))
    metadata = build(table, first(0, 21), 2)
    assert metadata.ended.tolist() == [state.key]
    assert metadata.alive.size == 0


def test_allocated_but_not_in_the_batch_yet() -> None:
    table, state = table_with()
    state.pages, state.allocated, state.offer = [[3, -1, 4]], True, offer(table.geometry, 0, 8)
    metadata = build(table, Output())
    assert pages_of(metadata.new_pages) == [3, 4]
    assert state.offer is not None


def test_no_page_stops_naming() -> None:  # host contract rule 11
    table, _ = table_with()
    metadata = build(table, Output([Report(1, PROMPT, [1, 2, -1, 4, 5, 6], 0, 21)]))
    assert pages_of(metadata.new_pages) == [1, 2, 4, 5, 6]
    assert metadata.names[0].pages[0].tolist() == [1, 2]


def test_bypassed_requests_are_alive_but_unnamed() -> None:
    table = RequestTable(geometry())
    state = table.admit(facts(1, PROMPT, None), 1, 0.0)
    metadata = build(table, first(0, 21))
    assert metadata.alive.tolist() == [state.key]
    assert metadata.names == ()


@given(
    length=st.integers(1, 40),
    chunk=st.integers(1, 3),
    matched=st.integers(0, 40),
    steps=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), min_size=1, max_size=12),
    generated=st.integers(0, 12),
    overlap=st.booleans(),
)
def test_frontiers_never_pass_what_was_computed(
    length: int,
    chunk: int,
    matched: int,
    steps: list[tuple[int, int]],
    generated: int,
    overlap: bool,
) -> None:
    """A host that trims chunks late, then generates; names are contiguous, valid never ahead."""
    prompt = tokens(length)
    matched = min(matched, length - 1)
    table, state = table_with(chunk, prompt)
    named, computed, reported = 0, matched, False
    sampled = tokens(generated + 1, seed=9)
    known: list[int] = []
    pages = list(range(-(-(length + generated) // 4)))

    def check(metadata: ConnectorMetadata, will_be_computed: int) -> None:
        nonlocal named
        assert metadata.alive.tolist() == [state.key]
        assert int(metadata.valid_chunks[0]) * 4 * chunk <= computed
        for names in metadata.names:
            assert names.first_chunk == named
            count = len(names.keys) // 16
            assert names.pages[0].tolist() == pages[named * chunk : (named + count) * chunk]
            named += count
            assert named * 4 * chunk <= will_be_computed

    for scheduled, trimmed in steps:
        if computed >= length:
            break
        scheduled = min(scheduled, length - computed)
        report = Report(
            1, [] if reported else prompt, [] if reported else pages, computed, scheduled
        )
        output = Output(cached_requests=[report]) if reported else Output([report])
        check(build(table, output), computed + scheduled)
        reported = True
        computed += max(1, scheduled - trimmed)
    if computed < length:
        return
    for step in range(generated):
        fresh = [] if overlap and step == 0 else [sampled[len(known)]]
        known += fresh
        total = length + len(known)
        computed = total if overlap else total - 1  # before this forward
        output = Output(cached_requests=[Report(1, fresh, [], total - 1, 1)])
        check(build(table, output), total)
    final = np.array(state.tokens)
    assert np.array_equal(final, prompt + known)


def test_a_block_completed_by_the_last_forward_under_overlap_is_named_at_the_end() -> None:
    prompt = tokens(6)
    table, state = table_with(prompt=prompt)
    build(table, first(0, 6, prompt))
    build(table, later([], [], 5), 2)
    build(table, later([5], [], 6), 3)  # feeds token 7, which no report has shown
    last = last_word(state, [*prompt, 5, 7, 9], table.geometry)
    assert last.valid_chunks == 2
    assert last.names is not None
    assert (last.names.first_chunk, last.names.pages[0].tolist()) == (1, [11])
    assert last.names.keys == RequestTable(geometry(4)).admit(
        facts(2, [*prompt, 5, 7]), 1, 0.0
    ).chunk_keys(1, 2, 1)
    again = last_word(state, [*prompt, 5, 7, 9], table.geometry)
    assert again == LastWord(2, None)


def test_the_token_sampled_last_completes_nothing() -> None:
    prompt = tokens(6)
    table, state = table_with(prompt=prompt)
    build(table, first(0, 6, prompt))
    assert last_word(state, [*prompt, 5, 7], table.geometry) == LastWord(1, None)


def test_nothing_reported_is_an_empty_iteration() -> None:  # host contract rule 8
    table, _ = table_with()
    metadata = build_metadata(table, None, 1, 0.0)
    assert (metadata.new_pages, metadata.alive.size, metadata.may_fire) == ((), 0, False)


def test_only_a_prompt_part_of_two_tokens_may_fire_hooks() -> None:  # host contract §4.5
    table, _ = table_with()
    assert build(table, first(0, 20)).may_fire
    assert not build(table, later([], [], 20, 1), 2).may_fire  # the prompt's last token
    assert not build(table, later([5], [], 21, 4), 3).may_fire  # drafts
    assert not build(table, Output(), 4).may_fire
    table, _ = table_with()
    assert not build(table, first(20, 1)).may_fire  # a full hit
    table, _ = table_with()
    build(table, first(0, 2))
    assert build(table, later([], [], 2, 2), 2).may_fire


def test_a_load_that_is_waited_for_is_ordered_in_the_iteration_of_its_pages() -> None:
    table, state = table_with()
    promised = replace(offer(table.geometry, 4, 20), is_async=True)
    state.offer, state.allocated, state.matched_tokens = promised, True, 4
    state.pages = [[10, 11, 12, 13, 14, 15]]
    metadata = build(table, Output())
    assert pages_of(metadata.new_pages) == [11, 12, 13, 14, 15]
    (load,) = metadata.loads
    assert load.is_async
    assert load.pages.ravel().tolist() == [11, 12, 13, 14]
    assert metadata.alive.size == 0
    assert build(table, Output(), 2).loads == ()
    # Then it comes as new: V1 counts the loaded tokens, V2 computes them once more.
    for computed in (20, 4):
        table, state = table_with()
        state.offer, state.allocated, state.pages = promised, True, [[10, 11, 12, 13, 14, 15]]
        build(table, Output())
        metadata = build(table, first(computed, 21 - computed), 2)
        assert metadata.loads == ()
        assert metadata.failure == ""
        assert metadata.valid_chunks.tolist() == [computed // 4]


def test_pages_of_an_allocation_before_the_last_query_are_not_loaded_into() -> None:
    table, state = table_with()
    promised = replace(offer(table.geometry, 4, 20), is_async=True)
    state.offer, state.pages = promised, [[10, 11, 12, 13, 14, 15]]
    state.seen_iteration = 1
    metadata = build(table, Output())
    assert metadata.loads == metadata.new_pages == ()
    assert table.take_returns().releases == [(promised.lease, 0, 0)]


def test_an_engine_that_caches_no_more_ends_all_saves_on_every_rank() -> None:
    table, state = table_with()
    metadata = build(table, first(0, 21))
    assert metadata.names
    last = without_saves(replace(metadata, ended=np.array([9])), [state.key])
    assert last.names == ()
    assert last.ended.tolist() == [9, state.key]


def test_what_is_in_the_batch_cannot_wait_for_its_load() -> None:
    table, state = table_with()
    state.offer, state.allocated = replace(offer(table.geometry, 4, 20), is_async=True), True
    (load,) = build(table, first(4, 1)).loads
    assert not load.is_async


def test_other_tokens_behind_the_load_cost_only_the_saves() -> None:
    # A replayed request may be reported with its prompt only, and was asked about with all tokens.
    table, state = table_with()
    state.offer, state.allocated = offer(table.geometry, 0, 8), True
    metadata = build(table, first(0, 4, PROMPT[:12]))
    assert metadata.failure == ""
    assert len(metadata.loads) == 1
    assert metadata.ended.tolist() == [state.key]
    table, state = table_with()
    state.offer, state.allocated = replace(offer(table.geometry, 0, 8), is_async=True), True
    state.pages = [list(range(6))]
    build(table, Output())
    assert "other tokens" in build(table, first(8, 13, tokens(21, seed=4)), 2).failure


def grouped(flat: list[int], groups: list[list[int]], computed: int, scheduled: int) -> Report:
    return Report(1, PROMPT if flat == PROMPT else flat, [], computed, scheduled, groups)


def test_pages_come_by_group_and_with_each_chunk() -> None:
    table = RequestTable(geometry(4, windows=(0, 8)))
    table.admit(facts(1, PROMPT), 1, 0.0)
    metadata = build(table, Output([grouped(PROMPT, [[1, 2], [3, 4]], 0, 8)]))
    assert [pages.tolist() for pages in metadata.new_pages] == [[1, 2], [3, 4]]
    assert metadata.names[0].pages.tolist() == [[1, 2], [3, 4]]
    more = grouped([], [[5, 6], [7, 8]], 8, 8)
    metadata = build(table, Output(cached_requests=[more]), 2)
    # The token at 8 sees from 1 on, so both blocks are still in the window.
    assert [pages.tolist() for pages in metadata.new_pages] == [[5, 6], [7, 8]]
    assert metadata.names[0].pages.tolist() == [[5, 6], [7, 8]]
    metadata = build(table, Output(cached_requests=[grouped([], [[9, 9], [10, 11]], 16, 5)]), 3)
    # The one at 16 sees from 9 on: the first two have left and may be handed out unseen.
    assert [pages.tolist() for pages in metadata.new_pages] == [[9, 9], [10, 11, 3, 4]]


def test_positions_are_told_where_windows_leave_pages_behind() -> None:
    table = RequestTable(geometry(4, windows=(0, 8)))
    table.admit(facts(1, PROMPT), 1, 0.0)
    told = [build(table, Output([grouped(PROMPT, [[1, 2], [3, 4]], 0, 8)]))]
    size = len(PROMPT)
    for number, (computed, scheduled) in enumerate([(8, size - 8), (size - 1, 1), (size, 1)]):
        output = Output(cached_requests=[grouped([], [[], []], computed, scheduled)])
        told.append(build(table, output, 2 + number))
    # A generating request may be as much further as is scheduled, for overlap hides its last token.
    assert [one.next_tokens.tolist() for one in told] == [[0], [8], [size], [size + 1]]
    assert [one.reached.tolist() for one in told] == [[8], [size], [size + 1], [size + 2]]
    table, _ = table_with()
    plain = build(table, first(0, 6))
    assert plain.next_tokens.size == plain.reached.size == 0


def test_another_number_of_groups_is_not_understood() -> None:
    table = RequestTable(geometry(4, windows=(0, 8)))
    table.admit(facts(1, PROMPT), 1, 0.0)
    with pytest.raises(ValueError, match="layer groups"):
        build(table, Output([grouped(PROMPT, [[1, 2]], 0, 8)]))


def test_a_page_that_left_the_window_is_not_named_later() -> None:
    # One chunk is two blocks of a window of four tokens: its first block has left by then.
    table = RequestTable(geometry(4, 2, windows=(0, 4)))
    table.admit(facts(1, PROMPT), 1, 0.0)
    build(table, Output([grouped(PROMPT, [[1, 2], [3, 4]], 0, 7)]))
    build(table, Output(cached_requests=[grouped([], [[], []], 7, 1)]), 2)
    metadata = build(table, Output(cached_requests=[grouped([], [[5], [6]], 8, 8)]), 3)
    assert metadata.names == ()
    table = RequestTable(geometry(4, 2, windows=(0, 4)))
    table.admit(facts(1, PROMPT), 1, 0.0)
    build(table, Output([grouped(PROMPT, [[1, 2], [3, 4]], 0, 7)]))
    metadata = build(table, Output(cached_requests=[grouped([], [[5], [6]], 7, 2)]), 2)
    assert metadata.new_pages[1].tolist() == [6, 3]
    assert metadata.names[0].pages.tolist() == [[1, 2], [-1, -1]]


def test_rejected_drafts_make_pages_behind_the_prompt_uncertain() -> None:
    table = RequestTable(geometry(), is_drafting=True)
    prompt = tokens(6)
    state = table.admit(facts(1, prompt), 1, 0.0)
    build(table, first(0, 6, prompt))
    metadata = build(table, later([5, 6, 7], [12, 13], 6, 4), 2)
    assert metadata.names == ()
    assert metadata.valid_chunks.tolist() == [1]
    last = last_word(state, [*prompt, 5, 6, 7], table.geometry, [[10, 11]])
    assert last.names is not None
    assert last.names.pages.tolist() == [[11]]
