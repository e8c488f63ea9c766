"""Promotion: chunks that L1 lacks are read from the first tier that has them, in order, in pieces.

Purpose: one run for all who wait for the same chunk. It asks the tiers in turn how many chunks they
have from L1's frontier on, reserves slots, reads, and publishes what came as far as it is whole;
the first failure ends it. Nobody's deadline ends a run: what comes late serves the next request.
Must not know: requests, leases, messages. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from itertools import count

from protocol.ids import ID_BYTES
from server.core.admission import MORE, WAIT, Lanes, Steps, Task
from server.core.arena import Arena
from server.core.config import CoreConfig
from server.core.index import ABSENT
from server.core.namespaces import Owner
from server.core.publishing import Publisher
from server.core.reservations import Reservations
from server.core.tiers.landing import Landing, unlock
from server.core.tiers.misses import Miss
from server.core.tiers.parts import MAX_KEYS
from server.core.tiers.reads import Reads
from server.core.tiers.runs import Passenger, Run
from server.core.tiers.tier import Tier
from server.core.tiers.tiers import Tiers

LANE = "promotion"

MAX_RUNS = 64
"""Runs at once, besides those that wait for a stuck porter's end; of such porters there are few."""

MOST_RUNS = 2 * MAX_RUNS
"""The same with those of engines that have no other one: nobody takes all places."""

TOLD_AT_ONCE = 32
"""Passengers that are told of their run in one slice."""


