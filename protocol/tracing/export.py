"""Finished spans on their way to a collector, through OpenTelemetry's own SDK and exporter.

Purpose: whoever finishes a span leaves it here and goes on; a thread makes OpenTelemetry's spans of
them and sends them as OTLP over HTTP. The queue is bounded: what finds no room, and what the
collector does not take, is counted and gone. The only module that imports OpenTelemetry, and only
where somebody wants traces. Must not know: what the spans are about. Runs in: ``put`` in any
thread, the rest in its own.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from protocol.extras import install
from protocol.logline import public
from protocol.traceparent import SpanRef
from protocol.tracing import target

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

MAX_WAITING: Final = 2048
"""Spans that wait to be sent."""

MAX_BATCH: Final = 64
"""Spans sent at once. To encode them takes about 1 ms in which no other thread of the process runs,
an engine's hooks included; so no more."""

WAKE_AT: Final = 512
"""So many spans that wait wake the thread ahead of its time; fewer do not: who leaves one pays."""

BATCH_S: Final = 1.0
"""A span is sent so long after it came at the latest, if the collector takes them."""

CLOSE_S: Final = 1.0
_DISABLED: Final = "OTEL_SDK_DISABLED"
_MADE_AT_ONCE: Final = 8
_PAUSE_S: Final = 0.0001
"""After so many spans were made, so that who waits for the interpreter gets it then, and not only
after its switch interval of 5 ms; to give it up without any pause hands it to nobody."""

_MAX_WHY_CHARS: Final = 300

Value = str | bool | int | float


class TracingError(Exception):
    """Spans cannot be sent from here; the text says why."""


@dataclass(frozen=True)
class Span:
    """One span that is over.

    Attributes:
        name: of what it was.
        ref: of itself.
        parent_id: span id of its parent, 0 for none.
        begin_ns: nanoseconds since 1970.
        end_ns: the same.
        kind: ``INTERNAL``, ``SERVER`` or ``CLIENT``.
        attributes: what is known of it; no token, key or salt.
        failed: why it failed; empty where it did not.
    """

    name: str
    ref: SpanRef
    parent_id: int
    begin_ns: int
    end_ns: int
    kind: str = "INTERNAL"
    attributes: Mapping[str, Value] = field(default_factory=dict)
    failed: str = ""


class Sink(Protocol):
    """Where spans go that are over."""

    def put(self, span: Span) -> bool:
        """Takes one, or counts it as lost; never waits."""
        ...

    def figures(self) -> dict[str, int]:
        """What became of them, by name."""
        ...


