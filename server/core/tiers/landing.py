"""What came of a run: which chunks are whole and sound, and their way into the index.

Purpose: chunks are published in order, as far as every part that they need came sound; the first
other one ends the run, and what a tier claimed and has not, or has spoilt, it is told to forget.
What it has and this server has no key for stays there, for servers that have it. A part of a window
group that did not come leaves its cell empty: a LOOKUP sees that. Must not know: how values are
read, who waits. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from protocol.messages import StopReason
from server.core.admission import MORE, Steps
from server.core.index import ABSENT
from server.core.publishing import Publisher
from server.core.reservations import Reservations
from server.core.tiers.misses import Miss
from server.core.tiers.parts import Status
from server.core.tiers.runs import Piece, Run, Span
from server.core.tiers.tiers import Tiers

PUBLISH_BLOCKS = 32
"""Chunks published in one slice, as many as are reserved in one."""


class Landing:
    """Publishes pieces.

    Args:
        reservations: frees slots of parts that did not come.
        publisher: what COMMIT does, too.
        tiers: where bad values are dropped.
        wake: has a run look again.
    """

    def __init__(
        self,
        reservations: Reservations,
        publisher: Publisher,
        tiers: Tiers,
        wake: Callable[[Run], None],
    ) -> None:
        self._wake = wake
        self._reservations = reservations
        self._publisher = publisher
        self._tiers = tiers

    def publish(self, run: Run) -> Steps:
        """Publishes the first piece of a run, which has come; sets ``is_stopping`` if it ends here.

        Args:
            run: with that piece.
        """
        piece = run.pieces[0]
        good = self._judge(run, piece)
        if good < piece.end:
            self._drop_bad(run, piece)
        self._lock(run, good)
        run.landing = max(run.frontier, good)
        yield MORE
        for span in piece.spans:
            statuses = _statuses(piece, span)
            sound = statuses[: max(0, good - span.first)] == Status.OK
            for first, count in _rows(sound):
                yield from self._publish(run, span, span.first + first, count)
                if run.is_stopping:
                    run.landing = run.frontier
                    return
            if not span.share.is_needed and not sound.all():
                # Those of chunks that are not published stay until nothing deeper is read any more.
                base = span.first - span.share.held
                holes = [span.share.slots[base + hole] for hole in np.flatnonzero(~sound).tolist()]
                yield from self._reservations.free(span.share, holes)
        if run.is_cleared:
            run.is_stopping = True
            return
        run.pieces.popleft()
        self._advance(run, good)
        run.is_stopping = good < piece.end

    def _publish(self, run: Run, span: Span, first: int, count: int) -> Steps:
        share = span.share
        for begin in range(first - share.held, first - share.held + count, PUBLISH_BLOCKS):
            end = min(begin + PUBLISH_BLOCKS, first - share.held + count)
            is_free = self._publisher.obstacle(share, begin) is StopReason.NONE
            if run.is_cleared or not is_free:
                run.is_stopping = True
                return
            part = share.slots[begin:end]
            self._publisher.publish(share, begin, part)
            yield MORE

    def _judge(self, run: Run, piece: Piece) -> int:
        """The first chunk of a piece that is not whole, or its end; says why."""
        good = piece.end
        needed = [span for span in piece.spans if span.share.is_needed]
        for span in needed:
            bad = np.flatnonzero(_statuses(piece, span) != Status.OK)
            if bad.size:
                good = min(good, span.first + int(bad[0]))
        if not needed and not any(share.is_needed for share in run.shares):
            good = self._judge_windows(run, piece)
        if good < piece.end:
            run.why = _reason(_at(piece, needed or piece.spans, good))
        return good

    def _judge_windows(self, run: Run, piece: Piece) -> int:
        """Of groups that all have windows, any part makes a chunk."""
        has = np.zeros(piece.end - piece.first, dtype=np.bool_)
        for share in run.shares:
            has[: max(0, share.held - piece.first)] = True
        for span in piece.spans:
            at = span.first - piece.first
            has[at : at + span.length] |= _statuses(piece, span) == Status.OK
        return piece.first + (len(has) if has.all() else int(has.argmin()))

    def _drop_bad(self, run: Run, piece: Piece) -> None:
        tier = run.tier
        if tier is None or not tier.policy.writes or run.is_cleared:
            return
        bad = np.zeros(piece.end - piece.first, dtype=np.bool_)
        locked = np.zeros_like(bad)
        for span in piece.spans:
            if span.share.is_needed:
                statuses, at = _statuses(piece, span), span.first - piece.first
                bad[at : at + span.length] |= statuses == Status.CORRUPT
                bad[at : at + span.length] |= statuses == Status.ABSENT
                locked[at : at + span.length] |= statuses == Status.LOCKED
        if locked.any():
            # Others may have the key. The next write of it here takes its place.
            self._not_there(run, _keys(run, piece, locked), tier.bit)
        keys = _keys(run, piece, bad)
        if keys:
            run.num_drops += 1
            dropped = partial(self._dropped, run, keys, tier.bit)
            name, shards = run.owner.fingerprint, run.owner.num_shards
            self._tiers.drop(tier, name, b"".join(keys), shards, dropped)

    def _dropped(self, run: Run, keys: list[bytes], bit: int, is_done: bool) -> None:
        run.num_drops -= 1
        # What L1 holds of them went below, too: it is written again with the rest.
        self._not_there(run, keys, bit)
        self._wake(run)

    def _not_there(self, run: Run, keys: list[bytes], bit: int) -> None:
        """L1 does not count on a tier for chunks any more."""
        index = run.index
        if index is run.owner.index:
            cells = index.cells[[node for node in index.find_all(keys) if node != ABSENT]]
            index.slots.tiers[cells[cells != ABSENT]] &= np.uint8(~bit & 0xFF)

    def _lock(self, run: Run, good: int) -> None:
        """Locks the last chunk before ``good`` while it is reserved still.

        Once it is published others might evict it, between two slices, and what follows would
        continue nothing.
        """
        if good <= run.frontier:
            return
        unlock(run)
        node = run.index.find(run.key(good - 1))
        run.anchor, run.anchor_life = node, run.index.life[node]
        run.index.locks[node] += 1

    def _advance(self, run: Run, good: int) -> None:
        """The chunks before ``good`` are published."""
        if good > run.frontier and run.tier is not None:
            if run.spares:
                run.tier.count("warmed_chunks", good - run.frontier)
            else:
                run.tier.count("hit_chunks", good - run.frontier)
            run.frontier = good


def unlock(run: Run) -> None:
    """Gives a run's lock back; nothing without one."""
    node, run.anchor = run.anchor, ABSENT
    index = run.index
    if node == ABSENT or index is not run.owner.index or index.life[node] != run.anchor_life:
        return
    index.locks[node] -= 1
    run.owner.leaves.offer(node)


