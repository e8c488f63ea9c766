"""Who has which extent mapped.

Purpose: pass extents to the ranks that read their shard, count what each engine has not mapped yet,
and take emptied extents back; their memory counts until each reader has unmapped them or exited
(design rule 4). Must not know: side connections, the budget. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.ids import ExtentId
from server.core.arena import Arena
from server.core.clock import Clock
from server.core.effects import GiveExtent, TakeExtent
from server.core.extents import Extent, Phase
from server.core.namespaces import Session
from server.core.outbox import Outbox


class Readers:
    """Extents on their way to readers and back.

    Args:
        arena: every extent.
        outbox: where effects go.
        clock: current time.

    Attributes:
        gone: called with a taken extent that no reader has any more.
    """

    def __init__(self, arena: Arena, outbox: Outbox, clock: Clock) -> None:
        self._arena = arena
        self._outbox = outbox
        self._clock = clock
        self.gone: Callable[[Extent], None] = lambda extent: None

    def give(self, extent: Extent, session: Session) -> None:
        """Passes an extent to a reader."""
        extent.readers[session.session] = session
        session.extents[extent.extent] = False
        unmapped = session.instance.unmapped
        unmapped[extent.extent] = unmapped.get(extent.extent, 0) + 1
        self._outbox.add(GiveExtent(session.process, session.session, extent.geometry))

    def mapped(self, session: Session, extent_id: ExtentId) -> None:
        """A reader has mapped and populated an extent."""
        if session.extents.get(extent_id) is False:
            session.extents[extent_id] = True
            self._count_mapped(session, extent_id)

    def unmapped(self, session: Session, extent_id: ExtentId) -> None:
        """A reader has unmapped an extent, or failed to map it, or is gone."""
        was_mapped = session.extents.get(extent_id)
        if was_mapped is None:
            return
        extent = self._arena.extents[extent_id]
        if extent.phase is Phase.TAKEN:
            self.let_go(extent, session)
        elif was_mapped:
            # It still has the descriptor: not ready for it, and asked again when it is taken.
            session.extents[extent_id] = False
            unmapped = session.instance.unmapped
            unmapped[extent_id] = unmapped.get(extent_id, 0) + 1

    def let_go(self, extent: Extent, session: Session) -> None:
        """A reader is known to have no mapping of an extent any more."""
        if session.extents.pop(extent.extent, None) is False:
            self._count_mapped(session, extent.extent)
        extent.readers.pop(session.session, None)
        if extent.phase is Phase.TAKEN and not extent.readers:
            self.gone(extent)

    def _count_mapped(self, session: Session, extent_id: ExtentId) -> None:
        unmapped = session.instance.unmapped
        unmapped[extent_id] -= 1
        if not unmapped[extent_id]:
            del unmapped[extent_id]

    def take(self, extent: Extent) -> None:
        """Takes an emptied extent from its readers; it goes when all have unmapped it.

        Args:
            extent: without used slots.
        """
        extent.phase = Phase.TAKEN
        extent.taken_ns = self._clock.now_ns
        for session in extent.readers.values():
            self._outbox.add(TakeExtent(session.process, session.session, extent.extent))
        if not extent.readers:
            self.gone(extent)
