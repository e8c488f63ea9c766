"""Spans reach a collector as they were given; one that is slow, dead or refuses harms nobody."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time

import pytest

from protocol.traceparent import SpanRef
from protocol.tracing import export
from protocol.tracing.export import MAX_WAITING, Exporter, Span, TracingError
from tests.wire.ports import free_port
from tests.wire.process import ROOT, wait_until

collector = pytest.importorskip("tests.wire.collector")
TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736


def span(number: int = 1, **more: object) -> Span:
    return Span("kvkeep.lookup", SpanRef(TRACE, number), 9, 1_000, 3_000, **more)  # type: ignore[arg-type]


def exporter(monkeypatch: pytest.MonkeyPatch, url: str, told: list[str]) -> Exporter:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    return Exporter("kvkeep-test", "1.2", told.append, batch_s=0.02)


def test_a_span_arrives_with_all_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=abc")
    told: list[str] = []
    with collector.Collector() as end:
        made = exporter(monkeypatch, end.url, told)
        assert made.put(span(5, kind="SERVER", attributes={"kvkeep.op": "LOOKUP", "n": 3}))
        assert made.put(Span("kvkeep.request", SpanRef(TRACE, 9), 0, 10, 5, failed="why"))
        assert made.close(10)
        child, root = end.spans
        assert child.trace_id == root.trace_id == TRACE.to_bytes(16, "big")
        assert (child.span_id, child.parent_span_id) == (bytes(7) + b"\5", bytes(7) + b"\t")
        assert (child.start_time_unix_nano, child.end_time_unix_nano) == (1_000, 3_000)
        assert collector.facts(child) == {"kvkeep.op": "LOOKUP", "n": 3}
        assert child.kind == child.SPAN_KIND_SERVER
        assert root.parent_span_id == b""
        assert root.end_time_unix_nano == 10  # a clock that was set back
        assert (root.status.code, root.status.message) == (2, "why")
        assert end.services[child.span_id] == "kvkeep-test"
        assert end.headers["x-key"] == "abc"
    assert made.figures() == {"spans_sent": 2, "spans_dropped": 0, "spans_failed": 0}
    assert told == []


def test_the_environment_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    with collector.Collector() as end:
        made = exporter(monkeypatch, end.url, [])
        made.put(span())
        assert made.close(10)
        assert list(end.services.values()) == ["mine"]


def test_spans_are_sent_though_nobody_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    with collector.Collector() as end:
        made = exporter(monkeypatch, end.url, [])
        made.put(span())
        assert wait_until(lambda: made.num_sent == 1)
        assert made.close(10)
        assert not made.put(span())  # too late
    assert made.num_dropped == 1


def test_a_collector_that_is_not_there_is_told_and_nothing_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    told: list[str] = []
    port = free_port()
    made = exporter(monkeypatch, f"http://me:secret@127.0.0.1:{port}/?key=secret", told)
    made.put(span())
    assert wait_until(lambda: made.num_failed == 1, limit_s=10)
    assert made.close(10)
    assert told[0].startswith("1 span is lost after ")
    assert told[0].endswith(f" s: http://127.0.0.1:{port}: connection refused")
    assert caplog.records == []


def test_one_that_is_slow_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "MAX_BATCH", 1024)  # few requests: each takes so long here
    with collector.Collector(wait_s=0.2) as end:
        made = exporter(monkeypatch, end.url, [])
        made.put(span())
        assert wait_until(lambda: end.num_requests == 1)
        begun_s = time.monotonic()
        for number in range(MAX_WAITING + 10):
            made.put(span(number + 1))
        assert not made.close(0.05)
        assert time.monotonic() - begun_s < 0.9
        assert made.num_dropped == 10
        assert made.close(10)
        assert made.num_sent == MAX_WAITING + 1


def test_a_process_ends_in_time_whatever_the_collector_does() -> None:
    script = (
        "from protocol.traceparent import SpanRef\n"
        "from protocol.tracing.export import Exporter, Span\n"
        "import time\n"
        "made = Exporter('x', '1', print, batch_s=0.01)\n"
        "made.put(Span('a', SpanRef(1, 2), 0, 1, 2))\n"
        "time.sleep(0.2)\n"
        "made.close(0.1)\n"
        "print(time.time(), flush=True)\n"
    )
    with collector.Collector(wait_s=5.0) as end:
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": end.url},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert time.time() - float(done.stdout) < 2
        assert end.num_requests == 1
    assert done.stderr == ""


def test_one_that_refuses_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    with collector.Collector(status=400) as end, caplog.at_level(logging.DEBUG, "opentelemetry"):
        made = exporter(monkeypatch, end.url, told)
        made.put(span())
        assert made.close(10)
    assert made.num_failed == 1
    assert len(told) == 1
    assert told[0].endswith(f" s: {end.url}: HTTP 400 Bad Request")
    assert [one for one in caplog.records if one.threadName == "kvkeep-traces"] == []


@pytest.mark.parametrize("url", ["htp://me:secret@127.0.0.1:9", "http://me:secret@127.0.0.1:99999"])
def test_what_is_no_address_is_refused_and_no_password_told(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    with pytest.raises(TracingError, match="no traces: OTEL_EXPORTER_OTLP_ENDPOINT is h") as told:
        exporter(monkeypatch, url, [])
    assert "127.0.0.1" in str(told.value)
    assert "secret" not in str(told.value)


def test_one_that_does_not_answer_in_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    told: list[str] = []
    with collector.Collector(wait_s=0.5) as end:
        made = exporter(monkeypatch, end.url, told)
        made.put(span())
        assert made.close(10)
        assert told[0].endswith(f" s: {end.url}: timed out")


def test_without_the_package_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(TracingError, match="pip install 'opentelemetry-sdk>="):
        Exporter("x", "1", lambda text: None)


def test_an_environment_that_turns_the_sdk_off_is_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "True")
    with pytest.raises(TracingError, match="OTEL_SDK_DISABLED is set"):
        Exporter("x", "1", lambda text: None)


def test_without_a_thread_there_are_no_traces_and_nothing_else_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    with pytest.raises(TracingError, match="can't start new thread"):
        Exporter("x", "1", lambda text: None)


def test_many_spans_are_made_in_pieces_with_room_for_other_threads_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hook that waits for the interpreter does not wait for hundreds of spans."""
    with collector.Collector() as end:
        made = exporter(monkeypatch, end.url, [])
        for number in range(200):
            made.put(span(number + 1))
        assert made.close(10)
        assert len(end.spans) == 200
        assert end.num_requests >= 200 // export.MAX_BATCH


def test_what_others_send_by_the_same_library_is_logged_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from opentelemetry.exporter.otlp.proto.http import trace_exporter

    logger = logging.getLogger(trace_exporter.__name__)
    before = list(logger.filters)
    with collector.Collector() as end:
        made = exporter(monkeypatch, end.url, [])
        made.put(span())
        assert made.close(10)
    assert logger.filters == before
