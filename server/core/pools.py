"""The copiers' mappings of pools.

Purpose: have each session's pool opened by the copier of its memory, closed, and opened again after
that copier was lost; tell who waits. Must not know: why a pool is wanted, how it is mapped. Runs
in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from protocol.ids import PoolId
from protocol.layout import FileMemory, Memory
from server.core.clock import Timers
from server.core.config import SECOND_NS
from server.core.copiers import Copiers
from server.core.effects import ClosePool, CopierId, OpenPool, PoolHandle
from server.core.namespaces import PoolState, Session
from server.core.outbox import Outbox
from server.core.peers import Process
from server.core.roster import Roster

REOPEN_NS = 5 * SECOND_NS
"""When a pool is asked for again that a new copier could not open as the last one did. Its session
cannot be ended for that: its engine may be reading what it was offered."""


class Pools:
    """Mappings by handle.

    Args:
        roster: sessions.
        outbox: where effects go.
        copiers: who maps.
        timers: deadlines.

    Attributes:
        came: called with a session when its pool was opened, or with why it was not.
        went: called with a session whose pool is not mapped any more, or may be closed now.
    """

    def __init__(self, roster: Roster, outbox: Outbox, copiers: Copiers, timers: Timers) -> None:
        self._roster = roster
        self._timers = timers
        self._outbox = outbox
        self._copiers = copiers
        self._by_handle: dict[PoolHandle, Session] = {}
        self._next_handle = 1
        self.came: Callable[[Session, str | None], None] = lambda session, error: None
        self.went: Callable[[Session], None] = lambda session: None

    def check_room(self, process: Process, memory: Memory | None) -> None:
        """Checks that a copier of some memory is there or may be started.

        Args:
            process: whose it is.
            memory: of a registration.

        Raises:
            RequestError: LIMIT_EXCEEDED.
        """
        self._copiers.check_room(process, memory)

    def join(self, process: Process, session: Session) -> None:
        """Finds a new session's copier and has its pool opened.

        Args:
            process: whose session.
            session: with memory for which ``check_room`` had room.
        """
        session.copier = self._copiers.join(process, session.memory)
        self._open(session)

    def _open(self, session: Session) -> None:
        """Asks the copier for a session's pool, or notes that it has to be asked later."""
        memory = session.memory
        assert memory is not None
        self._by_handle.pop(session.handle, None)
        session.handle = PoolHandle(self._next_handle)
        self._next_handle += 1
        self._by_handle[session.handle] = session
        if not self._copiers.windows[session.copier].is_up:
            session.pool_state = PoolState.LOST
            return
        session.pool_state = PoolState.OPENING
        self._outbox.add(
            OpenPool(
                copier=session.copier,
                handle=session.handle,
                process=session.process,
                pool=PoolId(memory.pool) if isinstance(memory, FileMemory) else None,
                memory=memory,
                fingerprint=session.owner.fingerprint,
            )
        )

    def opened(self, handle: PoolHandle, error: str | None) -> None:
        """OpenPool ended."""
        session = self._by_handle.get(handle)
        if session is None or session.pool_state is not PoolState.OPENING:
            return
        session.pool_state = PoolState.OPEN if error is None else PoolState.NONE
        if error is not None and session.is_ready and not session.is_closing:
            due_ns = self._timers.clock.now_ns + REOPEN_NS
            self._timers.at(due_ns, partial(self._open_again, session, handle))
        self.came(session, error)
        self.went(session)

    def _open_again(self, session: Session, handle: PoolHandle) -> None:
        if self._by_handle.get(handle) is session and session.pool_state is PoolState.NONE:
            self._open(session)

    def close(self, session: Session) -> None:
        """Has a session's open pool unmapped; no copy from it is running."""
        session.pool_state = PoolState.CLOSING
        self._outbox.add(ClosePool(session.copier, session.handle))

    def closed(self, handle: PoolHandle) -> None:
        """ClosePool ended."""
        session = self._by_handle.get(handle)
        if session is not None and session.pool_state is PoolState.CLOSING:
            session.pool_state = PoolState.NONE
            self.went(session)

    def forget(self, session: Session) -> None:
        """A session is over."""
        self._by_handle.pop(session.handle, None)
        self._copiers.leave(session.copier)

    # --- copiers --------------------------------------------------------------------------

    def copier_lost(self, copier: CopierId) -> None:
        """A copier is gone, and its mappings with it."""
        window = self._copiers.windows.get(copier)
        if window is not None:
            self._lose(copier, window.lost)

    def copier_stuck(self, copier: CopierId, life: int) -> None:
        """A copier was killed and does not die: nothing new is copied by it."""
        window = self._copiers.windows.get(copier)
        if window is not None:
            self._lose(copier, partial(window.strand, life))

    def copier_gone(self, copier: CopierId, life: int) -> None:
        """A stuck copier is dead after all."""
        window = self._copiers.windows.get(copier)
        if window is not None:
            window.gone(life)

    def _lose(self, copier: CopierId, fail_copies: Callable[[], None]) -> None:
        lost = [one for one in self._of(copier) if one.pool_state is not PoolState.NONE]
        # Before its copies fail: what ends with them must not ask a dead copier to close a pool.
        for session in lost:
            session.pool_state = PoolState.LOST
        fail_copies()
        for session in lost:
            self.went(session)

    def _of(self, copier: CopierId) -> list[Session]:
        sessions = self._roster.sessions.values()
        return [one for one in sessions if one.copier == copier and one.memory is not None]

    def copier_ready(self, copier: CopierId) -> None:
        """A copier runs (again): it is asked for every mapping."""
        if not self._copiers.ready(copier):
            return
        for session in self._of(copier):
            if session.pool_state is PoolState.LOST and not session.is_closing:
                self._open(session)

    def copier_refused(self, copier: CopierId, reason: str) -> None:
        """A device's copier could not be started: whoever waits for it to register is told.

        Those that are registered are told with each of their stores; for them it is tried again.
        """
        for session in self._of(copier):
            if session.pool_state is PoolState.LOST and not session.is_ready:
                self.came(session, reason)
        self._copiers.refused(copier)

    def copier_ended(self, copier: CopierId) -> None:
        """A device's copier is gone for good."""
        self.copier_lost(copier)
        self._copiers.ended(copier)
