"""Names: whole chunks with pages of every full-attention group, each once, the last at the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.geometry import Geometry
from adapter.metadata import LastWord
from adapter.naming import last_word, name_chunks
from adapter.requests import RequestTable
from adapter.requeststate import RequestState
from tests.adapter.hostlike import facts, geometry, tokens

PROMPT = tokens(16)


def admitted(
    pages: list[list[int]], chunk: int = 1, windows: tuple[int, ...] = (0,)
) -> tuple[RequestState, Geometry]:
    geo = geometry(4, chunk, windows=windows)
    state = RequestTable(geo).admit(facts(1, PROMPT), 1, 0.0)
    state.begin(pages)
    return state, geo


def test_each_chunk_is_named_once() -> None:
    state, geo = admitted([[7, 8, 9, 10]])
    names = name_chunks(state, 2, geo)
    assert names is not None
    assert (names.first_chunk, names.parent, names.pages.tolist()) == (0, b"", [[7, 8]])
    names = name_chunks(state, 4, geo)
    assert names is not None
    assert (names.first_chunk, names.pages.tolist()) == (2, [[9, 10]])
    assert names.parent == state.chunk_keys(1, 2, 1)
    assert name_chunks(state, 4, geo) is None


def test_a_group_with_a_window_leaves_chunks_out() -> None:  # host contract rule 11
    state, geo = admitted([[1, 2, 3, 4], [-1, 6, 7]], windows=(0, 8))
    names = name_chunks(state, 4, geo)
    assert names is not None
    assert names.pages.tolist() == [[1, 2, 3, 4], [-1, 6, 7, -1]]


def test_a_chunk_is_left_out_whole() -> None:
    state, geo = admitted([[1, 2, 3, 4], [-1, 6, 7, 8]], chunk=2, windows=(0, 8))
    names = name_chunks(state, 2, geo)
    assert names is not None
    assert names.pages.tolist() == [[1, 2, 3, 4], [-1, -1, 7, 8]]


def test_full_attention_without_a_page_ends_the_names() -> None:
    state, geo = admitted([[1, 2, -1, 4], [5, 6, 7, 8]], windows=(0, 8))
    names = name_chunks(state, 4, geo)
    assert names is not None
    assert names.pages.tolist() == [[1, 2], [5, 6]]
    assert name_chunks(state, 4, geo) is None
    state, geo = admitted([[1, 2, -1, 4]], chunk=2)
    names = name_chunks(state, 2, geo)
    assert names is not None
    assert names.pages.tolist() == [[1, 2]]
    state, geo = admitted([[]])
    assert name_chunks(state, 4, geo) is None


def test_the_last_word_goes_by_the_pages_the_host_gives() -> None:
    # Rejected drafts shrink the list unseen: what the report called page 3 is another now.
    state, geo = admitted([[1, 2, 3]])
    state.tokens = PROMPT[:12]
    last = last_word(state, [*PROMPT, 9], geo, [[1, 2, 8, 4, 5]])
    assert last.valid_chunks == 4
    assert last.names is not None
    assert last.names.pages.tolist() == [[1, 2, 8, 4]]


def test_with_several_ranks_only_what_reports_named_counts() -> None:
    geo = geometry(4, num_ranks=2)
    state = RequestTable(geo).admit(facts(1, PROMPT), 1, 0.0)
    state.begin([[1, 2, 3, 4]])
    name_chunks(state, 3, geo)
    assert last_word(state, [*PROMPT, 9], geo, [[1, 2, 3, 4, 5]]) == LastWord(3)


@pytest.mark.parametrize(("windows", "num_told"), [((0,), 0), ((0, 8), 2), ((8,), 1)])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_last_word_tells_what_windows_have_left(
    windows: tuple[int, ...], num_told: int, num_ranks: int
) -> None:
    pages = [[-1, 2, 3, 4] if window else [1, 2, 3, 4] for window in windows]
    geo = geometry(4, windows=windows, num_ranks=num_ranks)
    state = RequestTable(geo).admit(facts(1, PROMPT), 1, 0.0)
    state.begin([[1, 2, 3, 4] for _ in windows])
    name_chunks(state, 3, geo)
    assert list(last_word(state, [*PROMPT, 9], geo, pages).pages) == pages[:num_told]


def test_what_bypasses_the_cache_is_not_named() -> None:
    state = RequestTable(geometry()).admit(facts(1, PROMPT, None), 1, 0.0)
    state.begin([[1, 2, 3, 4]])
    assert name_chunks(state, 4, geometry()) is None


PAGES = st.lists(st.integers(-1, 3), max_size=12)


@given(full=PAGES, sliding=PAGES, chunk=st.integers(1, 3), afters=st.lists(st.integers(0, 6)))
def test_names_are_contiguous_and_whole(
    full: list[int], sliding: list[int], chunk: int, afters: list[int]
) -> None:
    geo = geometry(2, chunk, windows=(0, 6))
    state: RequestState = RequestTable(geo).admit(facts(1, tokens(24)), 1, 0.0)
    state.begin([full, sliding])
    named = 0
    for after in afters:
        names = name_chunks(state, after, geo)
        if names is None:
            continue
        assert names.first_chunk == named
        count = len(names.keys) // 16
        assert names.pages.shape == (2, count * chunk)
        assert (names.pages[0] >= 0).all()
        begin, named = named * chunk, named + count
        assert names.pages[0].tolist() == full[begin : named * chunk]
        assert named <= after
        for at in range(count):
            known = sliding[begin + at * chunk : begin + (at + 1) * chunk]
            row = names.pages[1, at * chunk : (at + 1) * chunk].tolist()
            is_whole = len(known) == chunk and min(known) >= 0
            assert row == (known if is_whole else [-1] * chunk)
