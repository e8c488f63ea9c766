"""How long the loop is at one thing: a histogram of thread CPU.

Purpose: the rule that bursts are short (p99 at most 300 µs) can be read off a running server. A
burst is one message, one slice of long work or one report, with all effects that follow from it:
the loop turns to somebody else's after each, so this is what others wait for, twice at most. What
counts is CPU of the loop's thread, not time on the clock. Must not know: what a burst was for. Runs
in: the loop thread.
"""

from __future__ import annotations

import time

TARGET_US = 300

LEAST_NS = 10_000
"""A turn without anything to do takes less, and is no burst."""

_STEPS_PER_OCTAVE = 8
_FIRST_NS = 1024
_NUM_BUCKETS = 22 * _STEPS_PER_OCTAVE
"""From 1 µs to 4 s, each bucket 9 % wider than the one before."""


class Bursts:
    """Counts of bursts by length.

    Attributes:
        count: bursts so far.
        over: those longer than the target.
        longest_ns: the longest.
    """

    def __init__(self) -> None:
        self.count = 0
        self.over = 0
        self.longest_ns = 0
        self._buckets = [0] * _NUM_BUCKETS
        self._begun_ns = 0

    def begin(self) -> None:
        """A burst begins."""
        self._begun_ns = time.thread_time_ns()

    def end(self) -> None:
        """It ends; another may begin at once."""
        now_ns = time.thread_time_ns()
        if now_ns - self._begun_ns >= LEAST_NS:
            self.note(now_ns - self._begun_ns)
        self._begun_ns = now_ns

    def note(self, spent_ns: int) -> None:
        """Counts one burst.

        Args:
            spent_ns: CPU of the thread.
        """
        self.count += 1
        if spent_ns > self.longest_ns:
            self.longest_ns = spent_ns
        if spent_ns > TARGET_US * 1000:
            self.over += 1
        # The octave from the number's length, the step within it from the next three bits.
        scaled = max(spent_ns, _FIRST_NS)
        octave = scaled.bit_length() - 11
        step = (scaled >> (octave + 10 - 3)) & 7
        self._buckets[min(octave * _STEPS_PER_OCTAVE + step, _NUM_BUCKETS - 1)] += 1

    def percentile_us(self, share: float) -> int:
        """Length below which a share of all bursts lies.

        Args:
            share: between 0 and 1.

        Returns:
            Microseconds, at most 13 % too many; 0 before the first burst.
        """
        left = self.count * share
        for bucket, count in enumerate(self._buckets):
            left -= count
            if count and left <= 0:
                octave, step = divmod(bucket, _STEPS_PER_OCTAVE)
                upper_ns = (_FIRST_NS << octave) * (9 + step) // 8
                return -(-min(upper_ns, self.longest_ns) // 1000)
        return 0

    def counts(self) -> dict[str, int]:
        """For STATS."""
        return {
            "loop_bursts": self.count,
            "loop_bursts_over_300_us": self.over,
            "loop_burst_p50_us": self.percentile_us(0.5),
            "loop_burst_p99_us": self.percentile_us(0.99),
            "loop_burst_max_us": self.longest_ns // 1000,
        }
