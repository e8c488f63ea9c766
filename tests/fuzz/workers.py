"""Pieces of a run, each done by whichever process is free.

A piece is a range of batches or of sequences; the same pieces are done whatever the number of
processes. Runs in worker processes started afresh, and in the one that was started by hand.
"""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from statistics import median
from typing import Any

from tests.fuzz import corpus, play
from tests.fuzz.batches import BATCH, DecoderFuzz, shrink
from tests.fuzz.finding import Finding
from tests.fuzz.play import SequenceFuzz
from tests.fuzz.report import anonymous_bytes

BATCHES_PER_PIECE = 50
SEQUENCES_PER_PIECE = 400
_fuzzers: dict[tuple[str, int], Any] = {}


@dataclass
class Total:
    """Sums of the pieces of one part.

    Attributes:
        done: executions or sequences.
        good: accepted messages, or messages that reached a handler.
        messages: of sequences.
        fewest: messages of the shortest sequence.
        cpu_s: CPU time of all workers.
        slowest_s: longest execution.
        memory: worker to its anonymous memory after each of its pieces.
        answers: replies by operation and code.
    """

    done: int = 0
    good: int = 0
    messages: int = 0
    fewest: int = 1 << 30
    cpu_s: float = 0.0
    slowest_s: float = 0.0
    memory: dict[int, list[int]] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)

    def add(self, piece: dict[str, Any]) -> None:
        """Adds a piece's counts."""
        self.done += piece["done"]
        self.good += piece["good"]
        self.messages += piece["messages"]
        self.fewest = min(self.fewest, piece["fewest"])
        self.cpu_s += piece["cpu_s"]
        self.slowest_s = max(self.slowest_s, piece["slowest_s"])
        self.memory.setdefault(piece["pid"], []).append(piece["memory"])
        for name, number in piece["answers"].items():
            self.answers[name] = self.answers.get(name, 0) + number

    def growth_bytes(self) -> int:
        """Most that a worker grew by, from the second quarter of its pieces to its last one.

        Medians: after one piece and after the next a worker's memory differs by tens of MiB, for
        what the allocator keeps of a large core. What leaks comes on top of each.
        """
        return max([0, *(_growth(rows) for rows in self.memory.values())])


def _growth(rows: list[int]) -> int:
    quarter = max(1, len(rows) // 4)
    return int(median(rows[-quarter:]) - median(rows[quarter : 2 * quarter] or rows[:1]))


def _fuzzer(part: str, seed: int) -> Any:
    key = part, seed
    if key not in _fuzzers:
        _fuzzers[key] = (
            DecoderFuzz(seed, corpus.stock()) if part == "decode" else SequenceFuzz(seed)
        )
    return _fuzzers[key]


def piece(part: str, seed: int, first: int, stop: int) -> dict[str, Any]:
    """Does a piece.

    Args:
        part: ``decode`` or ``sequence``.
        seed: of the run.
        first: first batch or sequence.
        stop: behind the last.

    Returns:
        Counts, and ``finding``: what was found, with a small reproducer, or None.
    """
    began, found = time.process_time(), None
    done = good = messages = 0
    fewest, slowest = 1 << 30, 0.0
    answers: dict[str, int] = {}
    if part == "decode":
        fuzz = _fuzzer(part, seed)
        before = fuzz.tally.executions, fuzz.tally.accepted
        found = _decode(fuzz, seed, first, stop)
        done = fuzz.tally.executions - before[0]
        good, slowest = fuzz.tally.accepted - before[1], fuzz.tally.slowest_s
    else:
        sequences = _fuzzer(part, seed)
        sequences.counts = play.Counts()
        found = _sequence(sequences, seed, first, stop)
        counts = sequences.counts
        done, good, messages = counts.sequences, counts.served, counts.messages
        fewest, answers = counts.fewest, counts.answers
    return {
        "done": done,
        "good": good,
        "messages": messages,
        "fewest": fewest,
        "slowest_s": slowest,
        "answers": answers,
        "cpu_s": time.process_time() - began,
        "memory": anonymous_bytes(),
        "pid": _pid(),
        "finding": found,
    }


def _pid() -> int:
    import os

    return os.getpid()


def _decode(fuzz: DecoderFuzz, seed: int, first: int, stop: int) -> dict[str, Any] | None:
    for number in range(first, stop):
        try:
            fuzz.batch(number)
        except Finding as finding:
            target, data = fuzz.failed or ("", b"")
            small = shrink(target, data, finding.kind) if target else b""
            index = next(
                (at for at in range(BATCH) if fuzz.message(number * BATCH + at) == (target, data)),
                0,
            )
            return {
                "part": "decode",
                "seed": seed,
                "index": number * BATCH + index,
                "what": finding.what,
                "small": f"input:{target}:{small.hex()}",
            }
    return None


def _sequence(fuzz: SequenceFuzz, seed: int, first: int, stop: int) -> dict[str, Any] | None:
    for number in range(first, stop):
        try:
            fuzz.one(number)
        except Finding as finding:
            steps = play.shrink(fuzz, fuzz.steps(number), finding.kind)
            return {
                "part": "sequence",
                "seed": seed,
                "index": number,
                "what": finding.what,
                "small": f"steps:{corpus.line_of(finding.kind, steps)}",
            }
    return None


def run(
    part: str, seed: int, count: int, jobs: int, show: Any = None
) -> tuple[Total, dict[str, Any] | None]:
    """Does a whole part.

    Args:
        part: ``decode`` or ``sequence``.
        seed: of the run.
        count: batches or sequences.
        jobs: processes; 1 works in this one.
        show: called with what is done so far after each piece.

    Returns:
        The sums, and the first finding or None.
    """
    size = BATCHES_PER_PIECE if part == "decode" else SEQUENCES_PER_PIECE
    size = max(1, min(size, -(-count // jobs)))
    pieces = [(first, min(count, first + size)) for first in range(0, count, size)]
    total = Total()
    if jobs == 1:
        for first, stop in pieces:
            one = piece(part, seed, first, stop)
            total.add(one)
            if one["finding"] is not None:
                return total, one["finding"]
            if show is not None:
                show(total)
        return total, None
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(piece, part, seed, first, stop) for first, stop in pieces]
        for future in futures:
            one = future.result()
            total.add(one)
            if one["finding"] is not None:
                pool.shutdown(wait=False, cancel_futures=True)
                return total, one["finding"]
            if show is not None:
                show(total)
    return total, None
