"""A save's span runs from its STORE to what settles it, and ends once whatever happens."""

from __future__ import annotations

from adapter.channel import Completion
from adapter.saveflow import StoreOrder
from adapter.savespans import MAX_OPEN, SaveSpans
from adapter.tickets import Purpose, Ticket
from adapter.tracing import Tracer
from protocol.errors import ErrorCode, KvkeepError, ReplyError
from protocol.messages import Body, CommitReply, Done, StopReason, StoreReply
from protocol.traceparent import parse
from tests.adapter.test_tracing import Sink

ORDER = StoreOrder(1, 0, 0, b"", bytes(48), b"", 3)


def made() -> tuple[SaveSpans, Sink]:
    sink = Sink()
    tracer = Tracer(sink, 1.0)
    tracer.begin(1, 1, 1)
    return SaveSpans(tracer), sink


def answer(
    spans: SaveSpans,
    body: Body | None,
    purpose: Purpose = Purpose.STORE,
    error: KvkeepError | None = None,
) -> None:
    spans.answered(Ticket(purpose, 5, 1), Completion(9, body, error))


def test_a_save_that_is_committed() -> None:
    spans, sink = made()
    told = parse(spans.begin(5, ORDER, True))
    answer(spans, StoreReply(held=1, copied=2))
    assert sink.spans == []
    answer(spans, CommitReply(published=2), Purpose.SETTLE)
    [span] = sink.spans
    assert span.ref == told
    assert span.attributes == {
        "kvkeep.chunks": 3,
        "kvkeep.held": 1,
        "kvkeep.copied": 2,
        "kvkeep.published": 2,
    }


def test_one_that_copied_nothing_ends_with_its_answer() -> None:
    spans, sink = made()
    spans.begin(5, ORDER, False)
    answer(spans, StoreReply(held=0, copied=0, stop=StopReason.NO_ROOM))
    assert sink.spans[0].attributes["kvkeep.stop"] == "no_room"


def test_one_that_is_withdrawn_published_nothing() -> None:
    spans, sink = made()
    assert spans.begin(5, ORDER, False) == ""
    answer(spans, StoreReply(held=0, copied=2))
    answer(spans, Done(), Purpose.SETTLE)
    assert sink.spans[0].attributes["kvkeep.published"] == 0


def test_one_that_is_refused_says_why() -> None:
    spans, sink = made()
    spans.begin(5, ORDER, True)
    answer(spans, None, error=ReplyError(ErrorCode.BUSY, "later"))
    assert sink.spans[0].failed == "BUSY: later"
    answer(spans, None)
    assert len(sink.spans) == 1


def test_a_lost_server_ends_all_and_so_does_the_bound() -> None:
    spans, sink = made()
    spans.begin(5, ORDER, True)
    spans.lost()
    assert sink.spans[0].failed == "the server was lost"
    tracer = Tracer(sink, 1.0)
    many = SaveSpans(tracer)
    for number in range(MAX_OPEN + 1):
        tracer.begin(number, number, 1)
        many.begin(number, StoreOrder(number, 0, 0, b"", b"", b"", 1), True)
    assert sink.spans[-1].failed == "it was not settled"


def test_without_a_tracer_nothing_is_told() -> None:
    spans = SaveSpans()
    assert spans.begin(5, ORDER, True) == ""
    answer(spans, StoreReply(held=0, copied=0))
    spans.lost()
