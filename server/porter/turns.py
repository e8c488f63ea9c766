"""Whose turn it is: what waits in a porter, and which thread may take what.

Purpose: questions are not held up by bytes; a get is waited for by an engine, so it goes before
puts, which for their part are not starved; forgetting takes its place among the puts of its
namespace. Must not know: tiers, memory, answers. Runs in: filled by a porter's main thread, emptied
by its worker threads.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass, field

from server.porter.wire import Command, Kind

ASKING = frozenset({Kind.PROBE, Kind.HEALTH})
FORGETTING = frozenset({Kind.DROP, Kind.CLEAR})
READING = frozenset(
    {Kind.GET, Kind.NAMESPACES, Kind.NAMESPACE, Kind.HOTTEST, Kind.NEXT, Kind.OF_SALT}
)
WRITING = frozenset({Kind.PUT, Kind.KEEP, Kind.TOUCH, Kind.QUOTAS})

GETS_IN_A_ROW = 16
"""Gets that go before a put that waits."""


@dataclass(eq=False)
class Job:
    """A command that a worker performs.

    Attributes:
        command: of the kinds that ask, read, write and forget.
        held: extents that stay mapped until it has ended.
    """

    command: Command
    held: list[int] = field(default_factory=list)


class Turns:
    """Jobs that wait.

    Args:
        max_writers: most puts, drops and clears at once.
    """

    def __init__(self, max_writers: int) -> None:
        self._max_writers = max_writers
        self._changed = threading.Condition()
        self._questions: deque[Job] = deque()
        self._gets: deque[Job] = deque()
        self._writes: deque[Job] = deque()
        self._putting: Counter[bytes] = Counter()
        self._forgetting: Counter[bytes] = Counter()
        self._num_gets_in_a_row = 0
        self._is_closed = False

    def add(self, job: Job) -> None:
        """One more job waits."""
        kind = job.command.kind
        with self._changed:
            if kind in ASKING:
                self._questions.append(job)
            elif kind in READING:
                self._gets.append(job)
            else:
                self._writes.append(job)
            self._changed.notify_all()

    def take(self, asks: bool) -> Job | None:
        """Waits for the next job of a thread, which calls ``ended`` after it.

        Args:
            asks: for the thread that answers questions alone; else for one that does all else.

        Returns:
            The job, or None when there will be none any more.
        """
        with self._changed:
            while not self._is_closed:
                job = self._next_question() if asks else self._next()
                if job is not None:
                    return job
                self._changed.wait()
            return None

    def ended(self, job: Job) -> None:
        """A job was performed; others may have waited for that."""
        command = job.command
        under_way = self._under_way(command.kind)
        if under_way is None:
            return
        with self._changed:
            under_way[command.fingerprint] -= 1
            if not under_way[command.fingerprint]:
                del under_way[command.fingerprint]
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody is given a job any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _next_question(self) -> Job | None:
        return self._questions.popleft() if self._questions else None

    def _next(self) -> Job | None:
        if self._gets and (self._num_gets_in_a_row < GETS_IN_A_ROW or not self._writes):
            self._num_gets_in_a_row += 1
            return self._gets.popleft()
        job = self._next_write()
        if job is not None:
            self._num_gets_in_a_row = 0
            return job
        return self._gets.popleft() if self._gets else None

    def _next_write(self) -> Job | None:
        """The oldest that does not have to wait for another of its namespace."""
        if self._putting.total() + self._forgetting.total() >= self._max_writers:
            return None
        behind: set[bytes] = set()
        for at, job in enumerate(self._writes):
            kind, space = job.command.kind, job.command.fingerprint
            waits = self._forgetting[space] or (kind in FORGETTING and self._putting[space])
            if not waits and space not in behind:
                del self._writes[at]
                under_way = self._under_way(kind)
                assert under_way is not None
                under_way[space] += 1
                return job
            behind.add(space)
        return None

    def _under_way(self, kind: Kind) -> Counter[bytes] | None:
        if kind in WRITING:
            return self._putting
        return self._forgetting if kind in FORGETTING else None
