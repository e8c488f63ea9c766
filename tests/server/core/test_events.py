"""The ring of events: numbers, bounds, losses, and chunks that go one by one."""

from __future__ import annotations

import os

from protocol import frames, limits
from protocol.events import MAX_EVENT_CHUNKS, MAX_EVENTS, KvEvent
from protocol.ids import ID_BYTES, Fingerprint
from protocol.messages import EventsReply, Op
from server.core.events import BYTES_FOR_EVENTS, REPLY_CHUNKS, RING_CHUNKS, EventLog

ONE, TWO = Fingerprint(b"1" * 16), Fingerprint(b"2" * 16)
KEYS = [bytes([number]) * ID_BYTES for number in range(1, 101)]


def test_events_are_numbered_in_order() -> None:
    log = EventLog()
    log.stored(ONE, b"".join(KEYS[:3]), b"")
    log.removed(ONE, KEYS[2])
    log.cleared(TWO)
    part = log.read(1, 10)
    assert (part.cursor, part.lost) == (4, False)
    assert part.events == (
        KvEvent(kind="stored", fingerprint=ONE, keys=b"".join(KEYS[:3])),
        KvEvent(kind="removed", fingerprint=ONE, keys=KEYS[2]),
        KvEvent(kind="cleared", fingerprint=TWO),
    )
    assert log.read(2, 1) == log.read(2, 1)
    assert log.read(2, 1).events == part.events[1:2]
    assert log.read(4, 10).events == ()
    assert not log.read(4, 10).lost


def test_what_goes_one_by_one_is_one_event_unless_somebody_asks_in_between() -> None:
    log = EventLog()
    for key in KEYS[:5]:
        log.removed(ONE, key)
    log.removed(TWO, KEYS[5])
    assert [event.keys for event in log.read(1, 10).events] == [b"".join(KEYS[:5]), KEYS[5]]
    log.removed(TWO, KEYS[6])
    assert log.read(3, 10).events == (KvEvent(kind="removed", fingerprint=TWO, keys=KEYS[6]),)
    for key in KEYS:
        log.removed(ONE, key)
    sizes = [len(event.keys) // ID_BYTES for event in log.read(4, 10).events]
    assert sizes == [MAX_EVENT_CHUNKS, len(KEYS) - MAX_EVENT_CHUNKS]


def test_a_long_run_of_chunks_is_several_events_that_continue_each_other() -> None:
    log = EventLog()
    log.stored(ONE, b"".join(KEYS), b"p" * ID_BYTES)
    first, second = log.read(1, 10).events
    assert first.parent == b"p" * ID_BYTES
    assert second.parent == first.keys[-ID_BYTES:]
    assert first.keys + second.keys == b"".join(KEYS)


def test_the_oldest_go_and_who_asks_for_them_is_told() -> None:
    log = EventLog(64)
    for _ in range(3):
        log.stored(ONE, b"".join(KEYS[:30]), b"")
    assert log.first == 2
    assert log.read(1, 10) == log.read(99, 10)
    assert (log.read(1, 10).cursor, log.read(1, 10).lost) == (4, True)
    assert len(log.read(2, 10).events) == 2
    log.stored(ONE, b"".join(KEYS[:64]), b"")
    assert (log.first, log.next) == (4, 5)
    for number in range(70):
        log.cleared(ONE)
        assert log.next == number + 6
    assert log.next - log.first == 64


def test_the_fullest_reply_is_one_that_a_client_reads() -> None:
    log = EventLog()
    for _ in range(RING_CHUNKS // MAX_EVENT_CHUNKS):
        log.stored(ONE, os.urandom(MAX_EVENT_CHUNKS * ID_BYTES), b"p" * ID_BYTES)
    part = log.read(1, MAX_EVENTS)
    assert len(part.events) == REPLY_CHUNKS // MAX_EVENT_CHUNKS
    assert part.cursor == 1 + len(part.events)
    many = EventLog()
    for _ in range(MAX_EVENTS):
        many.stored(ONE, b"".join(KEYS[: REPLY_CHUNKS // MAX_EVENTS]), b"p" * ID_BYTES)
    for events in (part.events, many.read(1, MAX_EVENTS).events):
        body = EventsReply(cursor=limits.MAX_U63, lost=True, events=events)
        frame = frames.pack_reply(Op.EVENTS, limits.MAX_U32, body)
        assert frames.unpack_reply(frame).body == body
        assert len(frame) < limits.MAX_FRAME_BYTES // 2


def test_it_tells_that_there_is_something_new() -> None:
    log, told = EventLog(), []
    log.told = lambda: told.append(log.next)
    log.stored(ONE, KEYS[0], b"")
    log.removed(ONE, KEYS[0])
    log.cleared(ONE)
    assert told == [2, 2, 4]


def test_its_memory_is_what_is_accounted_for() -> None:
    import tracemalloc

    tracemalloc.start()
    try:
        log = EventLog()
        for number in range(RING_CHUNKS):
            log.stored(ONE, number.to_bytes(ID_BYTES, "little"), bytes(15) + b"p")
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert BYTES_FOR_EVENTS // 3 < used < BYTES_FOR_EVENTS
