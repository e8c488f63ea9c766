"""Notices: order, bound, epochs."""

from __future__ import annotations

from adapter.outbox import EndNotice, Outbox, ReleaseNotice
from protocol.ids import Epoch, LeaseId, RequestKey, SessionId
from protocol.messages import EndSession, Release

OLD, NEW = Epoch(b"o" * 16), Epoch(b"n" * 16)


def end(number: int, epoch: Epoch = NEW) -> EndNotice:
    return EndNotice(epoch, RequestKey(number))


def test_first_in_first_out_and_back_to_the_front() -> None:
    told: list[int] = []
    outbox = Outbox(lambda: told.append(1))
    assert outbox.put(end(1))
    assert outbox.put(end(2))
    first = outbox.take(NEW)
    assert first == end(1)
    outbox.put_back(end(1))
    assert [outbox.take(NEW), outbox.take(NEW), outbox.take(NEW)] == [end(1), end(2), None]
    assert told == [1, 1]


def test_notices_for_a_server_that_is_gone_are_dropped() -> None:
    outbox = Outbox(lambda: None)
    outbox.put(end(1, OLD))
    outbox.put(end(2))
    outbox.put(end(3, OLD))
    assert outbox.take(NEW) == end(2)
    assert outbox.take(NEW) is None
    assert len(outbox) == 0


def test_it_is_bounded() -> None:
    outbox = Outbox(lambda: None, max_notices=2)
    assert outbox.put(end(1))
    assert outbox.put(end(2))
    assert not outbox.put(end(3))
    assert len(outbox) == 2


def test_bodies() -> None:
    notice = ReleaseNotice(NEW, LeaseId(b"l" * 16), 3, 4, True)
    assert notice.body(SessionId(7)) == Release(
        session=7, lease=b"l" * 16, start=3, count=4, all_readers=True
    )
    assert end(5).body(SessionId(7)) == EndSession(session=7, request=5)