class Promotion:
    """Every run.

    Args:
        config: settings.
        arena: slots and extents.
        reservations: takes slots.
        publisher: publishes them.
        tiers: who is asked.
        lanes: long work.
        fault: notes an error of our own.

    Attributes:
        runs: those that are not over, each with all that is reserved for it.
        over: called with the owner of a run that is over.
    """

    def __init__(
        self,
        config: CoreConfig,
        arena: Arena,
        reservations: Reservations,
        publisher: Publisher,
        tiers: Tiers,
        lanes: Lanes,
        fault: Callable[[Exception], None],
    ) -> None:
        self._tiers = tiers
        self._lanes = lanes
        self._fault = fault
        self._reads = Reads(arena, reservations, tiers, config.promote_piece_bytes, self._wake)
        self._landing = Landing(reservations, publisher, tiers, self._wake)
        self._probes = count(1)
        tiers.closed.append(self._closed)
        tiers.stranded.append(self._stranded)
        self.runs: list[Run] = []
        self.over: Callable[[Owner], None] = lambda owner: None

    def ride(
        self, owner: Owner, start: int, parent_key: bytes, keys: bytes, passenger: Passenger
    ) -> Run | Miss | None:
        """Has chunks promoted, or waits with others for a run that does.

        Args:
            owner: the namespace.
            start: ordinal of the first chunk that L1 lacks.
            parent_key: of the chunk before that, or empty at a chain's start.
            keys: 16 bytes per chunk, from that one on.
            passenger: told how the run goes.

        Returns:
            The run; or why there is none, None where nothing can be had.
        """
        for run in self.runs:
            if run.owner is owner and not run.is_cleared and run.lacks(keys[:ID_BYTES]) != ABSENT:
                return self._join(run, passenger)
        if not self._tiers.readable(owner.fingerprint):
            return Miss.TIER_ERROR
        if not self._has_place(passenger.flow):
            return Miss.NO_ROOM
        run = Run(
            owner=owner,
            index=owner.index,
            start=start,
            parent_key=parent_key,
            keys=keys[: MAX_KEYS * ID_BYTES],
            spares=passenger.is_patient,
            tenant=passenger.tenant,
            flow=passenger.flow,
        )
        if start:
            node = owner.index.find(parent_key)
            if node == ABSENT or owner.index.depth[node] != start - 1:
                return None
            run.anchor, run.anchor_life = node, owner.index.life[node]
            owner.index.locks[node] += 1
        run.passengers[passenger] = None
        self.runs.append(run)
        # Its first slice only waits for the next one, so it does nothing before it has its task.
        run.task = self._start(run, self._steps(run), partial(self._failed, run))
        return run

    def _has_place(self, flow: Hashable) -> bool:
        """Whether one more run may begin: where there are many, for whoever has none."""
        live = [run for run in self.runs if not run.is_lost]
        if len(live) < MAX_RUNS:
            return True
        return len(live) < MOST_RUNS and all(run.flow != flow for run in live)

    def _start(self, run: Run, steps: Steps, failed: Callable[[Exception], None]) -> Task:
        # Slices are taken in turns as well: those of one engine's runs are one lane.
        return self._lanes.start((LANE, run.flow), steps, failed)

    def _join(self, run: Run, passenger: Passenger) -> Run | Miss:
        hangs = run.is_left and run.num_unanswered > 0
        if run.tier is not None and (hangs or not run.tier.is_open):
            if not run.probe:
                return Miss.TIER_ERROR  # it may hang; its slots are to be left alone until its end
            self._probed(run, run.probe, None)
        run.passengers[passenger] = None
        return run

    def _closed(self, tier: Tier) -> None:
        """A tier is left alone: whoever asked it what it has asks the next one."""
        for run in self.runs:
            if run.tier is not tier:
                continue
            if run.probe:
                self._probed(run, run.probe, None)
            elif run.num_unanswered:
                run.is_left = True

    def _stranded(self, tier: Tier) -> None:
        """What its porter reads may take for ever: others may store or read the same meanwhile."""
        for run in self.runs:
            if run.tier is tier and run.num_unanswered:
                run.is_lost = True
                self._wake(run)

    def forget(self, owner: Owner) -> None:
        """CLEAR or DELETE of a namespace: what is under way is not published any more."""
        for run in self.runs:
            if run.owner is owner:
                run.cleared = True
                self._wake(run)

    # --- one run --------------------------------------------------------------------------

    def _wake(self, run: Run) -> None:
        if run.task is not None:
            self._lanes.wake(run.task)

    def _steps(self, run: Run) -> Steps:
        yield MORE
        for tier in self._tiers.readable(run.owner.fingerprint):
            if not _is_wanted(run):
                break
            self._ask(run, tier)
            while run.probe:
                yield WAIT
            if run.count and _is_wanted(run):
                yield from self._load(run)
                if run.frontier:
                    break
        yield from self._end(run)

    def _ask(self, run: Run, tier: Tier) -> None:
        run.tier, run.count, run.probe = tier, 0, next(self._probes)
        run.is_left = False
        self._tiers.probe(tier, run.owner, run.keys, partial(self._probed, run, run.probe))

    def _probed(self, run: Run, probe: int, number: int | None) -> None:
        if run.probe != probe:
            return  # it was given up
        if number is None:
            run.why = Miss.TIER_ERROR  # unless the next tier has it
        run.probe, run.count = 0, min(number or 0, run.num_chunks)
        self._wake(run)

    def _load(self, run: Run) -> Steps:
        """Reads and publishes what a tier claims to have; leaves nothing reserved."""
        run.why = None
        yield from self._reads.begin(run)
        while not (run.is_stopping or run.is_cleared or run.is_lost):
            if run.pieces and not run.pieces[0].num_unanswered:
                yield from self._landing.publish(run)
                yield from self._tell(run)
            elif self._reads.may_send(run):
                yield from self._reads.send(run)
            elif run.pieces:
                yield WAIT
            else:
                break
        yield from self._reads.free(run)

    def _tell(self, run: Run) -> Steps:
        for number, passenger in enumerate(list(run.passengers), 1):
            if passenger in run.passengers and not passenger.moved(run):
                run.passengers.pop(passenger, None)
            if number % TOLD_AT_ONCE == 0:
                yield MORE

    def _end(self, run: Run) -> Steps:
        self.runs.remove(run)
        run.is_over = True
        told, run.passengers = list(run.passengers), {}
        for number, passenger in enumerate(told, 1):
            passenger.ended(run)
            # The first of them may have begun a run from here on, which locks the same node.
            unlock(run)
            if number % TOLD_AT_ONCE == 0:
                yield MORE
        unlock(run)
        self.over(run.owner)

    def _failed(self, run: Run, error: Exception) -> None:
        self._fault(error)
        run.why, run.probe = Miss.TIER_ERROR, 0
        run.task = self._start(run, self._tidy(run), self._fault)

    def _tidy(self, run: Run) -> Steps:
        """Ends a run after a fault of our own."""
        yield MORE
        yield from self._reads.free(run)
        if run in self.runs:
            yield from self._end(run)


def _is_wanted(run: Run) -> bool:
    """Whether anything of it may still be published, and is of use to anybody."""
    return not run.is_cleared and run.owner.is_wanted
