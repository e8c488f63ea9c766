"""Whether tiers still have what L1 counts on them for, and know that it is used.

Purpose: what L1 always has is never read from a tier, so it grows old there and goes; and a store
may lose anything at any time. So each chain that is used is named to each tier once in a round:
the tier counts that as a use, and what it says is gone is written to it again. A round ends by
time, when a quarter of a tier was read or written, and when a tier comes back. A tier that does not
answer is not waited for, nor asked anything more until it does. Must not know: how chunks are
written, how a tier knows. Runs in: the loop thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.ids import Fingerprint
from server.core.admission import MORE, WAIT, WALK_BLOCKS, Lanes, Pause, Steps, Task
from server.core.arena import Arena
from server.core.clock import Timers
from server.core.config import SECOND_NS
from server.core.index import ABSENT, ROOT, ChunkIndex
from server.core.namespaces import Owner
from server.core.slots import HELD
from server.core.tiers.parts import MAX_TOUCHED, Status
from server.core.tiers.policy import Policy
from server.core.tiers.tier import Tier
from server.core.tiers.tiers import Tiers
from server.core.tiers.writer import MAX_CLIMB, Writer

ROUND_NS = 300 * SECOND_NS
"""Longest round: a chain that is used is looked after as often."""

SHORTEST_ROUND_NS = SECOND_NS

ROUND_PART = 4
"""A quarter of a tier's capacity, read or written, ends a round: what is used in each of them is
never the oldest."""

PAUSE_NS = 50_000_000
"""Between two questions: ten thousand parts a second are a few percent of a porter's core."""

ANSWER_NS = 10 * SECOND_NS
"""Longest wait for answers: a tier that is slower, because its porter hangs in a write for
instance, does not keep the others from being asked."""

MAX_NOTED = 4096
"""Chains that wait to be looked after; further ones are when they are used again."""

LANE = "freshness"

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Noted:
    """A chain, by its last chunk.

    Attributes:
        owner: whose.
        index: of that time; another one now means that it was cleared.
        node: the last chunk.
        life: of that node.
    """

    owner: Owner
    index: ChunkIndex
    node: int
    life: int


@dataclass(eq=False)
class Question:
    """What one tier was asked about some chunks.

    Attributes:
        writer: the tier's.
        nodes: int64[n], of the chunks.
        lives: int32[n], of those nodes.
        written: bool[n, shards], the parts that the tier had said to have before it was asked.
        is_over: it was answered.
        statuses: uint8[n, shards], None after an error.
    """

    writer: Writer
    nodes: Ints
    lives: NDArray[np.int32]
    written: NDArray[np.bool_]
    is_over: bool = False
    statuses: NDArray[np.uint8] | None = None


