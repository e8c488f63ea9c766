"""The load generator's main loop: one order after the other.

Purpose: read orders, carry each out, write its progress and its one result. Must not know: how an
order is carried out. Runs in: the load generator's main thread.
"""

from __future__ import annotations

import os
import select
import time
from typing import Any, BinaryIO

from adapter.conformance.loadgen import orders, probe
from adapter.conformance.loadgen.engine import Engine, LoadgenError
from adapter.conformance.loadgen.flood import run_flood
from adapter.conformance.loadgen.latency import run_lookup, run_ping
from adapter.conformance.loadgen.rounds import run_fill, run_rounds
from adapter.conformance.loadgen.transfers import Reader
from protocol.errors import KvkeepError

_MAX_LINE_BYTES = 1 << 16
_PROGRESS_S = 0.1


class Service:
    """Carries out orders until its input ends."""

    def __init__(self, fd_in: int, out: BinaryIO) -> None:
        """Starts without an engine.

        Args:
            fd_in: descriptor that orders are read from.
            out: where results go.
        """
        self._fd = fd_in
        self._out = out
        self._buffer = b""
        self._engine: Engine | None = None
        self._reader: Reader | None = None
        self._said_s = 0.0

    def run(self) -> None:
        """Serves; leaves the server at the end."""
        try:
            while (line := self._next_line()) is not None:
                self._say(self._answer(line))
        finally:
            if self._reader is not None:
                self._reader.close()
            if self._engine is not None:
                self._engine.link.close(1.0)

    def _answer(self, line: bytes) -> bytes:
        try:
            return orders.done(self._perform(orders.read(line)))
        except (LoadgenError, KvkeepError, OSError, ValueError) as error:
            return orders.failed(f"{type(error).__name__}: {error}")

    def _perform(self, order: orders.AnyOrder) -> dict[str, Any]:
        if isinstance(order, orders.Probe):
            return {"answered_ns": probe.first_answer_ns(order.url, order.timeout_s)}
        if isinstance(order, orders.Join):
            return self._join(order)
        engine, reader = self._engine, self._reader
        if engine is None or reader is None:
            raise LoadgenError("the first order must be join")
        if isinstance(order, orders.Leave):
            self._engine = self._reader = None
            reader.close()
            engine.leave()
            return {}
        if isinstance(order, orders.Ping):
            return run_ping(engine, order, self._progress)
        if isinstance(order, orders.Lookup):
            return run_lookup(engine, order, self._progress)
        if isinstance(order, orders.Fill):
            return run_fill(engine, reader, order, self._progress)
        if isinstance(order, orders.Rounds):
            return run_rounds(engine, reader, order, self._progress)
        return run_flood(engine, order, self._progress, self._has_line)

    def _join(self, order: orders.Join) -> dict[str, Any]:
        if self._engine is not None:
            raise LoadgenError("joined already")
        began = time.monotonic()
        self._engine = Engine.join(order)
        self._reader = Reader(self._engine)
        return {"join_s": time.monotonic() - began}

    def _progress(self, done: int, of: int) -> None:
        now = time.monotonic()
        if done == of or now - self._said_s >= _PROGRESS_S:
            self._said_s = now
            self._say(orders.progress(done, of))

    def _say(self, line: bytes) -> None:
        self._out.write(line + b"\n")
        self._out.flush()

    def _has_line(self) -> bool:
        """Whether an order, or the end of orders, waits."""
        return b"\n" in self._buffer or bool(select.select([self._fd], [], [], 0)[0])

    def _next_line(self) -> bytes | None:
        while b"\n" not in self._buffer:
            part = os.read(self._fd, _MAX_LINE_BYTES)
            if not part or len(self._buffer) > _MAX_LINE_BYTES:
                return None
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line
