"""One prefetch: chunks of a LOOKUP that L1 lacks, and the QUERY that waits for them.

Must not know: tiers, slots. Runs in: the loop thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.ids import ID_BYTES, InstanceId, RequestKey
from server.core.namespaces import Instance, Session
from server.core.outbox import Ticket
from server.core.tallies import Tally, came_from
from server.core.tiers.misses import Miss
from server.core.tiers.runs import Run


@dataclass(eq=False)
class Waiter:
    """A QUERY_PREFETCH_STATUS that waits.

    Attributes:
        ticket: its reply.
        timer: of the end of its wait.
        is_over: its wait is over: it is answered with what is there.
        is_matching: what is there is being looked at, in slices.
        is_stale: since that began a reader has mapped something, which it may leave out.
    """

    ticket: Ticket
    timer: int = 0
    is_over: bool = False
    is_matching: bool = False
    is_stale: bool = False


@dataclass(eq=False)
class Prefetch:
    """What one LOOKUP asked for and L1 lacks.

    Attributes:
        session: of the scheduler that asked.
        request: request key.
        start: ordinal of the first chunk asked for.
        keys: 16 bytes per chunk.
        told: chunks that the last answer had.
        advance: called when it needs another run, or an end.
        settle: called when its waiter may have to be answered.
        begun: chunks that were there when its last run was begun, -1 before the first.
        run: on which it waits, None for none.
        is_final: nothing more will come.
        is_late: its deadline has passed: it waits for nobody's mapping either.
        why: why the rest does not come; None where no tier has it.
        asked: the run that it waited for when its wait was over.
        waiter: the QUERY that is to be answered.
        timer: of its deadline.
        is_patient: an engine waits for it.
        tenant: digest of the request's salt, or empty.
        tally: of the LOOKUP.
        rides: what each run brought that it does not wait for any more: its first chunk, the one
            after its last, and from where.
    """

    session: Session
    request: RequestKey
    start: int
    keys: bytes
    told: int
    advance: Callable[[Prefetch], None]
    settle: Callable[[Prefetch], None]
    begun: int = -1
    run: Run | None = None
    is_final: bool = False
    is_late: bool = False
    why: Miss | None = None
    asked: Run | None = None
    waiter: Waiter | None = None
    timer: int = 0
    is_patient: bool = False
    tenant: bytes = b""
    tally: Tally = field(default_factory=Tally)
    rides: list[tuple[int, int, str]] = field(default_factory=list)

    @property
    def instance(self) -> Instance:
        """Whose."""
        return self.session.instance

    @property
    def flow(self) -> InstanceId:
        """The engine."""
        return self.session.instance.instance

    @property
    def num_chunks(self) -> int:
        """Chunks asked for."""
        return len(self.keys) // ID_BYTES

    def key(self, chunk: int) -> bytes:
        """Key of one of its chunks."""
        return self.keys[chunk * ID_BYTES : (chunk + 1) * ID_BYTES]

    def gained(self, count: int) -> Counter[str]:
        """Where the chunks came from that an answer has and the one before it had not.

        Args:
            count: chunks that it has.
        """
        rides = [*self.rides, *self._ride()]
        return came_from(rides, self.told, max(self.told, count))

    def _ride(self) -> list[tuple[int, int, str]]:
        """What its run has brought so far."""
        run = self.run
        if run is None or run.tier is None or not run.landing:
            return []
        return [(self.begun, run.start + run.landing - self.start, run.tier.name)]

    def leave(self) -> None:
        """It does not wait for its run any more."""
        self.rides += self._ride()
        self.run = None

    # --- as a run's passenger -------------------------------------------------------------

    def moved(self, run: Run) -> bool:
        """More of its run was published; returns whether it goes on waiting for it."""
        if self.is_final:
            return False
        at = run.start + run.frontier - self.start
        if at < 0 or (
            # The same key means the same way up to it.
            at < self.num_chunks
            and (run.frontier == run.num_chunks or self.key(at) == run.key(run.frontier))
        ):
            return True
        self.leave()
        self.advance(self)
        return False

    def ended(self, run: Run) -> None:
        """Nothing more of its run comes."""
        if not self.is_final:
            self.leave()
            # One that brought nothing, and for no reason of its own, does not hide why the one
            # before it ended.
            if run.frontier or run.why is not None:
                self.why = run.why
            if run.spares and run.why is Miss.NO_ROOM:
                self.begun = -1  # one of its own may evict
            self.advance(self)

    def finish(self, why: Miss | None) -> None:
        """Nothing more comes for it."""
        if self.run is not None:
            self.run.passengers.pop(self, None)
            self.leave()
        if not self.is_final:
            self.is_final, self.why = True, why
        self.settle(self)
