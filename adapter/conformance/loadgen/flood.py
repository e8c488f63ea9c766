"""Control traffic that keeps the server's loop busy to a wanted share of one CPU.

Purpose: PING and LOOKUP in turn, paced so that the loop's thread uses the share that was ordered,
whatever else it does meanwhile. Lookups name keys that nobody stored: they cost the loop its work
and lease nothing. Must not know: what is measured under this load. Runs in: the load generator's
main thread, in a process of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from adapter.conformance.loadgen.cpu import Meter
from adapter.conformance.loadgen.engine import CALL_S, Engine, LoadgenError
from adapter.conformance.loadgen.orders import Flood
from protocol.ids import ID_BYTES
from protocol.messages import Lookup, Ping, Request

IN_FLIGHT = 32
_KEYS = 4096
_STEP_S = 0.001
_ADJUST_S = 0.1
_SETTLE_S = 2.0
_FIRST_RATE = 500.0
_MOST_CHANGE = 1.5
_MOST_RATE = 50_000.0


class Pace:
    """How many calls are due, steered by how busy the loop was."""

    def __init__(self, share: float) -> None:
        """Starts slowly.

        Args:
            share: of one CPU, wanted, 0..1.
        """
        self._share = share
        self._rate = _FIRST_RATE
        self._due = 0.0

    def due(self, elapsed_s: float) -> int:
        """Calls that are due after some time; what was not made of them is let go.

        Args:
            elapsed_s: since the last call of this method.

        Returns:
            Whole calls; parts of one are kept for the next time.
        """
        self._due = self._due % 1.0 + self._rate * elapsed_s
        return int(self._due)

    def adjust(self, share: float) -> float:
        """Makes calls more or less often.

        Args:
            share: that the loop has used lately.

        Returns:
            Calls per second from now on.
        """
        change = self._share / max(share, 0.01)
        self._rate *= min(_MOST_CHANGE, max(1 / _MOST_CHANGE, change))
        self._rate = min(self._rate, _MOST_RATE)
        return self._rate


def run_flood(
    engine: Engine,
    order: Flood,
    progress: Callable[[int, int], None],
    stop: Callable[[], bool],
) -> dict[str, Any]:
    """Carries out a ``Flood`` order until it is stopped.

    Args:
        engine: registered.
        order: whom to keep busy, and how much.
        progress: told once, when the share has settled.
        stop: whether to end.

    Returns:
        ``share`` that the loop used from then on, ``calls`` made in that time, ``seconds``.

    Raises:
        LoadgenError: the server refused or fell silent.
        OSError: the server has gone.
    """
    pace = Pace(order.share)
    meter, whole = Meter(order.pid, order.pid), Meter(order.pid, order.pid)
    keys = np.random.default_rng(order.seed).bytes(_KEYS * ID_BYTES)
    requests: tuple[Request, ...] = (
        Ping(),
        Lookup(session=engine.joined.session, request=1, start=0, keys=keys),
    )
    began = adjusted = last = counted_s = time.monotonic()
    num_calls = num_flying = 0
    settled = False
    while not stop():
        now = time.monotonic()
        allowed = min(pace.due(now - last), IN_FLIGHT - num_flying)
        last = now
        for _ in range(allowed):
            engine.channel.submit(requests[num_calls % 2], CALL_S)
            num_calls += 1
        num_flying += allowed
        num_flying -= _collect(engine, num_flying)
        if now - adjusted >= _ADJUST_S:
            pace.adjust(meter.read())
            adjusted = now
        if not settled and now - began >= _SETTLE_S:
            settled, num_calls, counted_s = True, 0, now
            whole.read()
            progress(1, 1)
    return {
        "share": whole.read(),
        "calls": num_calls,
        "seconds": time.monotonic() - counted_s,
    }


def _collect(engine: Engine, num_flying: int) -> int:
    """Sleeps one step, so that replies are taken in batches, and counts those that came."""
    time.sleep(_STEP_S)
    ended = engine.channel.poll(0.0 if num_flying < IN_FLIGHT else CALL_S)
    for one in ended:
        if one.error is not None:
            raise LoadgenError(f"flood: {one.error}")
    return len(ended)
