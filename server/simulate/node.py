"""One node: what a request finds in its memory and below, and what it leaves there.

Purpose: the rules of LOOKUP, promotion, STORE and demotion in the order in which the server
follows them, with the time that reads and writes of tiers take. A prompt's chunks are in memory
from its arrival on. Must not know: traces, other nodes (they meet in a shared tier's contents).
Runs in: the process of the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from server.core.tiers.policy import Policy
from server.simulate.lower import Contents, Reader, Writer
from server.simulate.memory import Memory
from server.simulate.settings import Lower

MAX_WAITING_WRITES = 1 << 16
"""Chunks that wait to be written to one tier; with more the oldest are given up. As in the core."""


class Miss(Enum):
    """Why the first chunk that was missing was missing."""

    COLD = "cold"
    EVICTED = "evicted"
    DEADLINE = "deadline"
    NO_ROOM = "no_room"
    LAST_TOKEN = "last_token"


@dataclass
class Outcome:
    """What became of one request.

    Attributes:
        hits: chunks by source: memory, then each tier.
        missing: chunks that were computed.
        why: the reason, when any was.
        waited_s: for lower tiers.
        read_chunks: that its promotions moved, by tier, the late ones included.
    """

    hits: list[int]
    missing: int = 0
    why: Miss | None = None
    waited_s: float = 0.0
    read_chunks: list[int] = field(default_factory=list)


class Tier:
    """A lower tier as one node uses it.

    Args:
        spec: what it is.
        contents: what it holds; shared by nodes where the tier is.
        chunk_bytes: size of a chunk.
        written: called with the time of each write that ended.

    Attributes:
        spec: what it is.
        contents: what it holds.
        reader: this node's reads.
        writer: this node's writes.
        known: chunks in this node's memory that it takes to be there, or on their way.
    """

    def __init__(
        self, spec: Lower, contents: Contents, chunk_bytes: int, written: Callable[[float], None]
    ) -> None:
        self.spec = spec
        self.contents = contents
        self.reader = Reader(spec.read_gbps * 1e9, chunk_bytes)

        def arrived(chunk: int, at: float) -> None:
            contents.put(chunk)
            written(at)

        self.writer = Writer(spec.write_gbps * 1e9, chunk_bytes, MAX_WAITING_WRITES, arrived)
        self.known: set[int] = set()

    def write(self, chunk: int, at: float) -> None:
        """Has a chunk written unless it is known to be there or on its way."""
        if chunk not in self.known:
            self.known.add(chunk)
            self.writer.add(chunk, at)


class Node:
    """One node.

    Args:
        num_chunks: what its memory holds.
        tiers: lower tiers, in the order in which they are asked.
        deadline_s: longest wait of a request for them.
    """

    def __init__(self, num_chunks: int, tiers: Sequence[Tier], deadline_s: float) -> None:
        self.memory = Memory(num_chunks, self._evicted)
        self.tiers = tiers
        self._deadline_s = deadline_s
        self._gone: set[int] = set()
        self._uses: dict[int, int] = {}
        self._landing: dict[int, tuple[float, int]] = {}
        self._now = 0.0
        self._stamp_us = 0

    def serve(self, at: float, chunks: Sequence[int], usable: int) -> Outcome:
        """Handles one request.

        Args:
            at: its arrival, seconds, not before the last one's.
            chunks: of its prompt, from the start.
            usable: leading ones that a hit may count.
        """
        # No two requests come at the very same time: what is used last is always known.
        self._now, self._stamp_us = at, max(self._stamp_us + 1, int(at * 1e6))
        outcome = Outcome([0] * (1 + len(self.tiers)), read_chunks=[0] * len(self.tiers))
        held, ready_at = self._look_up(chunks[:usable], outcome)
        if outcome.why is None:
            ready_at = self._promote(chunks, held, usable, ready_at, outcome)
        found = sum(outcome.hits)
        outcome.missing = len(chunks) - found
        outcome.waited_s = ready_at - at
        if outcome.why is Miss.DEADLINE:
            outcome.waited_s = self._deadline_s
        elif outcome.missing and outcome.why is None:
            is_gone = found < usable and chunks[found] in self._gone
            outcome.why = Miss.EVICTED if is_gone else Miss.COLD
            if found == usable:
                outcome.why = Miss.LAST_TOKEN
        if found:
            self._count_use(chunks[found - 1])
        self._store(chunks)
        return outcome

    # --- reading --------------------------------------------------------------------------

    def _look_up(self, chunks: Sequence[int], outcome: Outcome) -> tuple[int, float]:
        """What memory holds, promotions that others began included; and when all of it is there."""
        held, ready_at, landing = self.memory.held(chunks, self._stamp_us), self._now, self._landing
        if not landing:
            outcome.hits[0] = held
            return held, ready_at
        for number, chunk in enumerate(chunks[:held]):
            at, source = landing.get(chunk, (0.0, 0))
            if at <= self._now:
                landing.pop(chunk, None)
                source = 0
            elif at > self._now + self._deadline_s:
                outcome.why = Miss.DEADLINE
                return number, ready_at
            ready_at = max(ready_at, at)
            outcome.hits[source] += 1
        return held, ready_at

    def _promote(
        self, chunks: Sequence[int], held: int, usable: int, ready_at: float, outcome: Outcome
    ) -> float:
        """Loads what tiers have of the rest, one run after the other; when the last was there."""
        last_at = self._now + self._deadline_s
        while held < usable:
            source = self._first_with(chunks, held, usable)
            if source is None:
                break
            tier = self.tiers[source]
            if ready_at >= last_at or tier.reader.is_full(self._now):
                outcome.why = Miss.DEADLINE
                break
            wanted = tier.contents.leading(chunks, held, usable)
            room = self.memory.add(chunks[: held + wanted], held, self._stamp_us)
            if room:
                ends = self._load(source, chunks[held : held + room], ready_at, outcome)
                good = sum(end <= last_at for end in ends)
                outcome.hits[1 + source] += good
                if good < room:
                    outcome.why = Miss.DEADLINE
                    break
                ready_at = ends[-1]
            if room < wanted:
                outcome.why = Miss.NO_ROOM
                break
            held += room
        return ready_at

    def _load(
        self, source: int, part: Sequence[int], begin_at: float, outcome: Outcome
    ) -> list[float]:
        """Begins to read chunks that memory has taken in; when each is there."""
        tier = self.tiers[source]
        ends = tier.reader.load(begin_at, len(part))
        tier.contents.use(part)
        tier.known.update(part)
        self._landing.update(
            (chunk, (end, 1 + source)) for chunk, end in zip(part, ends, strict=True)
        )
        outcome.read_chunks[source] += len(part)
        self._publish(part)
        return ends

    def _first_with(self, chunks: Sequence[int], held: int, usable: int) -> int | None:
        for number, tier in enumerate(self.tiers):
            if tier.contents.leading(chunks, held, min(usable, held + 1)):
                return number
        return None

    # --- writing --------------------------------------------------------------------------

    def _store(self, chunks: Sequence[int]) -> None:
        held = self.memory.held(chunks, self._stamp_us)
        count = self.memory.add(chunks, held, self._stamp_us)
        self._publish(chunks[held : held + count])

    def _publish(self, part: Sequence[int]) -> None:
        for tier in self.tiers:
            if tier.spec.policy is Policy.WRITE_THROUGH:
                for chunk in part:
                    tier.write(chunk, self._now)

    def _count_use(self, deepest: int) -> None:
        uses = self._uses[deepest] = self._uses.get(deepest, 0) + 1
        for tier in self.tiers:
            if tier.spec.policy is Policy.AFTER_USES and uses % tier.spec.uses == 0:
                self._write_chain(tier, deepest)

    def _write_chain(self, tier: Tier, deepest: int) -> None:
        """Parents first, from the deepest one that is there already."""
        chain: list[int] = []
        chunk: int | None = deepest
        while chunk is not None and chunk not in tier.known:
            chain.append(chunk)
            chunk = self.memory.parent(chunk)
        for chunk in reversed(chain):
            tier.write(chunk, self._now)

    def _evicted(self, line: list[int]) -> None:
        self._gone.update(line)
        for tier in self.tiers:
            if tier.spec.policy is Policy.ON_EVICT:
                # As if the cleaner, which writes what goes next, were always just ahead.
                self._write_chain(tier, line[0])
            for chunk in line:
                if tier.spec.policy is not Policy.ON_EVICT:
                    tier.writer.forget(chunk, self._now)
                tier.known.discard(chunk)
        for chunk in line:
            self._landing.pop(chunk, None)
            self._uses.pop(chunk, None)
