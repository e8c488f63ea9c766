"""Cuts copy jobs into pieces that fit a bay of the bounce buffer, and checks their bounds.

Purpose: a job's bytes, one part after the other, are one long run; piece k is its k-th stretch of
a bay's length. So a piece lies in its bay without gaps, in the job's order, and parts that are
neighbours in the pool stay neighbours on the way. Must not know: devices, sockets, threads. Runs
in: a device copier's main thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.device.batches import coalesce, split
from protocol.device.interface import Batch


@dataclass(frozen=True)
class Piece:
    """One stretch of a job.

    Attributes:
        moves: sources are byte offsets in the pool, targets byte offsets in the extent.
        within: int64[n], byte offset of each from the piece's first byte, without gaps.
    """

    moves: Batch
    within: NDArray[np.int64]


def check_bounds(
    parts: NDArray[np.int64], pool_bytes: int, first_byte: int, extent_bytes: int
) -> None:
    """Refuses a job of which any part leaves its pool or its extent.

    Args:
        parts: int64[3, n]: sources, targets, lengths in bytes.
        pool_bytes: length of the pool.
        first_byte: lowest offset in the extent that may be written.
        extent_bytes: length of the extent.

    Raises:
        ValueError: a part lies outside.
    """
    sources, targets, lengths = parts
    # Lengths first: with one that is negative or too long, the sums below would mean nothing.
    if ((lengths < 0) | (lengths > pool_bytes)).any():
        raise ValueError("a part lies outside the pool: its length cannot be")
    if ((sources < 0) | (sources > pool_bytes - lengths)).any():
        raise ValueError("a part lies outside the pool")
    if ((targets < first_byte) | (targets > extent_bytes - lengths)).any():
        raise ValueError("a part lies outside the extent")


def cut(parts: NDArray[np.int64], piece_bytes: int) -> Iterator[Piece]:
    """Cuts a job.

    Args:
        parts: int64[3, n], within bounds.
        piece_bytes: longest piece.

    Yields:
        Pieces in order, all but the last of that length; parts without bytes are left out.
    """
    sources, targets, lengths = parts[:, parts[2] > 0]
    for moves in split(Batch(targets, sources, lengths), piece_bytes):
        yield Piece(moves, np.cumsum(moves.sizes) - moves.sizes)


def target_runs(piece: Piece) -> list[tuple[int, int, int]]:
    """Joins parts that are neighbours in the extent; within the piece all are.

    Args:
        piece: its parts.

    Returns:
        (offset within the piece, target, length) of each run, in order.
    """
    joined = coalesce(Batch(piece.moves.targets, piece.within, piece.moves.sizes))
    columns = joined.sources.tolist(), joined.targets.tolist(), joined.sizes.tolist()
    return list(zip(*columns, strict=True))
