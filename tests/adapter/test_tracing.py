"""Which requests are traced, what their spans are, and that nothing of it is unbounded."""

from __future__ import annotations

import logging
import sys
import time

import pytest

from adapter.journal import Journal
from adapter.tracing import MAX_SPANS, MAX_TRACES, NO_SPAN, OpenSpan, Tracer, start
from protocol.traceparent import parse
from protocol.tracing.export import Span, Value

TO = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


class Sink:
    def __init__(self) -> None:
        self.spans: list[Span] = []

    def put(self, span: Span) -> bool:
        self.spans.append(span)
        return True

    def figures(self) -> dict[str, int]:
        return {"spans_sent": len(self.spans)}


@pytest.fixture
def sink() -> Sink:
    return Sink()


def test_a_request_is_one_trace_however_often_it_is_asked_about(sink: Sink) -> None:
    tracer = Tracer(sink, 1.0)
    for _ in range(3):
        tracer.begin(7, 70, 22)
    with tracer.open(7, "kvkeep.lookup") as span:
        told = parse(span.told(True))
        assert span.told(False) == ""
        span.learn(ready=3)
    tracer.learn(7, chunks_requested=5, chunks_hit=3)
    tracer.add(7, "chunks_loaded", 2)
    tracer.add(7, "chunks_loaded", 1)
    tracer.finish(7)
    tracer.finish(7)
    tracer.learn(7, chunks_hit=9)  # too late
    lookup, root = sink.spans
    assert told is not None
    assert lookup.ref == told
    assert lookup.parent_id == root.ref.span_id
    assert lookup.ref.trace_id == root.ref.trace_id
    assert (root.name, root.parent_id) == ("kvkeep.request", 0)
    assert lookup.attributes == {"kvkeep.ready": 3}
    assert root.attributes == {
        "kvkeep.request_id": 70,
        "kvkeep.request_key": 7,
        "kvkeep.prompt_tokens": 22,
        "kvkeep.chunks_requested": 5,
        "kvkeep.chunks_hit": 3,
        "kvkeep.chunks_loaded": 3,
        "kvkeep.outcome": "loaded",
    }
    assert root.begin_ns <= lookup.begin_ns <= lookup.end_ns <= root.end_ns
    assert tracer.figures() == {"spans_sent": 2}


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        ({}, "not_asked"),
        ({"chunks_requested": 4, "chunks_hit": 0}, "miss"),
        ({"chunks_requested": 4, "chunks_hit": 1}, "hit"),
        ({"chunks_requested": 4, "chunks_hit": 1, "chunks_loaded": 1}, "loaded"),
    ],
)
def test_outcomes(sink: Sink, facts: dict[str, Value], outcome: str) -> None:
    tracer = Tracer(sink, 1.0)
    tracer.begin(1, 1, 1)
    tracer.learn(1, **facts)
    tracer.finish(1)
    assert sink.spans[0].attributes["kvkeep.outcome"] == outcome


def test_what_breaks_a_span_is_its_failure(sink: Sink) -> None:
    tracer = Tracer(sink, 1.0)
    tracer.begin(1, 1, 1)
    with pytest.raises(ValueError), tracer.open(1, "kvkeep.lookup"):
        raise ValueError("no answer")
    span = tracer.open(1, "kvkeep.wait")
    span.end()
    span.end("twice")
    assert [one.failed for one in sink.spans] == ["ValueError: no answer", ""]


def test_about_the_ratio_is_traced_and_the_rest_costs_no_span(sink: Sink) -> None:
    tracer = Tracer(sink, 0.25)
    traced = 0
    for key in range(2000):
        tracer.begin(key, key, 1)
        span = tracer.open(key, "kvkeep.lookup")
        traced += span is not NO_SPAN
        span.end()
        tracer.finish(key)
    assert 350 < traced < 650
    assert len(sink.spans) == 2 * traced


def test_of_what_is_not_traced_nothing_is_told(sink: Sink) -> None:
    tracer = Tracer(sink, 1.0)
    assert tracer.open(5, "kvkeep.load") is NO_SPAN
    tracer.learn(5, why="x")
    tracer.add(5, "chunks_loaded", 1)
    tracer.finish(5)
    with NO_SPAN as span:
        span.learn(a=1)
        assert span.told(True) == ""
    NO_SPAN.end("x")
    assert sink.spans == []


def test_traces_and_their_spans_are_bounded(sink: Sink) -> None:
    tracer = Tracer(sink, 1.0)
    for key in range(MAX_TRACES + 3):
        tracer.begin(key, key, 1)
    assert [one.attributes["kvkeep.outcome"] for one in sink.spans] == ["forgotten"] * 3
    last = MAX_TRACES + 2
    spans = [tracer.open(last, "kvkeep.lookup") for _ in range(MAX_SPANS + 10)]
    assert spans.count(NO_SPAN) == 10
    assert isinstance(spans[0], OpenSpan)


def test_saves_of_a_request_that_ended_are_still_its_spans(sink: Sink) -> None:
    tracer = Tracer(sink, 1.0)
    tracer.begin(1, 1, 1)
    tracer.finish(1)
    tracer.open(1, "kvkeep.save").end()
    root, save = sink.spans
    assert save.parent_id == root.ref.span_id


def test_a_span_takes_a_few_microseconds(sink: Sink) -> None:
    tracer = Tracer(sink, 1.0)
    tracer.begin(1, 1, 1)
    best_s = 1.0
    for _ in range(MAX_SPANS):
        begun_s = time.perf_counter()
        with tracer.open(1, "kvkeep.lookup") as span:
            span.told(True)
            span.learn(ready=1)
        best_s = min(best_s, time.perf_counter() - begun_s)
    assert best_s < 200e-6


def test_off_is_no_tracer_and_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal(logging.getLogger("kvkeep"))
    assert start(0.0, TO, journal) is None
    assert caplog.records == []
    assert start(0.5, {}, journal) is None
    assert "neither OTEL_EXPORTER_OTLP_TRACES_ENDPOINT nor" in caplog.text


def test_without_the_package_the_engine_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    journal = Journal(logging.getLogger("kvkeep"))
    assert start(1.0, TO, journal) is None
    assert "pip install 'opentelemetry-sdk>=" in caplog.text
    assert journal.counters() == {"traces_off": 1}


def test_an_address_without_a_scheme_is_refused_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("opentelemetry.sdk")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318")
        assert start(1.0, TO, Journal(logging.getLogger("kvkeep"))) is None
    [one] = caplog.records
    assert "no traces: OTEL_EXPORTER_OTLP_ENDPOINT is localhost:4318: expected http://" in (
        one.getMessage()
    )


def test_a_root_may_end_while_the_saver_counts(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = Tracer(sink, 1.0)
    tracer.begin(7, 70, 22)
    trace = tracer._traces[7]

    def interrupted(facts: dict[str, Value]) -> dict[str, Value]:
        named = {}
        for name, value in facts.items():
            trace.facts["chunks_saved"] = 1  # the other thread's turn
            named[name] = value
        return named

    monkeypatch.setattr("adapter.tracing._named", interrupted)
    tracer.finish(7)
    assert sink.spans[0].attributes["request_id"] == 70
