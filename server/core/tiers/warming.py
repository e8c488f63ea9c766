"""Warming: what tiers have is brought into L1 before anybody asks for it, hottest first.

Purpose: one job at a time. It asks each tier in turn what namespaces it has and which of their
chunks were used last, makes known those namespaces that no engine has registered yet, and has the
chunks promoted as a LOOKUP would; nothing is evicted for them. Must not know: who listens to its
progress, messages. Runs in: the loop thread.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from itertools import count

from protocol import codec
from protocol.errors import ErrorCode, KvkeepError, RequestError
from protocol.ids import ID_BYTES, Fingerprint
from protocol.namespace import Namespace, fingerprint
from server.core.admission import MORE, WAIT, Lanes, Pause, Steps
from server.core.config import CoreConfig
from server.core.departures import Departures
from server.core.effects import ProcessId
from server.core.index import ABSENT
from server.core.namespaces import Owner
from server.core.outbox import Outbox
from server.core.roster import Roster
from server.core.tiers.listed import Listed
from server.core.tiers.misses import Miss
from server.core.tiers.parts import MAX_LISTED
from server.core.tiers.promotion import Promotion
from server.core.tiers.runs import Run
from server.core.tiers.tier import Tier
from server.core.tiers.tiers import Tiers
from server.core.tiers.warm import Ride, Segment, Source, Warm, segments

LANE = "warming"

RIDES = 4
"""Chains that are loaded at once: short ones would otherwise wait for each other."""

NO_SPACE = Fingerprint(bytes(ID_BYTES))

_PAGE = struct.Struct("<II")


class Warming:
    """The one warm job, or none.

    Args:
        config: settings.
        tiers: who is asked.
        promotion: brings chunks.
        roster: namespaces.
        departures: forgets namespaces of which nothing came.
        outbox: counters.
        lanes: long work.
        fault: notes an error of our own.

    Attributes:
        job: the last one begun, over or not; None before the first.
    """

    def __init__(
        self,
        config: CoreConfig,
        tiers: Tiers,
        promotion: Promotion,
        roster: Roster,
        departures: Departures,
        outbox: Outbox,
        lanes: Lanes,
        fault: Callable[[Exception], None],
    ) -> None:
        self._arena_bytes = config.arena_bytes
        self._tiers = tiers
        self._promotion = promotion
        self._roster = roster
        self._departures = departures
        self._outbox = outbox
        self._lanes = lanes
        self._fault = fault
        self._numbers = count(1)
        self.job: Warm | None = None

    # --- what an operator asks ------------------------------------------------------------

    def begin(self, process: ProcessId, name: bytes, max_bytes: int, keys: bytes = b"") -> Warm:
        """Begins to load.

        Args:
            process: who asks; the job ends with it.
            name: fingerprint of a namespace; empty for all.
            max_bytes: most that is loaded, 0 for as much as fits.
            keys: of the one prefix wanted, 16 bytes per chunk; empty for what tiers list.

        Raises:
            RequestError: INVALID_ARGUMENT for no fingerprint, or keys without one, UNSUPPORTED
                without lower tiers, UNAVAILABLE while none of them can be read, LIMIT_EXCEEDED
                while another job runs.
        """
        if len(name) not in (0, ID_BYTES) or (keys and not name):
            raise RequestError(ErrorCode.INVALID_ARGUMENT, "a fingerprint has 16 bytes")
        if not self._tiers.tiers:
            raise RequestError(
                ErrorCode.UNSUPPORTED, "this server has no lower tiers to warm from: give it --l2"
            )
        if self.job is not None and not self.job.is_over:
            raise RequestError(ErrorCode.LIMIT_EXCEEDED, "a warm job runs already")
        if not self._tiers.readable():
            raise RequestError(ErrorCode.UNAVAILABLE, "no tier can be read at present")
        job = self.job = Warm(next(self._numbers), process, Fingerprint(name), max_bytes, keys)
        self._outbox.counters["warms"] += 1
        job.task = self._lanes.start(LANE, self._steps(job), partial(self._failed, job))
        return job

    def get(self, number: int) -> Warm:
        """A job by its number.

        Raises:
            RequestError: INVALID_ARGUMENT, it is not the last one begun.
        """
        if self.job is None or self.job.number != number:
            raise RequestError(ErrorCode.INVALID_ARGUMENT, f"no warm job {number}")
        return self.job

    def cancel(self, job: Warm, why: str) -> None:
        """Ends a job; what it brought stays. One that is over is left alone."""
        if job.is_over:
            return
        job.why = why
        for ride in list(job.rides):
            ride.leave()
        self._end(job)

    def gone(self, process: ProcessId) -> None:
        """A process left, and with it what it asked for."""
        if self.job is not None and self.job.process == process:
            self.cancel(self.job, "who asked has left")

    def drain(self) -> None:
        """The server is about to end."""
        if self.job is not None:
            self.cancel(self.job, "the server is about to end")

    def _end(self, job: Warm) -> None:
        job.is_over = True
        owners, job.owners = list(job.owners.values()), {}
        for owner in owners:
            owner.warming = False
        for owner in owners:
            self._departures.shrink(owner)
        self._wake(job)

    def _failed(self, job: Warm, error: Exception) -> None:
        self._fault(error)
        self.cancel(job, "the server failed; its log says why")

    # --- the work -------------------------------------------------------------------------

    def _wake(self, job: Warm) -> None:
        if job.task is not None:
            self._lanes.wake(job.task)

    def _steps(self, job: Warm) -> Steps:
        yield MORE
        for tier in self._tiers.readable() if not job.keys else ():
            sources = yield from self._sources(job, tier)
            while sources and not job.is_over:
                source = sources.popleft()
                yield from self._list(job, source)
                yield from self._load(job, source)
                # Namespaces take turns, so that the hottest of each come first.
                if source.has_more and not source.is_cleared:
                    sources.append(source)
            if job.is_over:
                return
        if job.keys:
            yield from self._prefix(job)
        if not job.is_over:
            job.why = job.summary()
            self._end(job)

    def _prefix(self, job: Warm) -> Steps:
        """Loads the one prefix that is wanted, from whichever tiers have it."""
        for tier in self._tiers.readable():
            owner = yield from self._owner(job, tier, job.fingerprint)
            if job.is_over:
                return
            if owner is not None:
                job.owners[job.fingerprint] = owner
                owner.warming = True
                source = Source(tier, owner, owner.index)
                source.waiting.append(Segment(b"", job.keys))
                job.listed = len(job.keys) // ID_BYTES
                yield from self._load(job, source)
                return
        for tier in self._tiers.readable():  # for who asked: which there are
            yield from self._names(job, tier)

    def _ask(
        self, job: Warm, tier: Tier, what: Listed, name: Fingerprint, shard: int = 0, most: int = 0
    ) -> Generator[Pause, None, bytes | None]:
        answers: list[bytes | None] = []

        def ended(listed: bytes | None) -> None:
            answers.append(listed)
            self._wake(job)

        self._tiers.list_there(tier, what, name, ended, shard, most)
        while not answers and not job.is_over:
            yield WAIT
        if not answers:
            return None
        if answers[0] is None:
            job.trouble = f"tier {tier.name} cannot say what it has"
        return answers[0]

    def _sources(self, job: Warm, tier: Tier) -> Generator[Pause, None, deque[Source]]:
        """The namespaces that a tier has, of those wanted; each is known from now on."""
        found: deque[Source] = deque()
        listed, names = yield from self._names(job, tier)
        if job.fingerprint and listed is not None and job.fingerprint not in names:
            names.append(job.fingerprint)  # one that an engine has registered may be there, too
        for name in names:
            if job.is_over:
                break
            if not job.fingerprint or name == job.fingerprint:
                owner = yield from self._owner(job, tier, name)
                if owner is not None and not job.is_over:
                    job.owners[name] = owner
                    owner.warming = True
                    found.append(Source(tier, owner, owner.index))
        return found

    def _names(
        self, job: Warm, tier: Tier
    ) -> Generator[Pause, None, tuple[bytes | None, list[Fingerprint]]]:
        """What a tier says that it has, None if it does not, and the namespaces in it."""
        listed = yield from self._ask(job, tier, Listed.NAMESPACES, NO_SPACE)
        names = [] if listed is None else _ids(listed)
        if job.fingerprint:
            job.known |= dict.fromkeys(names)
        return listed, names

    def _owner(
        self, job: Warm, tier: Tier, name: Fingerprint
    ) -> Generator[Pause, None, Owner | None]:
        owner = self._roster.owners.get(name)
        if owner is not None:
            return owner
        text = yield from self._ask(job, tier, Listed.NAMESPACE, name)
        if not text or job.is_over:
            return None
        try:
            namespace = codec.struct_from_plain(codec.plain_from_bytes(text), Namespace)
            if fingerprint(namespace) != name:
                return None
            return self._roster.owner_for(namespace, name)
        except KvkeepError as error:
            job.trouble = str(error)
            return None

    def _list(self, job: Warm, source: Source) -> Steps:
        """Asks for the next page of a source."""
        owner = source.owner
        what = Listed.NEXT if source.is_begun else Listed.HOTTEST
        first = owner.index.full.index(True) if any(owner.index.full) else 0
        most = min(MAX_LISTED, self._arena_bytes // source.chunk_bytes + 1)
        page = yield from self._ask(job, source.tier, what, owner.fingerprint, first, most)
        source.has_more = False
        if page is None or len(page) < _PAGE.size:
            return
        total, more = _PAGE.unpack_from(page)
        job.listed += total - source.total
        source.is_begun, source.total, source.has_more = True, total, bool(more)
        source.waiting.extend(segments(page[_PAGE.size :]))
        yield MORE

    def _load(self, job: Warm, source: Source) -> Steps:
        """Loads what was listed of a source, as far as it can be had."""
        while not job.is_over and (job.rides or (source.waiting and not job.is_full)):
            if job.rides and (job.is_full or not source.waiting or len(job.rides) >= RIDES):
                yield WAIT
                continue
            segment = source.waiting.popleft()
            if source.is_cleared:
                job.missed += segment.num_chunks
            elif not self._begin(job, source, segment):
                # What it continues may be on its way, or others take all that may still come.
                if job.rides:
                    source.waiting.appendleft(segment)
                    yield WAIT
                    continue
                job.missed += segment.num_chunks
            yield MORE
        if job.is_full:
            self.cancel(job, "L1 is full")

    def _begin(self, job: Warm, source: Source, segment: Segment) -> bool:
        """Begins to load a segment; False if that cannot be before something else came."""
        index, parent = source.index, segment.parent
        node = index.find(parent) if parent else ABSENT
        if parent and (node == ABSENT or index.missing[node]):
            return False
        start = index.depth[node] + 1 if parent else 0
        held, _ = index.complete_prefix(segment.keys, start)
        segment = segment.after(held)
        room = segment.num_chunks
        if job.max_bytes and room:
            left = job.max_bytes - job.num_bytes - sum(ride.owed_bytes for ride in job.rides)
            room = left // source.chunk_bytes
            if room <= 0:
                if not job.rides:
                    self.cancel(job, "as many bytes as were wanted")
                return bool(job.is_over)
        job.held += held
        if not room:
            return True
        ride = Ride(job, source, segment.first(room), start + held, self._rode)
        if room < segment.num_chunks:
            source.waiting.appendleft(segment.after(room))
        job.rides[ride] = None
        found = self._promotion.ride(
            source.owner, ride.start, ride.segment.parent, ride.segment.keys, ride
        )
        if isinstance(found, Run):
            ride.run = found
            return True
        del job.rides[ride]
        job.missed += ride.segment.num_chunks
        if found is Miss.TIER_ERROR:
            job.trouble = "no tier can be read any more"
        return True

    def _rode(self, ride: Ride, run: Run | None) -> None:
        """More of a ride came; with a run, nothing more of it comes."""
        job, source = ride.job, ride.source
        came = ride.note()
        job.num_chunks += came
        job.num_bytes += came * source.chunk_bytes
        self._outbox.counters["warmed_chunks"] += came
        self._outbox.counters["warmed_bytes"] += came * source.chunk_bytes
        if run is None:
            return
        job.rides.pop(ride, None)
        rest = ride.segment.after(ride.count)
        if rest.num_chunks and run.why is Miss.NO_ROOM:
            job.is_full = True  # what others on their way have slots for still comes
        elif rest.num_chunks and ride.count and not source.is_cleared:
            source.waiting.appendleft(rest)
        else:
            job.missed += rest.num_chunks
        self._wake(job)


def _ids(listed: bytes) -> list[Fingerprint]:
    return [
        Fingerprint(listed[at : at + ID_BYTES])
        for at in range(0, len(listed) - ID_BYTES + 1, ID_BYTES)
    ]
