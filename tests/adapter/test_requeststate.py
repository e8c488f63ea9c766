"""A request's hashes and pages become exactly the load that was promised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.requeststate import RequestState
from protocol.ids import RequestKey
from protocol.keys import BlockHashChain, ReuseScope
from tests.adapter.hostlike import facts, geometry, offer, tokens


def state(count: int, size: int = 4) -> RequestState:
    chain = BlockHashChain.start(ReuseScope(), size)
    made = facts(1, tokens(count))
    request = RequestState(RequestKey(1), made, chain, count, made.tokens)
    request.extend_chain()
    return request


@given(chunk=st.integers(1, 4), first=st.integers(0, 10), length=st.integers(1, 10))
def test_load_order_names_exactly_the_promised_pages(chunk: int, first: int, length: int) -> None:
    geo, request = geometry(4, chunk), state(4 * 24)
    request.pages = [list(range(100, 124))]
    order = request.load_order(offer(geo, first * 4, (first + length) * 4), geo)
    wanted = order.pages.ravel()[order.pages.ravel() >= 0]
    assert wanted.tolist() == request.pages[0][first : first + length]
    assert order.pages.shape == (1, len(order.slots) // 16, chunk)
    # Each page stands at its block's place within its chunk.
    start = first // chunk * chunk
    for at, page in enumerate(order.pages.ravel().tolist()):
        assert page in (-1, 100 + start + at)


@pytest.mark.parametrize("pages", [[1], [1, -1, 3]])
def test_missing_pages_are_an_error(pages: list[int]) -> None:
    request = state(12)
    request.pages = [pages]
    with pytest.raises(ValueError, match="promised"):
        request.load_order(offer(geometry(), 0, 12), geometry())


def test_chunk_keys_and_parents() -> None:
    request = state(16)
    assert (
        request.chunk_keys(0, 2, 2)
        == request.chunk_keys(0, 4, 1)[16:32] + (request.chunk_keys(0, 4, 1)[48:64])
    )
    assert request.parent_key(0, 2) == b""
    assert request.parent_key(1, 2) == request.chunk_keys(0, 1, 2)


def test_tokens_are_hashed_once_and_extended() -> None:
    request, whole = state(10), state(16)
    request.tokens += whole.tokens[10:]
    assert request.extend_chain() == 4
    assert request.chunk_keys(0, 4, 1) == whole.chunk_keys(0, 4, 1)


def test_without_scope_nothing_is_hashed() -> None:
    bypassed = RequestState(RequestKey(1), facts(1, tokens(8), None), None, 8, tokens(8))
    assert bypassed.extend_chain() == 0
    assert bypassed.chunk_keys(0, 1, 1) == b""
    assert bypassed.parent_key(1, 1) == b""


def test_begin_forgets_the_copy_of_the_prompt() -> None:
    request = state(8)
    request.begin([[1, 2]])
    assert request.reported
    assert request.facts.tokens == []
    assert len(request.tokens) == 8
    assert request.pages == [[1, 2]]


def test_a_window_is_loaded_where_it_reaches_and_has_pages() -> None:
    geo, request = geometry(4, windows=(0, 6)), state(24)
    request.pages = [list(range(6)), [-1, -1, -1, 13, 14, 15]]
    order = request.load_order(offer(geo, 4, 20), geo)
    assert order.num_shards == 2
    assert order.pages[0].ravel().tolist() == [1, 2, 3, 4]
    assert order.pages[1].ravel().tolist() == [-1, -1, 13, 14]
    request.pages[1][:3] = [10, 11, 12]  # still there; the server need not hold them
    order = request.load_order(offer(geo, 4, 20), geo)
    assert order.pages[1].ravel().tolist() == [-1, -1, 13, 14]
    request.pages[1][3] = -1  # the host may count the window one token shorter
    order = request.load_order(offer(geo, 4, 20), geo)
    assert order.pages[1].ravel().tolist() == [-1, -1, -1, 14]
    request.pages[0][3] = -1
    with pytest.raises(ValueError, match="promised"):
        request.load_order(offer(geo, 4, 20), geo)
    request.pages[0][3], request.pages[1] = 3, [-1, -1]
    with pytest.raises(ValueError, match="promised"):
        request.load_order(offer(geo, 4, 20), geo)


def test_pages_leave_a_window_once() -> None:
    geo, request = geometry(4, windows=(0, 6)), state(24)
    request.pages = [[1, 2, 3, 4], [-1, 6, 7]]
    gone: list[list[int]] = [[], []]
    for position, expected in ((8, []), (13, [6]), (13, [6]), (99, [6, 7])):
        request.leave_windows(position, geo, gone)
        assert gone == [[], expected]
    assert request.pages == [[1, 2, 3, 4], [-1, -1, -1]]
    request.pages[1].append(8)
    request.leave_windows(99, geo, gone)
    assert gone[1] == [6, 7, 8]
