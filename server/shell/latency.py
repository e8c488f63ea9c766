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


class Latency:
    """Counts of answers by operation and length."""

    def __init__(self) -> None:
        self._buckets = {int(op): [0] * NUM_BUCKETS for op in Op}
        self._sums_ns = dict.fromkeys(self._buckets, 0)

    def note(self, op: int, spent_ns: int) -> None:
        """Counts one answer; operations that there are not are left out.

        Args:
            op: its number.
            spent_ns: from the request's receipt on.
        """
        buckets = self._buckets.get(op)
        if buckets is not None:
            buckets[bisect_left(_BOUNDS_NS, spent_ns)] += 1
            self._sums_ns[op] += spent_ns

    def told(self) -> dict[str, OpLatency]:
        """For STATUS: operations that were answered, by name."""
        return {
            Op(op).name: OpLatency(
                buckets=tuple(buckets), sum_us=self._sums_ns[op] // 1000, count=sum(buckets)
            )
            for op, buckets in self._buckets.items()
            if any(buckets)
        }
