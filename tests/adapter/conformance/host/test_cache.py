from adapter.conformance.host.allocator import BlockAllocator
from adapter.conformance.host.cache import V1Cache
from adapter.conformance.host.requests import HostRequest, RequestHandle, RequestParams

SCOPE = (None, None, None)


def running(prompt: tuple[int, ...]) -> HostRequest:
    return HostRequest(1, RequestParams(prompt, 4), RequestHandle(1), None, tokens=list(prompt))


def test_a_prompt_is_matchable_once_all_of_it_is_computed() -> None:
    cache = V1Cache(BlockAllocator(8, 4, reuse=True, partial=False))
    request = running(tuple(range(10)))
    request.tables = [cache.allocator.take(3)]
    request.cursor = 8
    cache.store_computed(request)
    assert cache.allocator.allocate(SCOPE, range(10)).num_matched_tokens == 0
    request.cursor = 10
    cache.store_computed(request)
    assert cache.allocator.allocate(SCOPE, range(10)).num_matched_tokens == 8


def test_a_finished_request_is_matchable_but_for_its_last_token() -> None:
    cache = V1Cache(BlockAllocator(8, 4, reuse=True, partial=False))
    request = running(tuple(range(8)))
    request.tables = [cache.allocator.take(3)]
    request.tokens += [100, 101, 102, 103, 104]
    cache.store_finished(request)
    match = cache.allocator.allocate(SCOPE, [*request.tokens, 7])
    assert (match.num_matched_tokens, match.blocks[:3]) == (12, request.blocks)


def test_references_are_counted_per_page() -> None:
    cache = V1Cache(BlockAllocator(8, 4, reuse=False, partial=False))
    tables = [cache.allocator.take(3)]
    cache.hold(tables)
    cache.release(tables)
    assert cache.num_available == 5
    cache.release(tables)
    assert (cache.num_available, cache.forget(), cache.num_evicted) == (8, 0, 0)
    assert (cache.tokens_per_block, cache.num_groups) == (4, 1)
