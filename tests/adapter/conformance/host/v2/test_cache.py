from adapter.conformance.host.requests import HostRequest, RequestHandle, RequestParams
from adapter.conformance.host.v2.cache import V2Cache

BLOCK = 4


def waiting(num_tokens: int) -> HostRequest:
    prompt = tuple(range(num_tokens))
    return HostRequest(1, RequestParams(prompt, 4), RequestHandle(1), None, tokens=list(prompt))


def test_pages_grow_by_the_chunk() -> None:
    cache = V2Cache([8, 8], [0, 5], BLOCK)
    request = waiting(20)
    assert cache.begin(request) == 0
    assert cache.grow(request, 0, 8)
    assert [len(table) for table in request.tables] == [2, 2]
    assert cache.handed_out() == request.tables
    assert cache.grow(request, 8, 20)
    assert [len(table) for table in request.tables] == [5, 5]
    assert request.tables[1][0] == -1  # position 8 sees 4 and later
    assert cache.handed_out()[0] == request.tables[0][2:]


def test_a_window_lets_go_of_its_first_pages_and_keeps_their_places() -> None:
    cache = V2Cache([8, 8], [0, 4], BLOCK)
    request = waiting(20)
    cache.begin(request)
    cache.grow(request, 0, 16)
    kept = list(request.tables[1])
    cache.slide(request, 15)
    assert request.tables[1] == [-1, -1, -1, kept[3]]
    cache.slide(request, 15)
    assert cache.pools.num_available(1) == 7
    assert cache.pools.num_available(0) == 4
    cache.check_integrity()


def test_a_later_start_leaves_a_gap_that_no_window_reaches() -> None:
    cache = V2Cache([8, 8], [0, 4], BLOCK)
    request = waiting(30)
    cache.begin(request)
    cache.grow(request, 0, 4)
    assert cache.grow(request, 20, 28)
    assert -1 not in request.tables[0]
    # Position 20 sees 17 and later: block 4 and on.
    assert [page == -1 for page in request.tables[1]] == [True] * 4 + [False] * 3
    assert cache.pools.num_available(1) == 5
    cache.check_integrity()


def test_growth_that_does_not_fit_in_one_group_changes_nothing() -> None:
    cache = V2Cache([8, 3], [0, 12], BLOCK)
    request = waiting(30)
    cache.begin(request)
    cache.grow(request, 0, 8)
    before = [list(table) for table in request.tables]
    cache.handed_out()
    assert not cache.grow(request, 8, 28)
    assert request.tables == before
    assert cache.handed_out() == [[], []]
    assert cache.num_available == 6 + 1


def test_what_is_computed_is_matched_by_another_request() -> None:
    cache = V2Cache([8, 8], [0, 5], BLOCK)
    first, second = waiting(18), waiting(18)
    cache.begin(first)
    cache.grow(first, 0, 18)
    first.cursor = 9
    cache.store_computed(first)
    assert cache.begin(second) == 8
    assert second.tables == [first.tables[0][:2], [-1, first.tables[1][1]]]
    cache.release(second.tables)
    first.cursor = 18
    cache.store_computed(first)
    first.tokens += [50, 51, 52]
    cache.store_finished(first)
    cache.release(first.tables)
    third = waiting(18)
    third.tokens += [50, 51, 52, 53]
    third.context_len = 22
    assert cache.begin(third) == 20
    cache.release(third.tables)
    assert cache.num_available == 16
    assert cache.forget() == 10
    assert (cache.num_evicted, cache.num_groups, cache.tokens_per_block) == (10, 2, BLOCK)
    cache.check_integrity()


def test_a_dummy_borrows_a_page_of_each_group() -> None:
    cache = V2Cache([2, 1], [0, 5], BLOCK)
    tables = cache.borrow_page()
    assert tables == [[1], [0]]
    assert cache.borrow_page() is None
    cache.release(tables)
    assert cache.num_available == 3
