"""Exactly one reply per request."""

from __future__ import annotations

from protocol import frames
from protocol.errors import ErrorCode, RequestError
from protocol.ids import ArenaId, Epoch, InstanceId
from protocol.messages import Done, Lookup, Op
from protocol.session import ServerSession
from server.core.clock import Clock, Timers
from server.core.effects import PeerId, SendReply
from server.core.outbox import Outbox, Ticket
from server.core.told import Told

BUSY = RequestError(ErrorCode.BUSY, "busy")


def ticket(outbox: Outbox, deadline_ns: int = 0) -> Ticket:
    session = ServerSession(Epoch(b"e" * 16), ArenaId(b"a" * 16), InstanceId(b"i" * 16))
    session._open.add(5)
    return outbox.open(Ticket(PeerId(b"p"), int(Op.PING), 5, deadline_ns, session))


def test_a_second_answer_is_left_out() -> None:
    outbox = Outbox(Timers(Clock()))
    one = ticket(outbox)
    outbox.reply(one, Done())
    outbox.reply(one, Done())
    outbox.fail(one, BUSY)
    (effect,) = outbox.take()
    assert isinstance(effect, SendReply)
    assert frames.unpack_reply(effect.frame).seq == 5
    assert outbox.take() == []
    assert outbox.num_owed == 0
    assert one.session.num_open == 0


def test_an_error_is_counted_by_name() -> None:
    outbox = Outbox(Timers(Clock()))
    outbox.fail(ticket(outbox), BUSY)
    assert outbox.counters["error_busy"] == 1


def test_a_dropped_connection_gets_nothing_and_owes_nothing() -> None:
    outbox = Outbox(Timers(Clock()))
    one = ticket(outbox)
    one.session.instance = None
    outbox.reply(one, Done())
    assert outbox.take() == []
    assert outbox.num_owed == 0


def test_deadlines() -> None:
    outbox = Outbox(Timers(Clock()))
    assert not ticket(outbox).expired(10**18)
    assert ticket(outbox, 100).expired(100)
    assert not ticket(outbox, 100).expired(99)


def test_an_error_tells_what_it_was_about_and_a_reply_only_where_it_is_wanted() -> None:
    outbox = Outbox(Timers(Clock()))
    outbox.namespace = lambda session: b"f" * session
    body = Lookup(session=3, request=7, start=0, keys=bytes(32))
    for is_cut, traceparent in ((False, ""), (True, ""), (False, "00-x")):
        one = ticket(outbox)
        one.body, one.traceparent = body, traceparent
        outbox.reply(one, Done(), is_cut)
        assert one.body is None
    failed = ticket(outbox)
    failed.body = body
    outbox.fail(failed, BUSY)
    outbox.refuse(PeerId(b"p"), 10, 5, BUSY)
    replies = [effect for effect in outbox.take() if isinstance(effect, SendReply)]
    assert replies[0].told is None
    told = Told(int(Op.PING), 5, 7, b"i" * 16, b"fff", None, Done(), 2)
    assert replies[1].told == told
    assert replies[2].told == told._replace(traceparent="00-x")
    assert replies[3].told == told._replace(error=BUSY, answer=None)
    assert replies[4].told == Told(10, 5, error=BUSY)
    assert outbox.counters["requests_refused"] == 1
