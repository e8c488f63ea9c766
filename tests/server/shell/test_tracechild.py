"""What of traced messages reaches the traces process, and that noting one never waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.errors import ErrorCode, RequestError
from protocol.messages import LookupReply, Op, StopReason, StoreReply
from protocol.traceparent import SpanRef
from server.core.told import Told
from server.shell.complaints import Complaints
from server.shell.tracechild import MAX_PER_S, TraceChild
from server.tracing.wire import MAX_BYTES, READY, Record, unpack

SECOND_NS = 1_000_000_000


@pytest.fixture
def child() -> Iterator[TraceChild]:
    """Not started: whatever is noted stays in the socket."""
    made = TraceChild(1.0, Complaints())
    yield made
    assert made.stop(5)
    made.close()


def told(number: int, **more: Any) -> Told:
    answer = LookupReply(lease=b"", ready=3, pending=1, final=False)
    known = Told(
        int(Op.LOOKUP), 5, 7, b"e" * 16, b"f" * 16, None, answer, 4, str(SpanRef(number, 9))
    )
    return known._replace(**more)


def noted(child: TraceChild) -> list[Record]:
    child._theirs.setblocking(False)
    found = []
    while True:
        try:
            found.append(unpack(child._theirs.recv(MAX_BYTES)))
        except BlockingIOError:
            return found


def test_a_message_is_told_with_its_times_and_its_answer(child: TraceChild) -> None:
    child.note(told(1), 1 * SECOND_NS, 3 * SECOND_NS)
    child.note(
        told(2, op=int(Op.STORE), answer=StoreReply(held=1, copied=2, stop=StopReason.NO_ROOM)),
        3 * SECOND_NS,
        3 * SECOND_NS,
    )
    child.note(told(3, answer=None, error=RequestError(ErrorCode.BUSY, "x")), 0, 3 * SECOND_NS)
    lookup, store, refused = noted(child)
    assert (lookup.op, lookup.request, lookup.chunks) == ("LOOKUP", 7, 4)
    assert lookup.end_ns - lookup.begin_ns == 2 * SECOND_NS
    assert abs(lookup.end_ns - time.time_ns()) < 10 * SECOND_NS
    assert lookup.figures == {"ready": 3, "pending": 1}
    assert (store.figures, store.stop) == ({"held": 1, "copied": 2}, "NO_ROOM")
    assert refused.code == "BUSY"
    assert child.figures()["traces_noted"] == 3


def test_what_is_not_sampled_or_no_traceparent_is_passed_over(child: TraceChild) -> None:
    for text in ("", "nonsense", str(SpanRef(1, 2, False))):
        child.note(told(1, traceparent=text), 1, SECOND_NS)
    assert noted(child) == []
    assert child.figures()["traces_left_out"] == 0


def test_the_ratio_holds_for_whole_traces() -> None:
    half = TraceChild(0.5, Complaints())
    for trace in (1, (1 << 64) - 1):
        for _ in range(2):
            half.note(told(trace), 1, SECOND_NS)
    assert [one.traceparent[3:35] for one in noted(half)] == [f"{1:032x}"] * 2
    half.close()


def test_only_so_many_a_second(child: TraceChild) -> None:
    for number in range(MAX_PER_S + 50):
        child.note(told(number + 1), SECOND_NS, SECOND_NS)
    assert child.figures()["traces_noted"] == MAX_PER_S
    assert child.figures()["traces_left_out"] == 50
    child.note(told(1), SECOND_NS, SECOND_NS + SECOND_NS // 10)
    assert child.figures()["traces_noted"] == MAX_PER_S + 1


def test_a_reader_that_does_not_read_costs_only_the_spans(child: TraceChild) -> None:
    begun_s = time.monotonic()
    for second in range(1, 60):
        for number in range(MAX_PER_S):
            child.note(told(number + 1), second * SECOND_NS, second * SECOND_NS)
    assert time.monotonic() - begun_s < 5
    figures = child.figures()
    assert figures["traces_left_out"] > 0
    assert figures["traces_noted"] + figures["traces_left_out"] == 59 * MAX_PER_S


def test_what_its_process_counts_adds_up_over_its_lives(child: TraceChild) -> None:
    line = READY + '{"spans_sent": 5, "spans_dropped": 1, "spans_failed": 2}'
    assert child.take(line)
    child.ended()
    assert child.take(line)
    assert child.figures()["traces_spans_sent"] == 10
    assert child.figures()["traces_spans_lost"] == 6
    assert not child.take(READY + "[]")
    assert not child.take("kvkeep WARNING something")