def _statuses(piece: Piece, span: Span) -> NDArray[np.uint8]:
    return np.frombuffer(piece.statuses, np.uint8)[span.at : span.at + span.length]


def _keys(run: Run, piece: Piece, chosen: NDArray[np.bool_]) -> list[bytes]:
    """Of the chosen ones of a piece's chunks."""
    return [run.key(piece.first + int(chunk)) for chunk in np.flatnonzero(chosen)]


def _rows(sound: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Where each row of True begins, and how long it is."""
    if sound.all():
        if sound.size:
            yield 0, int(sound.size)
        return
    edges = np.flatnonzero(np.diff(np.concatenate(([False], sound, [False])).astype(np.int8)))
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield begin, end - begin


def _at(piece: Piece, spans: list[Span], chunk: int) -> set[int]:
    """Statuses of one chunk."""
    return {
        piece.statuses[span.at + chunk - span.first]
        for span in spans
        if span.first <= chunk < span.first + span.length
    }


def _reason(statuses: set[int]) -> Miss | None:
    if Status.CORRUPT in statuses or Status.LOCKED in statuses:
        return Miss.CORRUPT
    if Status.ERROR in statuses or Status.NO_ROOM in statuses:
        return Miss.TIER_ERROR
    return None if statuses == {Status.ABSENT} else Miss.INCOMPLETE
