from hypothesis import given
from hypothesis import strategies as st

from adapter.conformance.demo.expected import PerfectCache, trace_blocks
from adapter.conformance.demo.trace import BLOCK_TOKENS, read_trace

SIZE = 3
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=14)


@given(st.lists(TOKENS, max_size=6), TOKENS)
def test_hits_are_the_longest_stored_prefix_of_whole_blocks(
    stored: list[list[int]], prompt: list[int]
) -> None:
    cache = PerfectCache(SIZE)
    for tokens in stored:
        cache.add(tokens)
    # From the definition, the other way round: try every end, the longest first.
    usable = [
        end
        for end in range(SIZE, len(prompt), SIZE)
        if any(len(tokens) > end and tokens[:end] == prompt[:end] for tokens in stored)
    ]
    assert cache.hit_tokens(prompt) == max(usable, default=0)


def test_the_last_token_is_neither_stored_nor_matched() -> None:
    cache = PerfectCache(SIZE)
    cache.add([1, 2, 3])
    assert cache.hit_tokens([1, 2, 3, 4]) == 0
    cache.add([1, 2, 3, 4])
    assert cache.hit_tokens([1, 2, 3]) == 0
    assert cache.hit_tokens([1, 2, 3, 9]) == 3


def test_large_token_ids_do_not_run_into_each_other() -> None:
    cache = PerfectCache(2)
    cache.add([1, 256, 0])
    assert cache.hit_tokens([257, 0, 0]) == 0


def test_trace_blocks_by_hand() -> None:
    records = [
        (10, [7, 8, 9]),  # two full blocks, none seen before
        (12, [7, 8, 5]),  # three full; 7 and 8 hit
        (8, [7, 8]),  # two full; 7 hits, 8 holds the last token
        (13, [6, 8, 5, 4]),  # three full; 6 is new, so nothing leads to 8
        (9, [9, 1, 2]),  # 9 was partial before: not stored
    ]
    assert trace_blocks(records, 4) == (3, 2 + 3 + 2 + 3 + 2)


def test_the_excerpt_counts_as_published() -> None:
    records = [(r.num_tokens, r.block_ids) for r in read_trace()]
    assert trace_blocks(records, BLOCK_TOKENS) == (2278, 13662)
