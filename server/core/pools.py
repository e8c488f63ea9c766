"""The copier's mappings of pools.

Purpose: have each session's pool opened, closed, and opened again after the copier was lost; tell
who waits. Must not know: why a pool is wanted, how it is mapped. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from protocol.ids import PoolId
from protocol.layout import FileMemory
from server.core.copies import CopyWindow
from server.core.effects import HOST_COPIER, ClosePool, OpenPool, PoolHandle
from server.core.namespaces import PoolState, Session
from server.core.outbox import Outbox
from server.core.roster import Roster


class Pools:
    """Mappings by handle.

    Args:
        roster: sessions.
        outbox: where effects go.
        window: of the host copier.

    Attributes:
        came: called with a session when its pool was opened, or with why it was not.
        went: called with a session whose pool is not mapped any more, or may be closed now.
    """

    def __init__(self, roster: Roster, outbox: Outbox, window: CopyWindow) -> None:
        self._roster = roster
        self._outbox = outbox
        self._window = window
        self._by_handle: dict[PoolHandle, Session] = {}
        self._next_handle = 1
        self.came: Callable[[Session, str | None], None] = lambda session, error: None
        self.went: Callable[[Session], None] = lambda session: None

    def open(self, session: Session) -> None:
        """Asks the copier for a session's pool, or notes that it has to be asked later."""
        assert isinstance(session.memory, FileMemory)
        self._by_handle.pop(session.handle, None)
        session.handle = PoolHandle(self._next_handle)
        self._next_handle += 1
        self._by_handle[session.handle] = session
        if not self._window.is_up:
            session.pool_state = PoolState.LOST
            return
        session.pool_state = PoolState.OPENING
        self._outbox.add(
            OpenPool(
                copier=HOST_COPIER,
                handle=session.handle,
                process=session.process,
                pool=PoolId(session.memory.pool),
                memory=session.memory,
            )
        )

    def opened(self, handle: PoolHandle, error: str | None) -> None:
        """OpenPool ended."""
        session = self._by_handle.get(handle)
        if session is None or session.pool_state is not PoolState.OPENING:
            return
        session.pool_state = PoolState.OPEN if error is None else PoolState.NONE
        self.came(session, error)
        self.went(session)

    def close(self, session: Session) -> None:
        """Has a session's open pool unmapped; no copy from it is running."""
        session.pool_state = PoolState.CLOSING
        self._outbox.add(ClosePool(HOST_COPIER, session.handle))

    def closed(self, handle: PoolHandle) -> None:
        """ClosePool ended."""
        session = self._by_handle.get(handle)
        if session is not None and session.pool_state is PoolState.CLOSING:
            session.pool_state = PoolState.NONE
            self.went(session)

    def forget(self, session: Session) -> None:
        """A session is over."""
        self._by_handle.pop(session.handle, None)

    def copier_lost(self) -> None:
        """The copier is gone, and its mappings with it."""
        self._lose(self._window.lost)

    def copier_stuck(self, life: int) -> None:
        """The copier was killed and does not die: nothing new is copied by it."""
        self._lose(partial(self._window.strand, life))

    def _lose(self, fail_copies: Callable[[], None]) -> None:
        lost = [
            one for one in self._roster.sessions.values() if one.pool_state is not PoolState.NONE
        ]
        # Before its copies fail: what ends with them must not ask a dead copier to close a pool.
        for session in lost:
            session.pool_state = PoolState.LOST
        fail_copies()
        for session in lost:
            self.went(session)

    def copier_ready(self) -> None:
        """The copier runs again: it is asked for every mapping."""
        self._window.is_up = True
        for session in self._roster.sessions.values():
            if session.pool_state is PoolState.LOST and not session.is_closing:
                self.open(session)
