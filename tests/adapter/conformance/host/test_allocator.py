import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from adapter.conformance.host.allocator import BlockAllocator
from adapter.conformance.host.errors import HostError

SCOPE = ()


def allocator(num_blocks: int, *, reuse: bool = True, partial: bool = True) -> BlockAllocator:
    return BlockAllocator(num_blocks, 4, reuse=reuse, partial=partial)


def test_the_page_freed_last_is_handed_out_first() -> None:
    pages = allocator(8, reuse=False)
    held = pages.take(3)
    pages.take(2)
    pages.release(held)
    assert pages.take(3) == held


def test_released_pages_stay_matchable_until_evicted() -> None:
    pages = allocator(3)
    first = pages.allocate(SCOPE, range(12))
    pages.store(SCOPE, range(12), first.blocks)
    pages.release(first.blocks)
    assert pages.num_available == 3
    again = pages.allocate(SCOPE, range(9))
    assert again.num_matched_tokens == 8
    assert again.blocks[:2] == first.blocks[:2]
    assert again.new_blocks == first.blocks[2:]  # evicted: the oldest leaf
    assert pages.num_evicted == 1
    pages.check_integrity()


def test_matched_pages_are_shared_and_counted() -> None:
    pages = allocator(6)
    first = pages.allocate(SCOPE, range(9))
    pages.store(SCOPE, range(8), first.blocks)
    second = pages.allocate(SCOPE, range(9))
    assert second.blocks[:2] == first.blocks[:2]
    assert [pages.num_references(block) for block in first.blocks] == [2, 2, 1]
    pages.release(first.blocks)
    assert [pages.num_references(block) for block in second.blocks] == [1, 1, 1]
    with pytest.raises(HostError, match="released more often"):
        pages.release(first.blocks[2:])


def test_a_match_inside_a_page_is_copied_to_the_first_new_page() -> None:
    pages = allocator(6)
    first = pages.allocate(SCOPE, range(8))
    pages.store(SCOPE, range(8), first.blocks)
    second = pages.allocate(SCOPE, range(8))
    assert second.num_matched_tokens == 7
    assert second.copy_from == first.blocks[1]
    assert second.blocks == [first.blocks[0], *second.new_blocks]
    assert pages.num_references(first.blocks[1]) == 1


def test_a_pool_of_one_prompt_gives_up_the_copy_rather_than_fail() -> None:
    pages = allocator(2)
    first = pages.allocate(SCOPE, range(8))
    pages.store(SCOPE, range(8), first.blocks)
    pages.release(first.blocks)
    second = pages.allocate(SCOPE, range(8))
    assert (second.num_matched_tokens, second.copy_from) == (4, None)
    pages.check_integrity()


def test_forgetting_frees_what_nobody_holds() -> None:
    pages = allocator(6)
    first = pages.allocate(SCOPE, range(8))
    pages.store(SCOPE, range(8), first.blocks)
    held = pages.allocate(SCOPE, [7] * 5)
    pages.store(SCOPE, [7] * 4, held.blocks)
    pages.release(first.blocks)
    assert pages.forget() == 2
    assert pages.forget() == 0
    assert pages.allocate(SCOPE, [7] * 5).num_matched_tokens == 4
    assert pages.allocate(SCOPE, range(8)).num_matched_tokens == 0
    pages.check_integrity()


def test_reuse_off_matches_nothing() -> None:
    pages = allocator(6, reuse=False)
    first = pages.allocate(SCOPE, range(8))
    pages.store(SCOPE, range(8), first.blocks)
    assert pages.allocate(SCOPE, range(8)).num_matched_tokens == 0


def test_too_few_pages_is_an_error_that_takes_none() -> None:
    pages = allocator(2)
    with pytest.raises(HostError, match="3 pages wanted"):
        pages.take(3)
    assert pages.num_available == 2


class AllocatorMachine(RuleBasedStateMachine):
    """Random requests come and go; every page is always in exactly one state."""

    def __init__(self) -> None:
        super().__init__()
        self.pages = allocator(7)
        self.held: list[tuple[list[int], list[int]]] = []

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=16))
    def allocate(self, prompt: list[int]) -> None:
        if self.pages.num_available >= -(-len(prompt) // 4):
            allocation = self.pages.allocate(SCOPE, prompt)
            assert len(allocation.blocks) == -(-len(prompt) // 4)
            assert allocation.num_matched_tokens < len(prompt)
            assert all(self.pages.num_references(b) == 1 for b in allocation.new_blocks)
            self.held.append((prompt, allocation.blocks))

    @rule(index=st.integers(0, 6))
    def store(self, index: int) -> None:
        if self.held:
            self.pages.store(SCOPE, *self.held[index % len(self.held)])

    @rule(index=st.integers(0, 6))
    def release(self, index: int) -> None:
        if self.held:
            self.pages.release(self.held.pop(index % len(self.held))[1])

    @invariant()
    def pages_are_in_one_state_each(self) -> None:
        self.pages.check_integrity()
        used = {block for _, blocks in self.held for block in blocks}
        assert self.pages.num_available == 7 - len(used)


TestAllocatorMachine = AllocatorMachine.TestCase
TestAllocatorMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
