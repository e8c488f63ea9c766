"""How long answers take: a histogram of time on the clock for each operation.

Purpose: from the moment when the loop has a request in its hands until its answer goes to the
socket, waits that the request asked for included. What a request waited in ZMQ before is not seen
here; ``server.shell.bursts`` bounds it. Recording costs well under a microsecond and allocates
nothing that stays. Must not know: what an operation does. Runs in: the loop thread.
"""

from __future__ import annotations

from bisect import bisect_left

from protocol.messages import Op
from protocol.status import LATENCY_BOUNDS_US, NUM_BUCKETS, OpLatency

_BOUNDS_NS = tuple(bound * 1000 for bound in LATENCY_BOUNDS_US)
_FIRST_NS = _BOUNDS_NS[0]


class Latency:
    """Counts of answers by operation and length."""

    def __init__(self) -> None:
        #: By operation, its buckets, and behind them the sum of all times in nanoseconds.
        self._rows = {int(op): [0] * (NUM_BUCKETS + 1) for op in Op}

    def note(self, op: int, spent_ns: int) -> None:
        """Counts one answer; operations that there are not are left out.

        Args:
            op: its number.
            spent_ns: from the request's receipt on.
        """
        row = self._rows.get(op)
        if row is None:
            return
        # Nearly all are in the first bucket.
        row[0 if spent_ns <= _FIRST_NS else bisect_left(_BOUNDS_NS, spent_ns)] += 1
        row[NUM_BUCKETS] += spent_ns

    def told(self) -> dict[str, OpLatency]:
        """For STATUS: operations that were answered, by name."""
        told = {}
        for op, (*buckets, sum_ns) in self._rows.items():
            count = sum(buckets)
            if count:
                row = OpLatency(buckets=tuple(buckets), sum_us=sum_ns // 1000, count=count)
                told[Op(op).name] = row
        return told
