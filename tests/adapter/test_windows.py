"""What a sliding window needs: against the definition, block by block."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adapter.windows import first_needed, loadable_stop, num_left
from protocol.layout import SLOT_DTYPE
from tests.adapter.hostlike import geometry


@given(end=st.integers(0, 60), window=st.integers(0, 40), size=st.integers(1, 6))
def test_needed_blocks_reach_into_the_window(end: int, window: int, size: int) -> None:
    first = first_needed(end, window, size)
    if not window:
        assert first == 0
        return
    needed = [block for block in range(80) if (block + 1) * size > end - window]
    assert first == needed[0]


@given(position=st.integers(0, 60), window=st.integers(1, 40), size=st.integers(1, 6))
def test_a_block_has_left_when_no_token_of_it_is_seen(
    position: int, window: int, size: int
) -> None:
    seen = range(max(0, position - window + 1), position + 1)  # by the token at that position
    gone = num_left(position, window, size)
    for block in range(80):
        is_seen = any(at in seen for at in range(block * size, (block + 1) * size))
        if block < gone:
            assert not is_seen
        elif block * size <= position:
            assert is_seen


@given(
    held=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=8),
    window=st.integers(1, 24),
    chunk=st.integers(1, 3),
    first=st.integers(0, 5),
    surplus=st.integers(0, 2),
    is_divisible=st.booleans(),
)
def test_an_offer_reaches_as_far_as_every_block_that_is_needed_is_held(
    held: list[tuple[bool, bool]],
    window: int,
    chunk: int,
    first: int,
    surplus: int,
    is_divisible: bool,
) -> None:
    geo = geometry(2, chunk, windows=(0, window))
    base = first // chunk
    stop = (base + len(held)) * chunk - min(surplus, chunk - 1)
    if stop <= first:
        return
    slots = np.zeros((len(held), 2), dtype=SLOT_DTYPE)
    for at, (full, sliding) in enumerate(held):
        slots["extent"][at] = (full, sliding)
        slots["generation"][at] = (full, sliding)

    def is_loadable(end: int) -> bool:
        for block in range(first, end):
            full, sliding = held[block // chunk - base]
            if not full or (not sliding and (block + 1) * 2 > end * 2 - window):
                return False
        # The rest of the last chunk, too, comes from the same slot; older ones are not read.
        return True

    good = [end for end in range(first + 1, stop + 1) if is_loadable(end)]
    if is_divisible:
        good = [end for at, end in enumerate(good) if end == first + 1 + at]
    expected = good[-1] if good else first
    assert loadable_stop(slots, (0, window), first, stop, geo, is_divisible) == expected
