"""``python -m server.tracing --fd N --parent PID``: from the loop's records to a collector's spans.

Purpose: what tracing costs, and what a collector does to who sends to it, is this process's trouble
and not the server's. It tells its parent its figures on stdout when they change, and that it lives.
Must not know: the server's inside. Runs in: its own process; receives in its main thread, sends in
the exporter's.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType

import click
import msgspec

from protocol import __version__
from protocol.traceparent import SpanRef, parse
from protocol.tracing.export import Exporter, Sink, Span, TracingError, Value
from server.heartbeat import Heartbeat
from server.tracing.wire import MAX_BYTES, READY, Record, unpack

_log = logging.getLogger("kvkeep.traces")

EXIT_REFUSED = 3
SERVICE = "kvkeep-server"

FIGURES_S = 1.0
COMPLAIN_S = 60.0
"""A collector that does not take spans is complained of so often at most."""

_CLOSE_S = 1.0
_PR_SET_PDEATHSIG = 1


class Said:
    """Logs a complaint, and the ones left out since with the next."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._left_out = 0

    def __call__(self, text: str) -> None:
        """Says it, or counts it."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            self._left_out += 1
            return
        more = f" ({self._left_out} times more since the last such line)" if self._left_out else ""
        self._next_s, self._left_out = now_s + COMPLAIN_S, 0
        _log.warning("%s%s", text, more)


@click.command()
@click.option("--fd", required=True, type=int, help="Socket on which records come.")
@click.option("--parent", type=int, help="End with this process, which started it.")
def main(fd: int, parent: int | None) -> None:
    """Send spans of traced messages where the environment's OTEL_EXPORTER_OTLP_ENDPOINT says.

    The exit code is 3 when nothing can be sent from here: no package, or a setting it refuses.
    """
    logging.basicConfig(format="kvkeep %(levelname)s %(message)s", level=logging.WARNING)
    if parent is not None:
        _end_with(parent)
    try:
        exporter = Exporter(SERVICE, __version__, Said())
    except TracingError as error:
        click.echo(f"kvkeep: {error}", err=True)
        raise SystemExit(EXIT_REFUSED) from None
    signal.signal(signal.SIGTERM, _leave)
    with socket.socket(fileno=fd) as records:
        try:
            _serve(records, exporter, Heartbeat(sys.stdout.fileno()))
        except SystemExit:
            pass
    exporter.close(_CLOSE_S)
    sys.stdout.flush()
    os._exit(0)  # a collector that takes its time holds up nothing


def _serve(records: socket.socket, exporter: Sink, beat: Callable[[], None]) -> None:
    records.settimeout(FIGURES_S)
    told: dict[str, int] = {}
    tell_again_s = time.monotonic()
    while True:
        beat()
        try:
            _take(records.recv(MAX_BYTES), exporter)
        except TimeoutError:
            pass
        now_s = time.monotonic()
        if now_s < tell_again_s:
            continue
        tell_again_s = now_s + FIGURES_S  # records may come without a pause
        if (now := exporter.figures()) != told:
            told = now
            click.echo(READY + json.dumps(told))
            sys.stdout.flush()


def _take(data: bytes, exporter: Sink) -> None:
    try:
        span = span_of(unpack(data), random.getrandbits(64) or 1)
    except msgspec.DecodeError as error:
        _log.warning("a record was not understood: %s", error)
        return
    if span is not None:
        exporter.put(span)


def span_of(record: Record, span_id: int) -> Span | None:
    """The span of one message's handling.

    Args:
        record: as the loop told it.
        span_id: of the new span.

    Returns:
        The span; None where the record names no span that it could be a child of.
    """
    parent = parse(record.traceparent)
    if parent is None:
        return None
    attributes: dict[str, Value] = {
        "kvkeep.op": record.op,
        "kvkeep.seq": record.seq,
        "kvkeep.engine": record.engine.hex(),
        "kvkeep.namespace": record.namespace.hex(),
        "kvkeep.chunks": record.chunks,
        "kvkeep.code": record.code or "OK",
    }
    if record.request >= 0:
        attributes["kvkeep.request_key"] = record.request
    if record.stop:
        attributes["kvkeep.stop"] = record.stop
    attributes |= {f"kvkeep.{name}": value for name, value in record.figures.items()}
    return Span(
        f"kvkeep.server.{record.op.lower()}",
        SpanRef(parent.trace_id, span_id),
        parent.span_id,
        record.begin_ns,
        record.end_ns,
        "SERVER",
        attributes,
        record.code,
    )


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _end_with(parent: int) -> None:
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL)) != 0:
        raise SystemExit("prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it ended before that took hold
        raise SystemExit(0)
