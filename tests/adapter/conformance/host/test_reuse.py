import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.conformance.host.reuse import ReuseTree

SCOPE = ()


def tree(*, partial: bool = False) -> ReuseTree:
    return ReuseTree(4, partial=partial)


def test_full_blocks_match_up_to_the_last_token() -> None:
    reuse = tree()
    reuse.store(SCOPE, range(12), [5, 6, 7])
    assert reuse.match(SCOPE, range(13)).full_blocks == [5, 6, 7]
    found = reuse.match(SCOPE, range(12))  # its last block holds the last prompt token
    assert (found.full_blocks, found.tail_block) == ([5, 6], None)
    assert reuse.match(SCOPE, [9, *range(12)]).full_blocks == []


def test_partial_reuse_matches_inside_a_block() -> None:
    reuse = tree(partial=True)
    reuse.store(SCOPE, range(12), [5, 6, 7])
    found = reuse.match(SCOPE, range(12))
    assert (found.full_blocks, found.tail_block, found.tail_tokens) == ([5, 6], 7, 3)
    found = reuse.match(SCOPE, [0, 1, 2, 3, 4, 5, 99, 100, 101])
    assert (found.full_blocks, found.tail_block, found.tail_tokens) == ([5], 6, 2)


def test_an_identical_tail_matches_even_without_partial_reuse() -> None:
    reuse = tree()
    reuse.store(SCOPE, range(6), [5, 6])
    found = reuse.match(SCOPE, range(7))
    assert (found.full_blocks, found.tail_block, found.tail_tokens) == ([5], 6, 2)
    assert reuse.match(SCOPE, range(8)).tail_block is None
    assert reuse.match(SCOPE, range(6)).tail_block is None


def test_scopes_are_apart() -> None:
    reuse = tree()
    reuse.store(("a",), range(8), [1, 2])
    assert reuse.match(("b",), range(9)).full_blocks == []
    assert reuse.match(("a",), range(9)).full_blocks == [1, 2]


def test_the_first_page_of_a_prefix_stays() -> None:
    reuse = tree()
    reuse.store(SCOPE, range(4), [1])
    reuse.store(SCOPE, range(8), [2, 3])
    assert reuse.match(SCOPE, range(9)).full_blocks == [1, 3]
    assert 2 not in reuse
    assert len(reuse) == 2


def test_removal_takes_the_subtree() -> None:
    reuse = tree()
    reuse.store(SCOPE, range(12), [1, 2, 3])
    reuse.store(SCOPE, [0, 1, 2, 3, 9, 9, 9, 9], [1, 4])
    assert reuse.is_leaf(4)
    assert not reuse.is_leaf(1)
    assert set(reuse.remove(2)) == {2, 3}
    assert reuse.match(SCOPE, range(13)).full_blocks == [1]
    assert reuse.remove(1)[0] == 1
    assert len(reuse) == 0
    with pytest.raises(KeyError):
        reuse.remove(1)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=8),
    st.lists(st.integers(0, 2), min_size=1, max_size=14),
    st.booleans(),
)
def test_a_match_is_a_true_prefix_of_something_stored(
    stored: list[list[int]], prompt: list[int], partial: bool
) -> None:
    reuse, holds, next_block = tree(partial=partial), {}, 0
    for tokens in stored:
        blocks = list(range(next_block, next_block + -(-len(tokens) // 4)))
        next_block += len(blocks)
        reuse.store(SCOPE, tokens, blocks)
        for ordinal, block in enumerate(blocks):
            holds[block] = tokens[: (ordinal + 1) * 4]
    found = reuse.match(SCOPE, prompt)
    for ordinal, block in enumerate(found.full_blocks):
        assert holds[block] == prompt[: (ordinal + 1) * 4]
    matched = len(found.full_blocks) * 4 + found.tail_tokens
    assert matched < len(prompt)
    if found.tail_block is not None:
        assert holds[found.tail_block][:matched] == prompt[:matched]