class Freshness:
    """All chains that are used, and all tiers that are written to.

    Args:
        writers: of those tiers.
        tiers: by whom they are asked.
        arena: slots.
        lanes: long work.
        timers: pauses.
        fault: notes an error of our own.

    Attributes:
        round: its number, as ``ChunkIndex.seen`` has it of chains that were looked after in it.
    """

    def __init__(
        self,
        writers: Sequence[Writer],
        tiers: Tiers,
        arena: Arena,
        lanes: Lanes,
        timers: Timers,
        fault: Callable[[Exception], None],
    ) -> None:
        self._writers = writers
        self._tiers = tiers
        self._table = arena.slots
        self._lanes = lanes
        self._timers = timers
        self._fault = fault
        self._noted: OrderedDict[tuple[Fingerprint, int], Noted] = OrderedDict()
        self._task: Task | None = None
        self._silent: set[int] = set()  # numbers of tiers that still owe an answer
        self._carried = [0 for _ in writers]
        self._begun_ns = 0
        self._is_returned = False
        self.round = 1
        tiers.opened.append(self._opened)

    def used(self, owner: Owner, node: int) -> None:
        """A chain was used, up to a node."""
        self._begin_round()
        index = owner.index
        if index.seen[node] == self.round or len(self._noted) >= MAX_NOTED:
            return
        if any(writer.tier.is_open for writer in self._writers):
            key = owner.fingerprint, node
            self._noted[key] = Noted(owner, index, node, index.life[node])
            if self._task is None:
                self._task = self._lanes.start(LANE, self._run(), self._failed)

    # --- rounds ---------------------------------------------------------------------------

    def _opened(self, tier: Tier) -> None:
        # It may have lost whatever it had.
        self._is_returned = True

    def _begin_round(self) -> None:
        """Begins the next one if it is time."""
        age_ns = self._timers.clock.now_ns - self._begun_ns
        if age_ns < SHORTEST_ROUND_NS:
            return
        if age_ns >= ROUND_NS or self._is_returned or self._is_turned_over():
            self._begun_ns = self._timers.clock.now_ns
            self._carried = [writer.tier.carried_bytes for writer in self._writers]
            self._is_returned = False
            self.round = self.round % 0x7FFFFFFF + 1

    def _is_turned_over(self) -> bool:
        for writer, before in zip(self._writers, self._carried, strict=True):
            tier = writer.tier
            most = tier.capacity_bytes // ROUND_PART
            if most and tier.carried_bytes - before >= most:
                return True
        return False

    # --- the work -------------------------------------------------------------------------

    def _failed(self, error: Exception) -> None:
        self._task = None
        self._fault(error)

    def _wake(self) -> None:
        if self._task is not None:
            self._lanes.wake(self._task)

    def _run(self) -> Steps:
        yield MORE  # whoever looked something up has had its slice
        while self._noted:
            _, noted = self._noted.popitem(last=False)
            if _is_there(noted):
                yield from self._look_after(noted)
            yield MORE
        self._task = None

    def _look_after(self, noted: Noted) -> Generator[Pause, None, None]:
        current = self.round
        line = yield from self._line(noted, current)
        most = max(1, MAX_TOUCHED // noted.index.num_shards)
        # From the start on, as a chain is read: its end goes first.
        for begin in range(0, len(line), most):
            nodes = np.array(line[begin : begin + most], np.int64)
            yield from self._ask(noted, nodes)
            if not _is_there(noted):
                return
            noted.index.see(nodes, current)

    def _line(self, noted: Noted, current: int) -> Generator[Pause, None, list[int]]:
        """Chunks of a chain that were not looked after in a round, from its start on.

        With a chunk, all that it continues were.
        """
        index, node, line = noted.index, noted.node, list[int]()
        while node != ROOT and index.seen[node] != current:
            line.append(node)
            node = index.parent[node]
            if len(line) % WALK_BLOCKS == 0:
                yield MORE
                if not _is_there(noted) or len(line) >= MAX_CLIMB:
                    return []
        return line[::-1]

    def _ask(self, noted: Noted, nodes: Ints) -> Generator[Pause, None, None]:
        """Names chunks to each tier that is counted on for them; then has written what lacks."""
        questions = []
        for writer in self._writers:
            if writer.tier.is_open and writer.tier.number not in self._silent:
                question = self._question(noted, writer, nodes)
                if question is not None:
                    questions.append(question)
        if questions:
            yield from self._answers(questions)
        idle = [writer for writer in self._writers if not writer.num_waiting]
        for question in questions:
            self._answered(noted, question)
            yield MORE
        for writer in idle:
            if _is_there(noted):
                self._catch_up(noted, writer, nodes)
            yield MORE
        if questions:
            yield from self._rest()

    def _answers(self, questions: list[Question]) -> Generator[Pause, None, None]:
        due_ns = self._timers.clock.now_ns + ANSWER_NS
        timer = self._timers.at(due_ns, self._wake)
        while self._timers.clock.now_ns < due_ns and not all(one.is_over for one in questions):
            yield WAIT
        self._timers.cancel(timer)

    def _rest(self) -> Generator[Pause, None, None]:
        due_ns = self._timers.clock.now_ns + PAUSE_NS
        self._timers.at(due_ns, self._wake)
        while self._timers.clock.now_ns < due_ns:
            yield WAIT

    def _question(self, noted: Noted, writer: Writer, nodes: Ints) -> Question | None:
        # What is on its way may not be there yet when it is asked for, and is young anyway.
        written = self._bits(noted.index, nodes, writer.tier) == 1
        written &= ~np.isin(noted.index.cells[nodes], writer.under_way())
        rows = written.any(axis=1)
        nodes = nodes[rows]
        if not nodes.size:
            return None
        question = Question(writer, nodes, noted.index.lives(nodes), written[rows])
        num_shards = noted.index.num_shards

        def ended(statuses: bytes | None) -> None:
            question.is_over = True
            self._silent.discard(writer.tier.number)
            if statuses is not None:
                question.statuses = np.frombuffer(statuses, np.uint8).reshape(-1, num_shards)
            self._wake()

        keys = noted.index.keys_of(nodes).tobytes()
        self._silent.add(writer.tier.number)
        self._tiers.touch(writer.tier, noted.owner, keys, ended)
        return question

    def _answered(self, noted: Noted, question: Question) -> None:
        """What a tier has not is not counted on any more."""
        index, tier = noted.index, question.writer.tier
        if question.statuses is None or index is not noted.owner.index:
            return
        lives = index.lives(question.nodes) == question.lives
        gone = (question.statuses[lives] == Status.ABSENT) & question.written[lives]
        gone &= self._bits(index, question.nodes[lives], tier) == 1
        if gone.any():
            slots = index.cells[question.nodes[lives]][gone]
            self._table.tiers[slots] &= np.uint8(~tier.bit & 0xFF)
            tier.count("values_lost", int(gone.sum()))
            if tier.policy is not Policy.ON_EVICT:
                question.writer.offer(noted.owner, question.nodes[lives][gone.any(axis=1)])

    def _catch_up(self, noted: Noted, writer: Writer, nodes: Ints) -> None:
        """What was given up once is written; of a tier for which nothing waited."""
        tier = writer.tier
        if tier.policy is Policy.WRITE_THROUGH and tier.is_open:
            nodes = nodes[(self._bits(noted.index, nodes, tier) == 0).any(axis=1)]
            if nodes.size:
                writer.offer(noted.owner, nodes)

    def _bits(self, index: ChunkIndex, nodes: Ints, tier: Tier) -> NDArray[np.int8]:
        """int8[n, shards]: 1 for a part that a tier should have, 0 for none, -1 for not held."""
        cells = index.cells[nodes]
        held = (cells != ABSENT) & (self._table.state[cells] == HELD)
        has = (self._table.tiers[cells] & tier.bit) != 0
        bits: NDArray[np.int8] = np.where(held, has.astype(np.int8), np.int8(-1))
        return bits

    def figures(self) -> dict[str, int]:
        """Gauges, by name."""
        return {"chains_to_look_after": len(self._noted)}


def _is_there(noted: Noted) -> bool:
    """Whether nobody has cleared, deleted or evicted it."""
    return noted.index is noted.owner.index and noted.index.life[noted.node] == noted.life
