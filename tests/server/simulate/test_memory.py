from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.simulate.memory import Memory, key
from tests.tiers.leaflru import LeafLru


class Prefixes:
    """Chains of small numbers as numbers of prefixes, as a trace has them."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}

    def of(self, chain: list[int]) -> list[int]:
        ends = (tuple(chain[:end]) for end in range(1, len(chain) + 1))
        return [self._numbers.setdefault(end, len(self._numbers)) for end in ends]


def ask(memory: Memory, chunks: list[int], now: int) -> int:
    held = memory.held(chunks, now)
    memory.add(chunks, held, now)
    return held


@given(
    st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=60),
    st.integers(0, 12),
)
def test_it_hits_what_an_independent_count_says(chains: list[list[int]], room: int) -> None:
    prefixes, independent = Prefixes(), LeafLru(room)
    memory = Memory(room, lambda line: None)
    for now, chain in enumerate(chains, 1):
        chunks = prefixes.of(chain)
        assert ask(memory, chunks, now) == independent.ask(chunks, len(chunks))
        assert len(memory) <= room


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=40))
def test_whatever_is_evicted_is_told_once_and_children_go_first(chains: list[list[int]]) -> None:
    prefixes = Prefixes()
    present: dict[int, int | None] = {}

    def evicted(line: list[int]) -> None:
        for chunk in line:
            assert chunk not in present.values()
            assert memory.parent(chunk) == present.pop(chunk)

    memory = Memory(7, evicted)
    for now, chain in enumerate(chains, 1):
        chunks = prefixes.of(chain)
        held = memory.held(chunks, now)
        count = memory.add(chunks, held, now)
        for at in range(held, held + count):
            present[chunks[at]] = chunks[at - 1] if at else None
        assert len(memory) == len(present)


def test_a_prompt_longer_than_memory_keeps_its_beginning() -> None:
    memory = Memory(3, lambda line: None)
    assert memory.add([1, 2, 3, 4, 5], 0, 1) == 3
    assert memory.held([1, 2, 3, 4, 5], 2) == 3
    assert memory.add([1, 2, 3, 4, 5], 3, 2) == 0
    assert memory.add([9], 0, 3) == 1
    assert memory.held([1, 2, 3], 4) == 2


def test_keys_of_numbers_differ() -> None:
    keys = [key(number) for number in range(10_000)]
    assert len(set(keys)) == len(keys)
    assert {len(one) for one in keys} == {16}
    assert len({one[0] for one in keys}) == 256
