"""The stream of KV events: which chunks L1 came to hold, and which it holds no more.

Purpose: a bounded ring of events with rising numbers, written by whoever publishes, drops or clears
chunks, and by nobody before a reader has asked. Must not know: readers, the index, frames. Runs in:
the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocol.events import CLEARED, MAX_EVENT_CHUNKS, REMOVED, STORED, KvEvent
from protocol.ids import ID_BYTES, Fingerprint

RING_CHUNKS = 1 << 16
"""Chunks that the events which are kept name at most; one that names none counts as one."""

REPLY_CHUNKS = 1 << 14
"""Chunks that the events of one reply name at most: a quarter of a megabyte of keys."""

BYTES_FOR_EVENTS = 20 << 20
"""What the ring takes at most: 280 bytes for an event of one chunk, and its place."""

_STEP = MAX_EVENT_CHUNKS * ID_BYTES


@dataclass(frozen=True)
class Part:
    """A part of the stream.

    Attributes:
        cursor: number of the event after it.
        lost: events between what was asked for and ``cursor`` are gone.
        events: in order.
    """

    cursor: int
    lost: bool
    events: tuple[KvEvent, ...] = ()


def _nobody() -> None:
    """Who is told of new events."""


class EventLog:
    """The ring.

    Args:
        ring_chunks: chunks that it names at most: a power of two, and no less than one event may.

    Attributes:
        first: number of the oldest event that is kept.
        next: number of the next event.
        told: called when there is something new.
    """

    def __init__(self, ring_chunks: int = RING_CHUNKS) -> None:
        self._limit = ring_chunks
        self._mask = ring_chunks - 1
        self._ring: list[KvEvent | None] = [None] * ring_chunks
        self._num_chunks = 0
        # Chunks that go one by one become one event, unless somebody asks in between.
        self._going = Fingerprint(b"")
        self._gone: list[bytes] = []
        self.first = self.next = 1
        self.told: Callable[[], None] = _nobody

    def _append(self, event: KvEvent) -> None:
        weight = len(event.keys) // ID_BYTES or 1
        while self._num_chunks + weight > self._limit:
            oldest = self._ring[self.first & self._mask]
            assert oldest is not None
            self._ring[self.first & self._mask] = None
            self._num_chunks -= len(oldest.keys) // ID_BYTES or 1
            self.first += 1
        self._ring[self.next & self._mask] = event
        self._num_chunks += weight
        self.next += 1

    def stored(self, fingerprint: Fingerprint, keys: bytes, parent: bytes) -> None:
        """Chunks became complete.

        Args:
            fingerprint: of the namespace.
            keys: 16 bytes each, consecutive chunks of one chain.
            parent: key of the chunk before the first; empty at a chain's start.
        """
        self.flush()
        for begin in range(0, len(keys), _STEP):
            part = keys[begin : begin + _STEP]
            self._append(KvEvent(kind=STORED, fingerprint=fingerprint, keys=part, parent=parent))
            parent = part[-ID_BYTES:]
        self.told()

    def removed(self, fingerprint: Fingerprint, key: bytes) -> None:
        """A complete chunk went; nothing that is held continues it."""
        gone = self._gone
        if gone and (fingerprint != self._going or len(gone) == MAX_EVENT_CHUNKS):
            self.flush()
            gone = self._gone
        self._going = fingerprint
        gone.append(key)
        self.told()

    def cleared(self, fingerprint: Fingerprint) -> None:
        """All chunks of a namespace went at once."""
        self.flush()
        self._append(KvEvent(kind=CLEARED, fingerprint=fingerprint))
        self.told()

    def flush(self) -> None:
        """Makes an event of what went one by one."""
        if self._gone:
            keys, self._gone = b"".join(self._gone), []
            self._append(KvEvent(kind=REMOVED, fingerprint=self._going, keys=keys))

    def read(self, cursor: int, most: int) -> Part:
        """What follows a place in the stream.

        Args:
            cursor: number of the first event wanted.
            most: events wanted.

        Returns:
            Nothing but the present end, and ``lost``, if that event is not kept, or has not
            happened and is not the next one.
        """
        self.flush()
        if not self.first <= cursor <= self.next:
            return Part(self.next, True)
        events: list[KvEvent] = []
        num_chunks = 0
        for number in range(cursor, min(self.next, cursor + most)):
            event = self._ring[number & self._mask]
            assert event is not None
            num_chunks += len(event.keys) // ID_BYTES
            if num_chunks > REPLY_CHUNKS:
                break
            events.append(event)
        return Part(cursor + len(events), False, tuple(events))
