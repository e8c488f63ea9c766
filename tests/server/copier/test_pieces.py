"""Jobs in pieces: every byte once, in order, without gaps; nothing out of bounds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from server.copier.pieces import check_bounds, cut, target_runs

TRIPLES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 12)), max_size=12
)


def parts(*triples: tuple[int, int, int]) -> NDArray[np.int64]:
    return np.ascontiguousarray(np.array(triples, dtype=np.int64).reshape(-1, 3).transpose())


@given(TRIPLES, st.integers(1, 40))
def test_pieces_hold_each_byte_once_and_in_order(
    triples: list[tuple[int, int, int]], piece_bytes: int
) -> None:
    moves = [(s + i, t + i) for s, t, n in triples for i in range(n)]
    found, at = [], 0
    for piece in cut(parts(*triples), piece_bytes):
        assert piece.moves.num_bytes == min(piece_bytes, len(moves) - at)
        at += piece.moves.num_bytes
        filled = 0
        for source, within, target, length in zip(
            piece.moves.sources, piece.within, piece.moves.targets, piece.moves.sizes, strict=True
        ):
            assert within == filled
            assert length > 0
            filled += length
            found += [(source + i, target + i) for i in range(length)]
    assert found == moves


@given(TRIPLES, st.integers(1, 40))
def test_runs_write_each_byte_where_it_belongs(
    triples: list[tuple[int, int, int]], piece_bytes: int
) -> None:
    for piece in cut(parts(*triples), piece_bytes):
        runs = target_runs(piece)
        by_part = [
            (within + i, target + i)
            for within, target, length in zip(
                piece.within, piece.moves.targets, piece.moves.sizes, strict=True
            )
            for i in range(length)
        ]
        assert [(w + i, t + i) for w, t, n in runs for i in range(n)] == by_part
        assert all(a[1] + a[2] != b[1] for a, b in pairwise(runs))


def test_neighbours_in_the_extent_are_one_run() -> None:
    [piece] = cut(parts((500, 100, 10), (0, 110, 10), (20, 130, 10)), 100)
    assert target_runs(piece) == [(0, 100, 20), (20, 130, 10)]


def test_a_page_longer_than_a_piece_is_cut() -> None:
    lengths = [piece.moves.sizes.tolist() for piece in cut(parts((0, 0, 25), (100, 50, 5)), 10)]
    assert lengths == [[10], [10], [5, 5]]


GOOD = (0, 1000, 64)


def test_what_lies_within_passes() -> None:
    check_bounds(parts(GOOD, (936, 4032, 64), (1000, 4096, 0)), 1000, 1000, 4096)
    check_bounds(parts(), 1000, 1000, 4096)


@pytest.mark.parametrize(
    "triple",
    [
        (-1, 1000, 10),
        (0, 999, 10),
        (0, 0, 10),
        (991, 1000, 10),
        (0, 4087, 10),
        (0, 1000, -1),
        (2**62, 1000, 10),
        (0, 2**62, 10),
        (0, 1000, 2**62),
        (2**63 - 1, 1000, 2**63 - 1),
        (0, -(2**63), 10),
        (-(2**63), 1000, 10),
        (0, 1000, -(2**63)),
    ],
)
def test_b48_a_part_out_of_bounds_is_refused(triple: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="outside"):
        check_bounds(parts(GOOD, triple, GOOD), 1000, 1000, 4096)
