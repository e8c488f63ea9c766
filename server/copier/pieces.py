"""Cuts copy jobs into pieces that fit a slot of the bounce buffer, and checks their bounds.

Purpose: a job's bytes, one part after the other, are one long run; piece k is its k-th stretch of
a slot's length. So a piece lies in its slot without gaps, in the job's order, and parts that are
neighbours in the pool stay neighbours on the way. Must not know: devices, sockets, threads. Runs
in: a device copier's main thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Piece:
    """One stretch of a job.

    Attributes:
        sources: int64[n], byte offsets in the pool.
        within: int64[n], byte offsets from the piece's first byte, without gaps.
        targets: int64[n], byte offsets in the extent.
        lengths: int64[n], bytes, positive.
    """

    sources: NDArray[np.int64]
    within: NDArray[np.int64]
    targets: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @property
    def num_bytes(self) -> int:
        """Bytes of all parts."""
        return int(self.within[-1] + self.lengths[-1])


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
        Pieces in order; parts without bytes are left out.
    """
    sources, targets, lengths = parts[:, parts[2] > 0]
    ends = np.cumsum(lengths)
    starts = ends - lengths
    total_bytes = int(ends[-1]) if ends.size else 0
    for begin in range(0, total_bytes, piece_bytes):
        end = min(begin + piece_bytes, total_bytes)
        first = int(np.searchsorted(ends, begin, side="right"))
        last = int(np.searchsorted(starts, end, side="left"))
        # The first and the last part may reach beyond the piece.
        from_ = np.maximum(starts[first:last], begin)
        cut_off = from_ - starts[first:last]
        yield Piece(
            sources=sources[first:last] + cut_off,
            within=from_ - begin,
            targets=targets[first:last] + cut_off,
            lengths=np.minimum(ends[first:last], end) - from_,
        )


def target_runs(piece: Piece) -> list[tuple[int, int, int]]:
    """Joins parts that are neighbours in the extent; within the piece all are.

    Args:
        piece: its parts.

    Returns:
        (offset within the piece, target, length) of each run, in order.
    """
    ends = piece.targets + piece.lengths
    firsts = np.flatnonzero(np.concatenate(([True], piece.targets[1:] != ends[:-1])))
    lengths = np.add.reduceat(piece.lengths, firsts)
    return list(
        zip(
            piece.within[firsts].tolist(),
            piece.targets[firsts].tolist(),
            lengths.tolist(),
            strict=True,
        )
    )
