"""What a reader of the event stream asks next, and what the answers tell it.

Purpose: EVENTS and SNAPSHOT in the order that leaves no gap: where the stream is, then all pages of
what is held, then what followed. Who applies all that it is told, in order, knows exactly what L1
holds whenever nothing more comes. Must not know: connections, who applies it. Runs in: the thread
of whoever asks, outside the server's process.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.events import EVENT_KINDS, KvEvent
from protocol.ids import ID_BYTES
from protocol.messages import Body, Events, EventsReply, Snapshot, SnapshotReply


@dataclass(frozen=True)
class Begun:
    """What was known is void: all that is held is told anew.

    Attributes:
        cursor: number of the first event that follows.
    """

    cursor: int


@dataclass(frozen=True)
class Page:
    """Chunks that are held.

    Attributes:
        fingerprint: of the namespace.
        chunks: key of each, and of the chunk before it; empty at a chain's start.
    """

    fingerprint: bytes
    chunks: tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True)
class Current:
    """The last page was told: events follow."""


Told = Begun | Page | Current | KvEvent


class EventReader:
    """One reader; a new one for each connection, since a server's numbers end with it.

    Args:
        wait_ms: how long the server is asked to wait for news.
        with_pages: whether to ask for what is held; without, only what happens is told.

    Attributes:
        cursor: number of the event that is asked for next; 0 before the first answer.
        is_current: nothing was left to tell when the server last answered.
    """

    def __init__(self, wait_ms: int, with_pages: bool = True) -> None:
        self._wait_ms = wait_ms
        self._with_pages = with_pages
        self._page: Snapshot | None = None
        self.cursor = 0
        self.is_current = False

    def ask(self) -> Events | Snapshot:
        """What to ask now."""
        if self._page is not None:
            return self._page
        return Events(cursor=self.cursor, wait_ms=self._wait_ms if self.is_current else 0)

    def take(self, reply: Body) -> list[Told]:
        """Takes the answer to what ``ask`` said.

        Args:
            reply: its body.

        Returns:
            What it tells, in order.
        """
        if isinstance(reply, SnapshotReply):
            return self._turned(reply)
        assert isinstance(reply, EventsReply), reply
        if reply.lost or any(event.kind not in EVENT_KINDS for event in reply.events):
            self.cursor, self.is_current = reply.cursor, False
            self._page = Snapshot() if self._with_pages else None
            return [Begun(reply.cursor)]
        self.cursor = reply.cursor
        self.is_current = not reply.events
        return list(reply.events)

    def _turned(self, reply: SnapshotReply) -> list[Told]:
        told: list[Told] = []
        if reply.keys:
            pairs = zip(_keys(reply.keys), _keys(reply.parents), strict=True)
            chunks = tuple((key, parent.strip(b"\0") and parent) for key, parent in pairs)
            told.append(Page(reply.fingerprint, chunks))
        if reply.next_fingerprint:
            self._page = Snapshot(fingerprint=reply.next_fingerprint, position=reply.next_position)
        else:
            self._page = None
            told.append(Current())
        return told


def _keys(blob: bytes) -> list[bytes]:
    return [blob[at : at + ID_BYTES] for at in range(0, len(blob), ID_BYTES)]
