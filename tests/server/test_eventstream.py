"""The order in which a reader asks, and what it makes of each answer."""

from __future__ import annotations

import pytest

from protocol.events import KvEvent
from protocol.messages import Done, Events, EventsReply, Snapshot, SnapshotReply
from server.eventstream import Begun, Current, EventReader, Page

SPACE, NEXT = b"n" * 16, b"o" * 16
KEY, PARENT = b"k" * 16, b"p" * 16
STORED = KvEvent(kind="stored", fingerprint=SPACE, keys=KEY, parent=PARENT)


def test_where_the_stream_is_then_all_pages_then_what_followed() -> None:
    reader = EventReader(wait_ms=500)
    assert reader.ask() == Events(cursor=0)
    assert reader.take(EventsReply(cursor=7, lost=True)) == [Begun(7)]
    assert reader.ask() == Snapshot()
    page = SnapshotReply(
        fingerprint=SPACE,
        keys=KEY + PARENT,
        parents=PARENT + bytes(16),
        next_fingerprint=NEXT,
        next_position=9,
    )
    assert reader.take(page) == [Page(SPACE, ((KEY, PARENT), (PARENT, b"")))]
    assert reader.ask() == Snapshot(fingerprint=NEXT, position=9)
    assert reader.take(SnapshotReply(fingerprint=NEXT, keys=b"", parents=b"")) == [Current()]
    assert reader.ask() == Events(cursor=7)
    assert reader.take(EventsReply(cursor=8, events=(STORED,))) == [STORED]
    # More may be there already, so it does not wait yet.
    assert reader.ask() == Events(cursor=8)
    assert reader.take(EventsReply(cursor=8)) == []
    assert reader.is_current
    assert reader.ask() == Events(cursor=8, wait_ms=500)


@pytest.mark.parametrize(
    "reply",
    [
        EventsReply(cursor=30, lost=True),
        EventsReply(cursor=30, events=(STORED, KvEvent(kind="of tomorrow", fingerprint=SPACE))),
    ],
)
def test_a_loss_and_a_kind_that_is_not_known_have_it_begin_anew(reply: EventsReply) -> None:
    reader = EventReader(wait_ms=0)
    reader.take(EventsReply(cursor=7, lost=True))
    reader.take(SnapshotReply(fingerprint=b"", keys=b"", parents=b""))
    assert reader.take(reply) == [Begun(30)]
    assert reader.ask() == Snapshot()


def test_without_pages_only_what_happens_is_told() -> None:
    reader = EventReader(wait_ms=500, with_pages=False)
    assert reader.take(EventsReply(cursor=7, lost=True)) == [Begun(7)]
    assert reader.ask() == Events(cursor=7)


def test_another_answer_is_a_fault_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        EventReader(wait_ms=0).take(Done())