class Exporter:
    """A bounded queue and the thread behind it.

    Attributes:
        num_sent: spans that the collector took.
        num_dropped: spans that found no room.
        num_failed: spans that it did not take.
    """

    def __init__(
        self,
        service: str,
        version: str,
        complain: Callable[[str], None],
        batch_s: float = BATCH_S,
    ) -> None:
        """Imports OpenTelemetry and reads its environment; starts the thread.

        Args:
            service: ``service.name``, unless the environment has another.
            version: ``service.version``.
            complain: told, in the thread, what keeps spans from being sent; bounds it itself.
            batch_s: longest time between two batches, seconds.

        Raises:
            TracingError: OpenTelemetry is not installed, or refuses its environment.
        """
        self.num_sent = self.num_dropped = self.num_failed = 0
        self._complain = complain
        self._batch_s = batch_s
        self._waiting: deque[Span] = deque()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        try:
            self._pipeline = _Pipeline(service, version)
        except ImportError as error:
            raise TracingError(f"no traces: {error}; {install('tracing')}") from error
        except Exception as error:
            raise TracingError(f"no traces: {public(str(error))}") from error
        # A daemon: a collector that takes its time holds up nobody's end.
        self._thread = threading.Thread(target=self._run, name="kvkeep-traces", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads: an engine does without traces
            raise TracingError(f"no traces: {error}") from error

    def put(self, span: Span) -> bool:
        """Leaves a span to be sent.

        Args:
            span: that is over.

        Returns:
            False when there was no room: it is counted and gone.
        """
        if len(self._waiting) >= MAX_WAITING or self._stopping.is_set():
            self.num_dropped += 1
            return False
        self._waiting.append(span)
        if len(self._waiting) >= WAKE_AT and not self._wake.is_set():
            self._wake.set()
        return True

    def close(self, limit_s: float = CLOSE_S) -> bool:
        """Sends what waits, if that is quick, and ends. Idempotent.

        Args:
            limit_s: longest wait, seconds.

        Returns:
            Whether the thread ended.
        """
        self._stopping.set()
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join(limit_s)
        return not self._thread.is_alive()

    def figures(self) -> dict[str, int]:
        """Counters, by name."""
        return {
            "spans_sent": self.num_sent,
            "spans_dropped": self.num_dropped,
            "spans_failed": self.num_failed,
        }

    def _run(self) -> None:
        speaks = self._pipeline.silence(threading.get_ident())
        try:
            self._send_all()
        finally:
            speaks()  # another thread may have this one's number next

    def _send_all(self) -> None:
        while not (self._stopping.is_set() and not self._waiting):
            self._wake.wait(self._batch_s)
            if not self._stopping.is_set():
                self._wake.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
                if not self._send(batch) and self._stopping.is_set():
                    self.num_failed += len(self._waiting)
                    self._waiting.clear()

    def _send(self, batch: list[Span]) -> bool:
        begun_s = time.monotonic()
        try:
            is_sent = self._pipeline.send(batch)
            why = "" if is_sent else self._pipeline.why or "they were not taken"
        except Exception as error:  # noqa: BLE001 - whatever a library does ends nothing here
            why = repr(error)
        if not why:
            self.num_sent += len(batch)
            return True
        self.num_failed += len(batch)
        spent_s = time.monotonic() - begun_s
        what = "span is" if len(batch) == 1 else "spans are"
        where = self._pipeline.address or "the collector"
        text = f"{len(batch)} {what} lost after {spent_s:.1f} s: {where}: {public(why)}"
        self._complain(text)
        return False


class _Pipeline:
    """OpenTelemetry's part. All but the construction belongs to the exporter's thread.

    Attributes:
        address: of the collector, as it may be told; empty for OpenTelemetry's default.
    """

    def __init__(self, service: str, version: str) -> None:
        from opentelemetry.exporter.otlp.proto.http import trace_exporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        if os.environ.get(_DISABLED, "").strip().lower() == "true":
            raise ValueError(f"{_DISABLED} is set")  # it would make spans that are none
        self.address = target.address(os.environ)
        self._watched = target.Watched()
        session = self._watched.session(os.environ)
        self._exporter = trace_exporter.OTLPSpanExporter(session=session)
        self._logger = logging.getLogger(trace_exporter.__name__)
        self._ids = _given_ids()
        self._ended: list[ReadableSpan] = []
        self._logged = ""
        own = Resource({"service.name": service, "service.version": version})
        provider = TracerProvider(
            sampler=ALWAYS_ON,  # what comes here was chosen already
            resource=own.merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,
            id_generator=self._ids,
        )
        provider.add_span_processor(_collector(self._ended))
        self._tracer: Any = provider.get_tracer("kvkeep", version)

    @property
    def why(self) -> str:
        """Why spans were not taken: the last answer, or what the exporter logged last."""
        return self._watched.why or self._logged

    def silence(self, thread: int) -> Callable[[], None]:
        """What the exporter logs of our sending is told by ``complain``, at a bounded rate.

        Args:
            thread: that sends.

        Returns:
            What ends that.
        """

        def is_others(record: logging.LogRecord) -> bool:
            if record.thread != thread:
                return True
            # Before it is cut: half of an address with a password is none that is recognized.
            self._logged = public(" ".join(record.getMessage().split()))[:_MAX_WHY_CHARS]
            return False

        self._logger.addFilter(is_others)
        return lambda: self._logger.removeFilter(is_others)

    def send(self, batch: list[Span]) -> bool:
        """Sends spans; whether the collector took them."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._ended.clear()
        self._logged = self._watched.why = ""
        for number, span in enumerate(batch, 1):
            self._make(span)
            if number % _MADE_AT_ONCE == 0:
                time.sleep(_PAUSE_S)
        return self._exporter.export(self._ended) is SpanExportResult.SUCCESS

    def _make(self, span: Span) -> None:
        from opentelemetry import trace
        from opentelemetry.context import Context

        context = Context()
        if span.parent_id:
            flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
            is_remote = span.kind == "SERVER"
            parent = trace.SpanContext(span.ref.trace_id, span.parent_id, is_remote, flags)
            context = trace.set_span_in_context(trace.NonRecordingSpan(parent), context)
        self._ids.trace_id, self._ids.span_id = span.ref.trace_id, span.ref.span_id
        made = self._tracer.start_span(
            span.name,
            context=context,
            kind=trace.SpanKind[span.kind],
            attributes=dict(span.attributes),
            start_time=span.begin_ns,
        )
        if span.failed:
            made.set_status(trace.StatusCode.ERROR, span.failed)
        made.end(max(span.begin_ns, span.end_ns))


def _given_ids() -> Any:
    """A generator that gives out the ids that a span has already."""
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class Given(IdGenerator):
        trace_id = span_id = 0

        def generate_trace_id(self) -> int:
            return self.trace_id

        def generate_span_id(self) -> int:
            return self.span_id

    return Given()


def _collector(ended: list[ReadableSpan]) -> Any:
    """A processor that keeps ended spans in a list."""
    from opentelemetry.sdk.trace import SpanProcessor

    class Collector(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            ended.append(span)

    return Collector()
