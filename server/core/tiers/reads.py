"""A run's way into slots: reserve some for each shard, and have a tier fill them.

Purpose: pieces of whole chunks, each as large as a few reads at once are worth, with the slots that
a STORE would take, and by the same rules. Must not know: who waits for a run, what is published.
Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.ids import ID_BYTES
from protocol.messages import StopReason
from server.core.admission import MORE, WAIT, Steps
from server.core.arena import Arena
from server.core.config import MIB
from server.core.reservations import FREE_BLOCKS, RESERVE_BLOCKS, Reservations
from server.core.slots import NO_NODE
from server.core.tiers.landing import unlock
from server.core.tiers.misses import Miss
from server.core.tiers.parts import MAX_PARTS, Status
from server.core.tiers.rows import rows
from server.core.tiers.runs import Piece, Run, Share, Span
from server.core.tiers.tiers import Tiers

PIECES = 8
"""Of one run that are read at once."""

LEAST_PIECE_BYTES = MIB
"""A short run is cut into smaller pieces, so that several are read at once; not into smaller ones
than this."""

PIECE_PARTS = 128
"""Most parts of a piece, unless one chunk has more: naming them all is one slice's work."""

BEGIN_SHARDS = 32
"""Shards that are looked up and locked in one slice."""


class Reads:
    """Begins reads.

    Args:
        arena: slots and extents.
        reservations: takes slots.
        tiers: who reads.
        piece_bytes: most bytes of one piece.
        landed: called with a run of which a piece has come.
    """

    def __init__(
        self,
        arena: Arena,
        reservations: Reservations,
        tiers: Tiers,
        piece_bytes: int,
        landed: Callable[[Run], None],
    ) -> None:
        self._piece_bytes = piece_bytes
        self._arena = arena
        self._reservations = reservations
        self._tiers = tiers
        self._landed = landed

    def begin(self, run: Run) -> Steps:
        """Finds where each shard of a run continues, and locks that.

        Args:
            run: with ``tier`` and ``count``.
        """
        assert run.tier is not None
        run.sent, run.is_stopping = run.frontier, False
        keys = run.keys[: run.count * ID_BYTES]
        for shard, is_full in enumerate(run.index.full):
            share = Share(
                run=run,
                shard=shard,
                index=run.index,
                start=run.start,
                parent_key=run.parent_key,
                keys=keys,
                is_needed=is_full,
                task=run.task,
                tiers=run.tier.bit,
                spares=run.spares,
                tenant=run.tenant,
                account=self._arena.accounts.number(run.tenant),
            )
            self._reservations.begin(share)
            run.shares.append(share)
            if shard % BEGIN_SHARDS == BEGIN_SHARDS - 1:
                yield MORE
                if run.is_cleared:
                    return
        sizes = map(run.owner.namespace.slot_payload_bytes, range(run.owner.num_shards))
        chunk_bytes = max(1, sum(sizes))
        wanted = min(self._piece_bytes, max(LEAST_PIECE_BYTES, run.count * chunk_bytes // PIECES))
        most = max(1, PIECE_PARTS // len(run.shares))
        run.chunks_per_piece = max(1, min(most, wanted // chunk_bytes))
        yield MORE

    def may_send(self, run: Run) -> bool:
        """Whether a run wants another piece, and is to have it now."""
        if run.sent >= run.count or len(run.pieces) >= PIECES or run.tier is None:
            return False
        # One piece of each run may wait at the tier, and more if others make way for it soon: slots
        # would be reserved for nothing.
        return not run.pieces or run.tier.may_get(run.flow)

    def send(self, run: Run) -> Steps:
        """Reserves slots for one more piece and has it read.

        Where there are none, or other reasons stand against it, the run's ``count`` is cut to what
        can be read.

        Args:
            run: begun.
        """
        end = min(run.count, run.sent + run.chunks_per_piece)
        spent = 0
        for share in run.shares:
            while share.stop is StopReason.NONE and share.end < end:
                if not self._goes_on(run) or share.is_cleared:
                    run.is_stopping = True
                    return
                slots = self._reservations.reserve(share, end - share.end)
                spent += RESERVE_BLOCKS if slots is None or not slots.size else slots.size
                if spent >= RESERVE_BLOCKS:
                    spent = 0
                    yield WAIT if slots is None else MORE
        if spent:
            yield MORE
        self._cut(run, end)
        if run.sent < min(run.count, end) and self._goes_on(run):
            self._read(run, min(run.count, end))
        else:
            run.is_stopping = run.is_stopping or run.is_cleared or not run.owner.is_wanted

    def _goes_on(self, run: Run) -> bool:
        # Without engines its namespace may end at any moment, and nobody asks for it.
        return not run.is_cleared and not run.is_stopping and run.owner.is_wanted

    def _cut(self, run: Run, end: int) -> None:
        """Leaves out chunks for which some shard has no slot."""
        reach = end
        without: Miss | None = None
        for share in run.shares:
            has_room = share.stop is not StopReason.NO_ROOM
            if share.end < reach and (share.is_needed or not has_room):
                reach = share.end
                without = Miss.INCOMPLETE if has_room else Miss.NO_ROOM
        if not any(share.is_needed for share in run.shares):
            reach = min(reach, max(share.end for share in run.shares))
        if reach < end:
            run.count, run.why = max(run.sent, reach), without

    def _read(self, run: Run, end: int) -> None:
        spans, total = [], 0
        for share in run.shares:
            first, stop = max(run.sent, share.held), min(end, share.end)
            if first < stop:
                spans.append(Span(share, first, stop - first, total))
                total += stop - first
        if not total:  # others hold what is not complete
            run.count, run.why = run.sent, Miss.INCOMPLETE
            return
        piece = Piece(run.sent, end, spans, bytearray([Status.ERROR]) * total)
        run.pieces.append(piece)
        run.sent = end
        parts = self._parts(run, spans)
        begins = range(0, total, MAX_PARTS)
        piece.num_unanswered = len(begins)
        assert run.tier is not None
        for begin in begins:
            part = parts[begin : begin + MAX_PARTS]
            num_bytes = int(part["length"].sum(dtype=np.int64))
            done = partial(self._done, run, piece, begin)
            self._tiers.get(run.tier, run.owner, part, num_bytes, done, run.flow)

    def _parts(self, run: Run, spans: list[Span]) -> NDArray[Any]:
        keys = np.frombuffer(run.keys, "V16")
        before = np.frombuffer((run.parent_key or bytes(ID_BYTES)) + run.keys[:-ID_BYTES], "V16")
        return np.concatenate(
            [
                rows(
                    self._arena,
                    keys[first : first + count],
                    before[first : first + count],
                    np.array(share.slots[first - share.held :][:count], dtype=np.int64),
                )
                for share, first, count, _ in spans
            ]
        )

    def _done(self, run: Run, piece: Piece, begin: int, statuses: bytes) -> None:
        piece.statuses[begin : begin + len(statuses)] = statuses
        piece.num_unanswered -= 1
        if not piece.num_unanswered:
            self._landed(run)

    def free(self, run: Run) -> Steps:
        """Waits until nothing touches a run's slots, and frees those that were not published.

        The slots of what its tier is to forget are kept until it did, so that nobody stores the
        same anew and then loses it below.

        Args:
            run: none of its pieces will be published any more.
        """
        run.is_stopping = True
        while run.num_unanswered or run.num_drops:
            if run.is_lost:
                yield from self._let_go(run)
            # What it waits for may have come during those slices: nobody wakes it again for that.
            if run.num_unanswered or run.num_drops:
                yield WAIT
        for share in run.shares:
            share.planned = True
            self._reservations.unlock(share)
            slots = share.slots[max(0, run.frontier - share.held) :]
            if slots:
                yield from self._reservations.free(share, slots)
                yield MORE
        run.shares.clear()
        run.pieces.clear()

    def _let_go(self, run: Run) -> Steps:
        """Has the index forget what is reserved; the slots themselves stay what they are."""
        table = self._arena.slots
        for share in run.shares:
            slots = share.slots[max(0, run.frontier - share.held) :]
            for number, slot in enumerate(reversed(slots), 1):
                if self._reservations.by_slot.get(slot) is not share:
                    continue
                node = table.node_of[slot]
                if node != NO_NODE and run.index is run.owner.index:
                    self._reservations.detach(slot)
                    self._arena.prune(run.owner, node)
                if number % FREE_BLOCKS == 0:
                    yield MORE
        unlock(run)
