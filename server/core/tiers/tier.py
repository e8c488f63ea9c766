"""One tier as the core sees it: what was asked of it, what waits, and whether it may be asked.

Purpose: a bounded number of bytes is on its way to and from each tier, reads before writes; each
question is answered exactly once, and only when nothing of it touches memory any more; a tier that
fails or hangs is left alone for a while. Must not know: what is read and written, and for whom.
Runs in: the loop thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.ids import Fingerprint
from server.core.clock import Timers
from server.core.config import MIB, SECOND_NS, TierConfig
from server.core.effects import (
    Asked,
    JobId,
    TierAllot,
    TierDrop,
    TierGet,
    TierHealth,
    TierId,
    TierKeep,
    TierList,
    TierProbe,
    TierPut,
    TierTouch,
)
from server.core.outbox import Outbox
from server.core.tiers.breaker import Breaker
from server.core.tiers.fairness import FairQueue
from server.core.tiers.job import Job, Over
from server.core.tiers.listed import Listed
from server.core.tiers.parts import MAX_TEXT_BYTES, Status

STALL_NS = 2 * SECOND_NS
"""A tier that neither answers nor moves a byte for so long, while a read has been under way for so
long, hangs."""

LONGEST_READ_NS = 10 * SECOND_NS
"""And so does one with a read that takes this long, whatever else it does meanwhile."""

MAX_WAITING = 4096
"""Reads, and likewise writes, that wait for their turn."""

JOB_BYTES = 32 * MIB
"""Most bytes of one write, unless one chunk alone is more."""

MAX_DROPS = 64
"""DROPs under way."""

MAX_KNOWN = 4096
"""Namespaces of which it is known that a tier was told what they are; the next one begins anew."""

_COUNTED = (Status.ABSENT, Status.CORRUPT, Status.NO_ROOM, Status.LOCKED, Status.OVER)


class Tier:
    """One tier.

    Args:
        number: its place among the tiers.
        config: settings.
        put_bytes: most bytes of writes on their way; a larger single one goes alone.
        timers: stalls and check-ups.
        outbox: effects and counters.
        jobs: numbers for jobs, shared with the other tiers.

    Attributes:
        number: its place among the tiers.
        name: of its figures.
        kind: of store, for people.
        policy: what is written there, and when.
        uses: of ``Policy.AFTER_USES``.
        lists: whether it can say what namespaces it has.
        breaker: whether it is left alone.
        is_up: whether its porter runs and has opened it.
        flying: what its porter has, by job.
        told: namespaces whose description its porter was told since it came.
        stranded: reads and writes of porters that were killed and do not die, by life.
        used_bytes: as it last said, advisory.
        capacity_bytes: likewise, 0 for unknown.
        shares: bytes by namespace, where the tier counts them.
        salts: bytes of salts that have a quota there, likewise.
        shared_bytes: what floors there may add up to; 0 where it keeps none.
        has_ledger: whether it knows what this server wrote, and keeps limits alone.
        warning: why it may be of little use though it serves, as it last said; empty for none.
        carried_bytes: read and written since the server began.
        changed: called after it became open, or stopped being open.
    """

    def __init__(
        self,
        number: TierId,
        config: TierConfig,
        put_bytes: int,
        timers: Timers,
        outbox: Outbox,
        jobs: Iterator[int],
    ) -> None:
        self.number = number
        self.name = config.name
        self.kind = config.kind
        self.policy = config.policy
        self.uses = config.uses
        self.lists = config.lists
        self._window_bytes = config.window_bytes
        self._put_bytes = put_bytes
        self._timers = timers
        self._outbox = outbox
        self._jobs = jobs
        self._prefix = f"tier_{config.name}_"
        self._gets: FairQueue[Job] = FairQueue(config.window_bytes)
        self._puts: deque[Job] = deque()
        self._bytes = {TierGet: 0, TierPut: 0}
        self._watch = 0
        self._moved_ns = self._num_drops = 0
        self.breaker = Breaker(timers, self._check, self._switched)
        self.is_up = False
        self.flying: dict[JobId, Job] = {}
        self.told: set[Fingerprint] = set()
        self.stranded: dict[int, list[Job]] = {}
        self.used_bytes = 0
        self.capacity_bytes = 0
        self.shares: dict[bytes, int] = {}
        self.salts: dict[bytes, int] = {}
        self.shared_bytes = config.shared_bytes
        self.has_ledger = config.has_ledger
        self.warning = ""
        self.carried_bytes = 0
        self.changed: Callable[[Tier], None] = lambda tier: None

    @property
    def is_open(self) -> bool:
        """Whether it may be asked."""
        return self.is_up and self.breaker.is_closed

    @property
    def knows_tenants(self) -> bool:
        """Whether it knows whose its values are, or which of them this server wrote."""
        return bool(self.shared_bytes) or self.has_ledger

    @property
    def bit(self) -> int:
        """Its bit in ``SlotTable.tiers``."""
        return 1 << self.number

    @property
    def job_bytes(self) -> int:
        """Most bytes of one write, so that another one may be on its way meanwhile."""
        return min(JOB_BYTES, self._put_bytes // 2)

    @property
    def silent_ns(self) -> int:
        """For how long it has had work and none ended, nor any byte moved; 0 while it forgets."""
        now_ns, jobs = self._timers.clock.now_ns, self.flying.values()  # the oldest is the first
        begun = (one.begun_ns for one in jobs if not isinstance(one.effect, TierList))  # takes 8 s
        begun_ns = now_ns if self._num_drops else next(begun, now_ns)  # to forget takes minutes
        return max(0, now_ns - max(begun_ns, self._moved_ns))

    def count(self, what: str, number: int = 1) -> None:
        """Adds to one of its counters."""
        self._outbox.counters[self._prefix + what] += number

    # --- asking ---------------------------------------------------------------------------

    def probe(
        self, fingerprint: Fingerprint, keys: bytes, shards: int, over: Over, first: int = 0
    ) -> None:
        """Asks how many leading chunks are there."""
        if not self.is_open:
            over(None, 0)
            return
        effect = TierProbe(self.number, self._job(), fingerprint, keys, shards, first)
        self._send(Job(effect, over))

    def get(
        self,
        fingerprint: Fingerprint,
        parts: NDArray[Any],
        num_bytes: int,
        over: Over,
        flow: Hashable = None,
    ) -> None:
        """Reads values, at once or when it is the turn of who waits for them."""
        job = Job(TierGet(self.number, self._job(), fingerprint, parts), over, num_bytes, flow=flow)
        if self._takes(job, len(self._gets)):
            self._gets.add(job)
            self._pump()

    def put(
        self, fingerprint: Fingerprint, parts: NDArray[Any], num_bytes: int, over: Over
    ) -> None:
        """Writes values, at once or when it is their turn."""
        job = Job(TierPut(self.number, self._job(), fingerprint, parts), over, num_bytes)
        if self._takes(job, len(self._puts)):
            self._puts.append(job)
            self._pump()

    def drop(self, fingerprint: Fingerprint, keys: bytes, shards: int, over: Over) -> None:
        """Has chunks forgotten, all of the namespace without keys."""
        if not keys:
            self.told.discard(fingerprint)
        if not self.is_open or self._num_drops >= MAX_DROPS:
            over(None, 0)
            return
        self._send(Job(TierDrop(self.number, self._job(), fingerprint, keys, shards), over))

    def touch(self, fingerprint: Fingerprint, keys: bytes, shards: int, over: Over) -> None:
        """Tells that chunks are used, and asks whether they are there."""
        if not self.is_open:
            over(None, 0)
            return
        self._send(Job(TierTouch(self.number, self._job(), fingerprint, keys, shards), over))

    def keep(self, fingerprint: Fingerprint, text: bytes) -> None:
        """Tells what a namespace is, ahead of the first write of it; tried once."""
        if self.is_open and fingerprint not in self.told:
            if len(self.told) >= MAX_KNOWN:
                self.told.clear()
            self.told.add(fingerprint)
            if len(text) <= MAX_TEXT_BYTES:
                effect = TierKeep(self.number, self._job(), fingerprint, text)
                self._send(Job(effect, lambda statuses, count: None))

    def list_there(
        self, what: Listed, fingerprint: Fingerprint, over: Over, shard: int = 0, most: int = 0
    ) -> None:
        """Asks what is there."""
        if not self.is_open:
            over(None, 0)
            return
        self._send(Job(TierList(self.number, self._job(), what, fingerprint, shard, most), over))

    def allot(self, quotas: bytes, over: Over) -> None:
        """Tells what quotas hold for what is written from now on."""
        if not self.is_open:
            over(None, 0)
            return
        self._send(Job(TierAllot(self.number, self._job(), quotas), over))

    def cancel_puts(self, fingerprint: Fingerprint) -> None:
        """Ends a namespace's writes that still wait for their turn."""
        ended = [job for job in self._puts if job.effect.fingerprint == fingerprint]  # type: ignore[union-attr]
        self._puts = deque(job for job in self._puts if job not in ended)
        for job in ended:
            job.over(None, 0)

    def may_put(self, num_bytes: int = 0) -> bool:
        """Whether one more write of ``job_bytes``, or of more, would be sent at once."""
        num_bytes = max(self.job_bytes, num_bytes)
        return self.is_open and not self._puts and self._fits(TierPut, num_bytes)

    def may_get(self, flow: Hashable = None) -> bool:
        """Whether one more read would be sent at once, or as soon as others have their share."""
        return self.is_open and self._gets.has_room(flow, self._fits_get)

    def _check(self) -> None:
        self._send(Job(TierHealth(self.number, self._job()), lambda statuses, count: None))

    def _job(self) -> JobId:
        return JobId(next(self._jobs))

    # --- turns ----------------------------------------------------------------------------

    def _fits_get(self, num_bytes: int) -> bool:
        return self._fits(TierGet, num_bytes)

    def _fits(self, kind: type[TierGet] | type[TierPut], num_bytes: int) -> bool:
        mine = self._bytes[kind]
        if not mine:
            return True  # however large, and whatever the others have on their way
        if kind is TierPut and mine + num_bytes > self._put_bytes:
            return False
        return sum(self._bytes.values()) + num_bytes <= self._window_bytes

    def _takes(self, job: Job, num_waiting: int) -> bool:
        if not self.is_open or num_waiting >= MAX_WAITING:
            job.over(None, 0)
            return False
        return True

    def _pump(self) -> None:
        while self.is_open and (job := self._gets.take(self._fits_get)) is not None:
            self._send(job)
        while self._puts and self.is_open and self._fits(TierPut, self._puts[0].num_bytes):
            self._send(self._puts.popleft())

    def _send(self, job: Job) -> None:
        job.begun_ns = self._timers.clock.now_ns
        self.flying[job.effect.job] = job
        self._num_drops += isinstance(job.effect, TierDrop)
        if isinstance(job.effect, TierGet | TierPut):
            self._bytes[type(job.effect)] += job.num_bytes
        self._outbox.add(job.effect)
        if job.is_read and not self._watch:
            self._watch = self._timers.at(job.begun_ns + STALL_NS, self._look)

    def _look(self) -> None:
        """Opens the breaker when a read takes too long; looks again when one may have."""
        self._watch, now_ns = 0, self._timers.clock.now_ns
        begun_ns = min((job.begun_ns for job in self.flying.values() if job.is_read), default=0)
        if not begun_ns or not self.is_open:
            return
        due_ns = min(max(begun_ns, self._moved_ns) + STALL_NS, begun_ns + LONGEST_READ_NS)
        if due_ns <= now_ns:
            self.count("stalls")
            self.breaker.open("a read hangs")
        else:
            self._watch = self._timers.at(due_ns, self._look)

    # --- answers --------------------------------------------------------------------------

    def done(self, job_id: JobId, statuses: bytes | None, count: int = 0) -> None:
        """A question was answered.

        Args:
            job_id: which; one of ``flying``.
            statuses: a byte per part, None for an error of the whole.
            count: of a probe.
        """
        job = self._landed(job_id)
        self._moved_ns = self._timers.clock.now_ns
        if isinstance(job.effect, TierGet | TierPut):
            if statuses is None or len(statuses) != len(job.effect.parts):
                statuses = bytes([Status.ERROR]) * len(job.effect.parts)
            self._count(job, job.effect, statuses)
            self.breaker.note(statuses.count(Status.ERROR) < len(statuses))
        elif not isinstance(job.effect, Asked):
            # What it can neither list nor remember says nothing of how it reads and writes, and
            # what it cannot forget yet is asked of it again and again.
            if statuses is not None or not isinstance(job.effect, TierDrop):
                self.breaker.note(statuses is not None)
            self.count("errors", statuses is None)
        job.over(statuses, count)
        self._pump()

    def moves(self) -> None:
        """It gets on, though nothing has ended: a large read of a slow store, for instance."""
        self._moved_ns = self._timers.clock.now_ns

    def checked(self, job_id: JobId, is_well: bool, used_bytes: int, capacity_bytes: int) -> None:
        """A check-up was answered."""
        self._landed(job_id)
        if is_well:
            self.used_bytes, self.capacity_bytes = used_bytes, capacity_bytes
        self.breaker.checked(is_well)

    def _landed(self, job_id: JobId) -> Job:
        job = self.flying.pop(job_id)
        self._num_drops -= isinstance(job.effect, TierDrop)
        if isinstance(job.effect, TierGet | TierPut):
            self._bytes[type(job.effect)] -= job.num_bytes
        if isinstance(job.effect, TierGet):
            self._gets.ended(job)
        return job

    def _count(self, job: Job, effect: TierGet | TierPut, statuses: bytes) -> None:
        name = "get" if isinstance(effect, TierGet) else "put"
        lengths = effect.parts["length"]
        if any(statuses):
            lengths = lengths[np.frombuffer(statuses, np.uint8) == Status.OK]
            for status in _COUNTED:
                self.count(status.name.lower(), statuses.count(status))
            self.count("errors", statuses.count(Status.ERROR))
        num_bytes = int(lengths.sum(dtype=np.int64))
        self.carried_bytes += num_bytes
        self.count(f"{name}_bytes", num_bytes)
        self.count(f"{name}_us", (self._timers.clock.now_ns - job.begun_ns) // 1000)

    # --- its porter -----------------------------------------------------------------------

    def ready(self, used_bytes: int, capacity_bytes: int) -> None:
        """Its porter runs and has opened it."""
        self.used_bytes, self.capacity_bytes = used_bytes, capacity_bytes
        self.is_up = True
        self.told.clear()
        self.breaker.ready()
        if self.is_open:
            self.changed(self)

    def lost(self) -> None:
        """Its porter is gone, and touches no memory any more: all that it had failed."""
        self._down()
        for job_id in list(self.flying):
            self._fail(self._landed(job_id))

    def strand(self, life: int) -> None:
        """Its porter was killed and does not die: what it reads and writes ends with ``gone``.

        Args:
            life: of that porter.
        """
        self._down()
        jobs = [self._landed(job_id) for job_id in list(self.flying)]
        self.stranded[life] = [job for job in jobs if job.touches_memory]
        for job in jobs:
            if not job.touches_memory:
                self._fail(job)

    def gone(self, life: int) -> None:
        """A stranded porter is seen dead: nothing of it touches memory any more."""
        for job in self.stranded.pop(life, ()):
            self._fail(job)

    def _down(self) -> None:
        was_open, self.is_up = self.is_open, False
        self.breaker.lost()
        self._drop_waiting()
        if was_open:
            self.changed(self)

    def _fail(self, job: Job) -> None:
        if isinstance(job.effect, TierHealth):
            return
        self.count("errors")
        statuses = None
        if isinstance(job.effect, TierGet | TierPut):
            statuses = bytes([Status.ERROR]) * len(job.effect.parts)
        job.over(statuses, 0)

    def _drop_waiting(self) -> None:
        waiting = [*self._gets.empty(), *self._puts]
        self._puts.clear()
        for job in waiting:
            job.over(None, 0)

    def _switched(self) -> None:
        """The breaker opened or closed."""
        if not self.breaker.is_closed:
            self.count("breaker_opens")
            self._drop_waiting()
        if self.is_up:
            self.changed(self)

    def figures(self) -> dict[str, int]:
        """Gauges, by name."""
        return {
            f"{self._prefix}up": int(self.is_open),
            f"{self._prefix}used_bytes": self.used_bytes,
            f"{self._prefix}capacity_bytes": self.capacity_bytes,
            f"{self._prefix}jobs": len(self.flying),
            f"{self._prefix}stuck": len(self.stranded),
        }
