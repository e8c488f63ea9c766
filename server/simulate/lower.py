"""What lies below a node's memory: what a tier holds, and how long reads and writes of it take.

Purpose: a tier forgets what was used least recently once it is full; one node's reads follow each
other at the tier's rate, and so do its writes. Must not know: memory, prompts. Runs in: the
process of the command line.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence

PIECE_BYTES, LEAST_PIECE_BYTES, PIECES = 16 << 20, 1 << 20, 8
"""Chunks of a promotion arrive in pieces of at most the first size, or one by one; a short one in
so many pieces of at least the second. As in the core."""

MAX_RUNS = 64
"""Promotions of one node under way; further ones do not begin. As in the core."""

DISK_AGES = 32
"""How finely a disk remembers when something was used; as the engine does."""

ASK_S = 0.001
"""What asking a tier takes, before the first byte moves."""


class Contents:
    """What a tier holds; several nodes may share it.

    Args:
        num_chunks: how many fit.
        ages: into how many spans what it holds is sorted by its last use. Of the oldest the
            latest use goes first, so the end of a chain goes before what it stands on; 0 sorts
            strictly by age.
        num_distinct: chunks that there are in all, when known: what has room for all of them
            forgets nothing, and need not sort.
    """

    def __init__(self, num_chunks: int, ages: int = 0, num_distinct: int | None = None) -> None:
        self._room = num_chunks
        self._forgets = num_distinct is None or num_chunks < num_distinct
        self._uses_each = max(1, num_chunks // ages) if ages else 1
        self._uses = 0
        self._age_of: dict[int, int] = {}
        self._by_age: OrderedDict[int, OrderedDict[int, None]] = OrderedDict()

    def __len__(self) -> int:
        """Chunks held."""
        return len(self._age_of)

    def __contains__(self, chunk: int) -> bool:
        """Whether a chunk is held."""
        return chunk in self._age_of

    def leading(self, chunks: Sequence[int], begin: int, end: int) -> int:
        """How many chunks from ``begin`` on, and before ``end``, are held without a gap."""
        at = begin
        while at < end and chunks[at] in self._age_of:
            at += 1
        return at - begin

    def use(self, chunks: Iterable[int]) -> None:
        """Notes that chunks were read, in this order."""
        if not self._forgets:
            return
        for chunk in chunks:
            if chunk in self._age_of:
                self._take_out(chunk)
                self._enter(chunk)

    def put(self, chunk: int) -> None:
        """Takes a chunk in, or counts it as used when it is there."""
        if not self._forgets:
            self._age_of[chunk] = 0
            return
        if chunk in self._age_of:
            self._take_out(chunk)
        elif not self._room:
            return
        elif len(self._age_of) >= self._room:
            self._take_out(next(reversed(next(iter(self._by_age.values())))))
        self._enter(chunk)

    def _enter(self, chunk: int) -> None:
        age = self._uses // self._uses_each
        self._uses += 1
        self._age_of[chunk] = age
        self._by_age.setdefault(age, OrderedDict())[chunk] = None

    def _take_out(self, chunk: int) -> None:
        age = self._age_of.pop(chunk)
        mates = self._by_age[age]
        del mates[chunk]
        if not mates:
            del self._by_age[age]


class Reader:
    """One node's reads from one tier.

    Args:
        bytes_s: rate.
        chunk_bytes: size of a chunk.
    """

    def __init__(self, bytes_s: float, chunk_bytes: int) -> None:
        self._chunk_s = chunk_bytes / bytes_s
        self._chunk_bytes = chunk_bytes
        self._free_at = 0.0
        self._ends: deque[float] = deque()

    def is_full(self, at: float) -> bool:
        """Whether as many promotions as may be are under way."""
        while self._ends and self._ends[0] <= at:
            self._ends.popleft()
        return len(self._ends) >= MAX_RUNS

    def load(self, at: float, count: int) -> list[float]:
        """Reads chunks, behind what was asked for before.

        Args:
            at: when they are asked for, seconds.
            count: how many, at least one.

        Returns:
            When each is there; those of one piece come together.
        """
        begin = max(at + ASK_S, self._free_at)
        piece_bytes = max(LEAST_PIECE_BYTES, count * self._chunk_bytes // PIECES)
        size = max(1, min(PIECE_BYTES, piece_bytes) // self._chunk_bytes)
        ends = [
            begin + min(count, (number // size + 1) * size) * self._chunk_s
            for number in range(count)
        ]
        self._free_at = ends[-1]
        self._ends.append(ends[-1])
        return ends


class Writer:
    """One node's writes to one tier.

    Args:
        bytes_s: rate.
        chunk_bytes: size of a chunk.
        max_waiting: chunks that wait; then the oldest are given up.
        written: called with each chunk once it is there, and with when that was.

    Attributes:
        dropped: chunks that were given up, or evicted before their turn came.
    """

    def __init__(
        self,
        bytes_s: float,
        chunk_bytes: int,
        max_waiting: int,
        written: Callable[[int, float], None],
    ) -> None:
        self._chunk_s = chunk_bytes / bytes_s
        self._max_waiting = max_waiting
        self._written = written
        self._free_at = 0.0
        self._waiting: OrderedDict[int, float] = OrderedDict()
        self.dropped = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting

    def add(self, chunk: int, at: float) -> None:
        """Has a chunk written; one that waits already is not written twice."""
        if chunk in self._waiting:
            return
        self._waiting[chunk] = at
        if len(self._waiting) > self._max_waiting:
            self._waiting.popitem(last=False)
            self.dropped += 1

    def forget(self, chunk: int, at: float) -> None:
        """A chunk was evicted: unless its turn has come, it is not written any more."""
        asked_at = self._waiting.get(chunk)
        if asked_at is None:
            return
        if next(iter(self._waiting)) != chunk or max(asked_at, self._free_at) > at:
            del self._waiting[chunk]
            self.dropped += 1

    def settle(self, at: float) -> None:
        """Carries out what is done by a moment."""
        while self._waiting:
            chunk, asked_at = next(iter(self._waiting.items()))
            end = max(asked_at, self._free_at) + self._chunk_s
            if end > at:
                return
            del self._waiting[chunk]
            self._free_at = end
            self._written(chunk, end)
