"""Pieces: byte ranges, turns, the window, and a copier that ends."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protocol.extents import cut
from protocol.ids import ExtentId, Fingerprint, SessionId
from protocol.layout import Region, ShardPool
from server.core.clock import Clock, Timers
from server.core.copies import CopyWindow, Piece, spans
from server.core.effects import HOST_COPIER, JobId, PoolHandle, StartCopy
from server.core.outbox import Outbox


class Ends(list[tuple[int, str | None]]):
    """Numbers of ended pieces, and why."""


def piece(
    session: int, ends: Ends, number: int = 0, wanted: bool = True, size: int = 4096
) -> Piece:
    geometry = cut(ExtentId(1), Fingerprint(b"f" * 16), 0, 1, size, 1 << 20)
    region = Region(offset_bytes=0, size_bytes=size, stride_bytes=size)
    return Piece(
        session=SessionId(session),
        pool=PoolHandle(1),
        layout=ShardPool(shard=0, num_pages=100, regions=(region,)),
        geometry=geometry,
        local=np.array([number], dtype=np.uint32),
        pages=np.array([number], dtype=np.int32),
        num_bytes=size,
        wanted=lambda: wanted,
        ended=lambda piece, error: ends.append((number, error)),
    )


@given(
    blocks=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=3),
    slots=st.lists(st.integers(0, 7), min_size=1, max_size=5, unique=True),
    data=st.data(),
)
def test_spans_cover_each_slot_exactly(
    blocks: int, sizes: list[int], slots: list[int], data: st.DataObject
) -> None:
    page_bytes = sum(sizes)
    payload_bytes = page_bytes * blocks
    geometry = cut(ExtentId(1), Fingerprint(b"f" * 16), 0, blocks, payload_bytes, 1 << 20)
    regions, offset = [], 100
    for size in sizes:
        regions.append(Region(offset_bytes=offset, size_bytes=size, stride_bytes=size + 3))
        offset += (size + 3) * 50
    ids = st.integers(0, 49)
    pages = data.draw(st.lists(ids, min_size=blocks * len(slots), max_size=blocks * len(slots)))
    one = Piece(
        session=SessionId(1),
        pool=PoolHandle(1),
        layout=ShardPool(shard=0, num_pages=50, regions=tuple(regions)),
        geometry=geometry,
        local=np.array(slots, dtype=np.uint32),
        pages=np.array(pages, dtype=np.int32),
        num_bytes=payload_bytes * len(slots),
        wanted=lambda: True,
        ended=lambda piece, error: None,
    )
    sources, targets, lengths = spans(one)
    assert int(lengths.sum()) == one.num_bytes
    at = 0
    for position, slot in enumerate(slots):
        target = geometry.slot_offset_bytes(slot)
        for block in range(blocks):
            for region in regions:
                page = pages[position * blocks + block]
                assert int(sources[at]) == region.offset_bytes + page * region.stride_bytes
                assert int(targets[at]) == target
                assert int(lengths[at]) == region.size_bytes
                target += region.size_bytes
                at += 1
    assert at == len(sources) == len(targets) == len(lengths)


def started(outbox: Outbox) -> list[JobId]:
    return [effect.job for effect in outbox.take() if isinstance(effect, StartCopy)]


def test_the_window_bounds_bytes_in_flight_and_sessions_take_turns() -> None:
    outbox, ends = Outbox(Timers(Clock())), Ends()
    window = CopyWindow(HOST_COPIER, 3 * 4096, outbox)
    for number in range(6):
        window.add(piece(1, ends, number))
    window.add(piece(2, ends, 10))
    window.pump()
    jobs = started(outbox)
    assert len(jobs) == 3
    assert window.flying_bytes == 3 * 4096
    order = [int(piece.local[0]) for piece in window.flying.values()]
    assert order == [0, 10, 1]
    window.done(jobs[1], None)
    window.pump()
    assert ends == [(10, None)]
    assert len(started(outbox)) == 1
    window.done(JobId(999), None)
    assert window.flying_bytes == 3 * 4096


def test_a_piece_larger_than_the_window_goes_alone() -> None:
    outbox, ends = Outbox(Timers(Clock())), Ends()
    window = CopyWindow(HOST_COPIER, 4096, outbox)
    window.add(piece(1, ends, 1, size=65536))
    window.add(piece(1, ends, 2))
    window.pump()
    (job,) = started(outbox)
    window.done(job, None)
    window.pump()
    assert len(started(outbox)) == 1


def test_unwanted_pieces_end_without_being_started() -> None:
    outbox, ends = Outbox(Timers(Clock())), Ends()
    window = CopyWindow(HOST_COPIER, 1 << 20, outbox)
    window.add(piece(1, ends, 1, wanted=False))
    window.add(piece(1, ends, 2))
    window.pump()
    assert len(started(outbox)) == 1
    assert [number for number, _ in ends] == [1]
    window.add(piece(2, ends, 3, wanted=False))
    window.add(piece(2, ends, 4))
    window.drop_unwanted(SessionId(2))
    assert [number for number, _ in ends] == [1, 3]


def test_a_lost_copier_ends_everything_with_an_error() -> None:
    outbox, ends = Outbox(Timers(Clock())), Ends()
    window = CopyWindow(HOST_COPIER, 4096, outbox)
    for number in range(3):
        window.add(piece(1, ends, number))
    window.pump()
    window.lost()
    assert [number for number, error in ends if error] == [0, 1, 2]
    assert window.is_idle
    assert window.flying_bytes == 0
    window.add(piece(1, ends, 9))
    window.pump()
    assert len(started(outbox)) == 1  # of before


def test_pieces_of_a_copier_that_does_not_die_end_when_it_is_gone() -> None:
    outbox, ends, stranded = Outbox(Timers(Clock())), Ends(), []
    window = CopyWindow(HOST_COPIER, 4096, outbox)
    flying, waiting = piece(1, ends, 1), piece(1, ends, 2)
    flying.stranded = lambda one: stranded.append(int(one.local[0]))
    window.add(flying)
    window.add(waiting)
    window.pump()
    (job,) = started(outbox)
    window.strand(7)
    assert (stranded, ends) == ([1], [(2, "the copier ended")])
    assert not window.is_up
    assert window.is_idle  # a drain does not wait for it
    assert window.flying_bytes == 0
    window.done(job, None)  # an answer that was on its way: too late to count
    window.is_up = True
    window.add(piece(1, ends, 3))
    window.pump()
    window.done(started(outbox)[0], None)
    window.gone(6)
    assert ends[1:] == [(3, None)]
    window.gone(7)
    assert ends[2:] == [(1, "the copier ended")]
    assert not window.stranded
