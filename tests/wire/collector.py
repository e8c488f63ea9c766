"""An OTLP receiver: the collector's end of the protocol, with OpenTelemetry's own messages.

Runs in the pytest process, in threads of its own; one for each request.
"""

from __future__ import annotations

import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import pytest

pytest.importorskip("opentelemetry.proto")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan


class Collector:
    """Receives spans.

    Args:
        status: what every request is answered with.
        wait_s: how long that takes.

    Attributes:
        url: for ``OTEL_EXPORTER_OTLP_ENDPOINT``.
        spans: what came, in order.
        services: their ``service.name``, by span id.
        num_requests: how many came.
        headers: of the last.
    """

    def __init__(self, status: int = 200, wait_s: float = 0.0) -> None:
        self.spans: list[OtlpSpan] = []
        self.services: dict[bytes, str] = {}
        self.num_requests = 0
        self.headers: dict[str, str] = {}
        self._lock = threading.Lock()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.headers = dict(self.headers)
                with collector._lock:
                    collector.num_requests += 1
                time.sleep(wait_s)
                if status == 200:
                    assert self.path == "/v1/traces"
                    is_packed = self.headers.get("Content-Encoding") == "gzip"
                    collector._take(gzip.decompress(body) if is_packed else body)
                answer = ExportTraceServiceResponse().SerializeToString()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/x-protobuf")
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                except OSError:
                    pass  # who asked has ended

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def _take(self, body: bytes) -> None:
        asked = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            for group in asked.resource_spans:
                told = {one.key: one.value.string_value for one in group.resource.attributes}
                for scope in group.scope_spans:
                    self.spans += scope.spans
                    for span in scope.spans:
                        self.services[span.span_id] = told["service.name"]

    def named(self, name: str) -> list[OtlpSpan]:
        """Spans of a name."""
        with self._lock:
            return [span for span in self.spans if span.name == name]

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


def facts(span: OtlpSpan) -> dict[str, Any]:
    """A span's attributes as plain values."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}
