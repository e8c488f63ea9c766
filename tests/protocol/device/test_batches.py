import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.device.batches import coalesce, split
from protocol.device.interface import Batch, batch_of

# Few sizes and places, so that neighbours are common.
COPIES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(1, 3)), max_size=30)


def moved(batch: Batch) -> list[tuple[int, int]]:
    """Each byte of a batch in order: where to, where from."""
    columns = (batch.targets.tolist(), batch.sources.tolist(), batch.sizes.tolist())
    return [(t + i, s + i) for t, s, n in zip(*columns, strict=True) for i in range(n)]


def test_neighbours_on_both_ends_become_one() -> None:
    joined = coalesce(batch_of([(0, 100, 8), (8, 108, 8), (16, 200, 8), (24, 208, 4), (40, 0, 4)]))
    assert joined.targets.tolist() == [0, 16, 40]
    assert joined.sources.tolist() == [100, 200, 0]
    assert joined.sizes.tolist() == [16, 12, 4]


@given(COPIES)
def test_joining_moves_the_same_bytes_in_the_same_order(copies: list[tuple[int, int, int]]) -> None:
    batch = batch_of(copies)
    joined = coalesce(batch)
    assert moved(joined) == moved(batch)
    again = coalesce(joined)
    assert len(again.sizes) == len(joined.sizes)


@given(COPIES, st.lists(st.integers(0, 14), unique=True))
def test_copies_are_joined_but_where_they_must_not(
    copies: list[tuple[int, int, int]], begins: list[int]
) -> None:
    batch = batch_of(copies)
    joined = coalesce(batch, np.array(sorted(begins), dtype=np.int64))
    assert moved(joined) == moved(batch)
    touching = sum(
        (a[0] + a[2], a[1] + a[2]) == b[:2] and not {b[0], b[1]} & set(begins)
        for a, b in itertools.pairwise(copies)
    )
    assert len(joined.sizes) == len(copies) - touching


def test_touching_ranges_are_not_joined_over_their_edge() -> None:
    copies = batch_of([(0, 100, 8), (8, 108, 8), (16, 116, 8)])
    for edges, sizes in (([108], [8, 16]), ([16], [16, 8]), ([0, 100, 124], [24]), ([104], [24])):
        joined = coalesce(copies, np.array(edges, dtype=np.int64))
        assert joined.sizes.tolist() == sizes


def test_a_thousand_pages_in_a_row_are_one_copy() -> None:
    at = np.arange(1000, dtype=np.int64) * 4096
    joined = coalesce(Batch(at, at + (1 << 40), np.full(1000, 4096)))
    assert joined.sizes.tolist() == [4096000]


@given(COPIES, st.integers(1, 7))
def test_cutting_moves_the_same_bytes_in_pieces_of_that_size(
    copies: list[tuple[int, int, int]], max_bytes: int
) -> None:
    batch = batch_of(copies)
    cut = list(split(batch, max_bytes))
    assert [byte for piece in cut for byte in moved(piece)] == moved(batch)
    assert all(piece.num_bytes == max_bytes for piece in cut[:-1])
    assert all(0 < piece.num_bytes <= max_bytes for piece in cut)
    assert all((piece.sizes > 0).all() for piece in cut)


def test_a_size_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 0"):
        list(split(batch_of([(0, 1, 1)]), 0))
