from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from adapter.conformance.host.errors import HostError
from adapter.conformance.host.v2.pages import NO_PAGE, PagePools, first_seen_block

SCOPE = ("scope",)
BLOCK = 4


@pytest.mark.parametrize("window", [0, 1, 3, 4, 5, 9])
@pytest.mark.parametrize("position", range(20))
def test_first_seen_block_holds_the_oldest_token_in_the_window(window: int, position: int) -> None:
    seen = [p for p in range(position + 1) if not window or p > position - window]
    assert first_seen_block(window, position, BLOCK) == seen[0] // BLOCK


def filled(pools: PagePools, tokens: Sequence[int]) -> list[list[int]]:
    tables = [pools.take(group, len(tokens) // BLOCK) for group in range(len(pools.windows))]
    pools.store(SCOPE, tokens, tables)
    return tables


def test_the_last_page_is_handed_out_first() -> None:
    assert PagePools([6], [0], BLOCK).take(0, 2) == [5, 4]


def test_page_ids_are_a_groups_own() -> None:
    pools = PagePools([6, 3], [0, 5], BLOCK)
    assert (pools.take(0, 1), pools.take(1, 1)) == ([5], [2])
    assert (pools.num_available(0), pools.num_available(1)) == (5, 2)
    with pytest.raises(HostError, match="3 pages wanted, 2 available"):
        pools.take(1, 3)


def test_a_match_has_only_the_pages_that_a_window_reaches() -> None:
    pools = PagePools([8, 8], [0, 6], BLOCK)
    tokens = list(range(16))
    full, window = filled(pools, tokens)
    # Position 16 sees 11 and later: the third block's last token.
    assert pools.match(SCOPE, [*tokens, 1]) == [full, [NO_PAGE, NO_PAGE, *window[2:]]]


def test_the_last_token_is_never_matched() -> None:
    pools = PagePools([8], [0], BLOCK)
    (table,) = filled(pools, range(8))
    assert pools.match(SCOPE, range(8)) == [table[:1]]
    assert pools.match(SCOPE, range(9)) == [table]
    assert pools.match(("other",), range(9)) == [[]]


def test_a_window_page_gone_shortens_the_match_to_where_it_is_not_needed() -> None:
    pools = PagePools([8, 8], [0, 4], BLOCK)
    full, window = filled(pools, range(16))
    kept = [window[0], window[1], NO_PAGE, window[3]]
    pools.release([full, window])
    pools.hold([[], kept])
    pools.take(1, 5)  # evicts the one idle page, of the third block
    # Behind the third block nothing is seen but that block's own tokens.
    assert len(pools.match(SCOPE, [*range(12), 1])[0]) == 2
    assert len(pools.match(SCOPE, [*range(16), 1])[0]) == 4


def test_a_full_page_gone_takes_what_is_behind_it() -> None:
    pools = PagePools([4, 8], [0, 4], BLOCK)
    tables = filled(pools, range(16))
    pools.release(tables)
    pools.take(0, 2)  # the two last blocks' pages: leaves go first
    assert len(pools.match(SCOPE, [*range(16), 1])[0]) == 2
    pools.check_integrity()


def test_released_too_often() -> None:
    pools = PagePools([4], [0], BLOCK)
    pools.release([pools.take(0, 1)])
    with pytest.raises(HostError, match="more often than held"):
        pools.release([[3]])


class Machine(RuleBasedStateMachine):
    """Random requests over three groups against what a brute-force reading says."""

    @initialize(pages=st.tuples(*[st.integers(6, 12)] * 3))
    def begin(self, pages: tuple[int, int, int]) -> None:
        self.pools = PagePools(pages, [0, 5, 9], BLOCK)
        self.held: list[tuple[list[int], list[list[int]]]] = []

    @rule(length=st.integers(1, 6), low=st.integers(0, 1), tail=st.integers(0, 3))
    def request(self, length: int, low: int, tail: int) -> None:
        tokens = [(low if i >= 4 else 0) for i in range(length * BLOCK)] + [9] * tail
        tables = self.pools.match(SCOPE, tokens)
        count = len(tokens) // BLOCK
        matched = len(tables[0])
        assert matched * BLOCK < len(tokens)
        for window, table in zip(self.pools.windows, tables, strict=True):
            first = first_seen_block(window, matched * BLOCK, BLOCK)
            assert len(table) == matched
            assert [page == NO_PAGE for page in table] == [i < first for i in range(matched)]
        if any(self.pools.num_available(g) < count - matched for g in range(3)):
            self.pools.release(tables)
            return
        for group, table in enumerate(tables):
            table += self.pools.take(group, count - matched)
        self.pools.store(SCOPE, tokens, tables)
        self.held.append((tokens, tables))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def slide(self, data: st.DataObject) -> None:
        _, tables = data.draw(st.sampled_from(self.held))
        group = data.draw(st.integers(1, 2))
        first = data.draw(st.integers(0, len(tables[group])))
        gone: list[list[int]] = [[] for _ in tables]
        gone[group] = tables[group][:first]
        self.pools.release(gone)
        tables[group][:first] = [NO_PAGE] * first

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        self.pools.release(self.held.pop(index)[1])

    @rule()
    def forget(self) -> None:
        self.pools.forget()

    @invariant()
    def whole(self) -> None:
        if not hasattr(self, "pools"):
            return
        self.pools.check_integrity()
        for group in range(3):
            used = {p for _, tables in self.held for p in tables[group] if p != NO_PAGE}
            total = len(self.pools._groups[group].refs)
            assert self.pools.num_available(group) == total - len(used)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, stateful_step_count=30)
