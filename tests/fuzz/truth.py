"""A shell without sockets around a real core, and the truth about every byte it would move.

Pages and slots hold tags instead of bytes: where a copy read, and under which key a record was
written. Each effect of the core is checked against what the clients' messages allow, before the
next is performed. Knows no grammar of messages. Runs in the fuzzer's process.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol import messages as m
from protocol.extents import RECORD_DTYPE, STATE_HELD, ExtentGeometry, checksums
from protocol.ids import ArenaId, Epoch, ExtentId, Fingerprint
from protocol.layout import ShardPool
from protocol.namespace import Namespace, fingerprint
from protocol.quotas import QuotaChange
from server.core import effects as fx
from server.core.config import CoreConfig
from server.core.dispatch import Core
from server.core.integrity import IntegrityError
from tests.fuzz.below import Below
from tests.fuzz.finding import Finding, require
from tests.fuzz.stores import Brought, Name

EPOCH, ARENA = Epoch(b"E" * 16), ArenaId(b"A" * 16)
SECOND = 1_000_000_000
Spans = tuple[tuple[int, int, int], ...]
"""Of one slot: target within the slot, source within the pool, length; in bytes."""


@dataclass
class Shadow:
    """One extent file.

    Attributes:
        geometry: how it is cut.
        content: per slot, the pool and spans that were copied into it, or the part that a tier
            brought; None for torn bytes.
        records: per slot, whether its record counts.
        tags: per slot, (key, shard, generation) of the last record written.
        rows: the records as they stand in the file.
        removed: it was unlinked.
    """

    geometry: ExtentGeometry
    content: list[tuple[int, Spans] | Brought | None]
    records: list[bool]
    tags: list[tuple[bytes, int, int] | None]
    rows: NDArray[Any]
    removed: bool = False


@dataclass
class Seat:
    """One registration, as its client knows it.

    Attributes:
        session: its number.
        process: whose.
        instance: of which engine.
        body: what was registered.
        fingerprint: of its namespace.
        said: extents that it reported as mapped and the server knows of.
        given: extents that it was given.
        reads: extents that it may still read.
        is_open: it was not ended, as far as the client asked.
    """

    session: int
    process: int
    instance: bytes
    body: m.RegisterKvCache
    fingerprint: bytes
    said: set[int] = field(default_factory=set)
    given: set[int] = field(default_factory=set)
    reads: set[int] = field(default_factory=set)
    is_open: bool = True


class Truth:
    """The core, its shell and what must hold.

    Args:
        config: of the core.
        seed: of its random bytes.
        lazy: effects and copies that end only when told to.
    """

    def __init__(self, config: CoreConfig, seed: int, lazy: bool) -> None:
        self.random = random.Random(seed)
        self.lazy = lazy
        self.now_ns = SECOND
        self.extents: dict[int, Shadow] = {}
        self.parents: dict[tuple[bytes, bytes], bytes] = {}
        self.namespaces: dict[bytes, Namespace] = {}
        self.former: dict[int, tuple[frozenset[Fingerprint] | None, set[tuple[int, int]]]] = {}
        self.next_party = 0
        self.offered: dict[tuple[int, bytes, int], set[Spans]] = {}
        self.held: Counter[tuple[bytes, int, bytes]] = Counter()
        self.instances: dict[int, bytes] = {}
        self.generations: set[int] = {0}
        self.tenants: set[bytes] = set()
        self.quotas: tuple[QuotaChange, ...] = ()
        self.told = 0
        self.replied: Callable[[fx.SendReply], None] = lambda effect: None
        self.given: Callable[[fx.GiveExtent | fx.TakeExtent], None] = lambda effect: None
        self.below = Below(self)
        self._acts: dict[type, Callable[[Any], None]] = {
            fx.SendReply: self._reply,
            fx.CreateExtent: self._later,
            fx.StartCopier: self._later,
            fx.StopCopier: self._later,
            fx.OpenPool: self._later,
            fx.ClosePool: self._later,
            fx.StartCopy: self._start_copy,
            fx.VoidRecords: self._void,
            fx.WriteRecords: self._write,
            fx.RemoveExtent: self._remove,
            fx.GiveExtent: self._give,
            fx.TakeExtent: lambda effect: self.given(effect),  # noqa: PLW0108 - set later
            fx.KeepNamespace: self._keep,
            fx.DropNamespace: self._drop,
            fx.KeepQuotas: self._keep_quotas,
            fx.FindSalt: self._find_salt,
            **self.below.acts(),
        }
        self.begin(config)

    def begin(self, config: CoreConfig) -> None:
        """A server starts; the arena's files are as they were."""
        self.config = config
        self.core = Core(config, EPOCH, ARENA, self.random.randbytes)
        # The first of them is as the settings have it from now on, if it fits this server.
        first = (one for one in self.quotas[:1] if not one.tier)
        wanted = [one for one in first if one.floor_bytes <= config.arena_bytes]
        self.core.allot(wanted, self.quotas)
        self.core.tell_more(dict)
        self.core.tell_latency(dict)
        self.draining, self.lives = False, 1
        self.jobs: dict[int, fx.StartCopy] = {}
        self.aims: dict[int, dict[int, Spans]] = {}
        self.flying: set[tuple[int, int]] = set()
        self.stuck: dict[tuple[int, int], set[tuple[int, int]]] = {}
        self.up = {int(fx.HOST_COPIER)}
        self.copier_of: dict[int, int] = {}
        self.balked: set[int] = set()
        self.handles: dict[int, tuple[int, int]] = {}
        self.unread: set[int] = set()
        self.pending: list[Any] = []
        self.seats: dict[int, Seat] = {}
        self.claims: dict[tuple[int, bytes], list[tuple[int, int, int]]] = {}
        for shadow in self.extents.values():
            shadow.content = [None] * len(shadow.content)
        self.below.begin()

    # --- running --------------------------------------------------------------------------

    def settle(self, slices: int = 100_000) -> None:
        """Performs effects and at most so many slices of work."""
        for _ in range(slices):
            more = self.core.work(self.now_ns)
            self.effects()
            if not more and not self._eager():
                break
        else:
            self.effects()
            require(slices < 100_000, "the core never comes to rest: 100,000 slices")
        if self.below.stuck:
            self.below.check_memory()

    def effects(self) -> None:
        """Performs what the core asks for, and lets none of its own faults pass."""
        while taken := self.core.take_effects():
            for effect in taken:
                act = self._acts.get(type(effect))
                if act is not None:
                    act(effect)
        faults = self.core.take_faults()
        if faults:
            raise Finding(f"a fault of the core: {faults[0].strip().splitlines()[-1]}\n{faults[0]}")

    def _eager(self) -> bool:
        answered = self.below.prompt()
        if self.lazy or not (self.pending or self.jobs):
            return answered
        self.act(0)
        for job in list(self.jobs):
            self.finish(job)
        return True

    def _later(self, effect: Any) -> None:
        if isinstance(effect, fx.OpenPool):
            # The copier takes commands in order: what it is told next may use the pool already.
            require(effect.copier in self.up, "a pool is asked for: of a copier that is down")
            self.handles[effect.handle] = (effect.process, effect.memory.size_bytes)
            self.copier_of[effect.handle] = effect.copier
        self.pending.append(effect)

    def act(self, number: int, error: str | None = None) -> None:
        """One of the actions that the core waits for ends."""
        if not self.pending:
            return
        effect = self.pending.pop(number % len(self.pending))
        if isinstance(effect, fx.CreateExtent):
            geometry, slots = effect.geometry, effect.geometry.num_slots
            if error is None:
                require(geometry.extent not in self.extents, f"an extent id twice: {geometry}")
                self.extents[geometry.extent] = Shadow(
                    geometry,
                    [None] * slots,
                    [False] * slots,
                    [None] * slots,
                    np.zeros(slots, RECORD_DTYPE),
                )
            self.core.extent_created(geometry.extent, error, self.now_ns)
        elif isinstance(effect, fx.OpenPool):
            if error is not None:
                self.unread.add(effect.handle)
            self.core.pool_opened(effect.handle, error, self.now_ns)
        elif isinstance(effect, fx.StartCopier | fx.StopCopier):
            self._keep_running(effect, error)
        else:
            flying = any(job.pool == effect.handle for job in self.jobs.values())
            require(not flying, "a pool is closed: while it is copied from")
            self.core.pool_closed(effect.handle, self.now_ns)

    def _keep_running(self, effect: fx.StartCopier | fx.StopCopier, error: str | None) -> None:
        """A device's copier starts, or cannot and is tried again; or it ends."""
        copier = effect.copier
        if isinstance(effect, fx.StopCopier):
            mine = [one for one in self.pending if getattr(one, "copier", None) == copier]
            self.pending = [one for one in self.pending if one not in mine]
            require(all(isinstance(one, fx.StartCopier) for one in mine), "ended: amid pools")
            self.up.discard(copier)
            self.core.copier_lost(copier, self.now_ns)
            self.core.copier_ended(copier, self.now_ns)
        elif error is not None or (copier % 2 == 0 and copier not in self.balked):
            self.balked.add(copier)  # every other one does not start at first
            self.pending.append(effect)
            self.core.copier_refused(copier, error or "no such device", self.now_ns)
        else:
            self.up.add(copier)
            self.core.copier_ready(copier, self.now_ns)

    # --- copies ---------------------------------------------------------------------------

    def _start_copy(self, job: fx.StartCopy) -> None:
        shadow = self.extents[job.extent]
        require(not shadow.removed, "a copy into a removed extent: the file is gone")
        require(job.pool in self.handles, "a copy from a pool: that is not open")
        require(self.copier_of[job.pool] == job.copier, "a copy: by another pool's copier")
        size, geometry = self.handles[job.pool][1], shadow.geometry
        aims: dict[int, list[tuple[int, int, int]]] = {}
        rows = zip(job.targets.tolist(), job.sources.tolist(), job.lengths.tolist(), strict=True)
        for target, source, length in rows:
            inside = source >= 0 and length > 0 and source + length <= size
            require(inside, f"a copy reaches outside its pool: {source}+{length} of {size}")
            slot, rest = divmod(target - geometry.data_offset_bytes, geometry.slot_bytes)
            fits = 0 <= slot < geometry.num_slots and rest + length <= geometry.payload_bytes
            require(fits, f"a copy reaches outside its slot: {slot} {rest}+{length}")
            aims.setdefault(slot, []).append((rest, source, length))
        for slot in aims:
            require(not shadow.records[slot], f"a copy over a published record: {slot}")
            require((job.extent, slot) not in self.flying, f"a slot given to two: {slot}")
            shadow.content[slot] = None
            self.flying.add((job.extent, slot))
        read = {(extent, slot) for claims in self.claims.values() for extent, slot, _ in claims}
        mine = {(job.extent, slot) for slot in aims}
        require(not read & mine, "a copy over what somebody reads: slot reused")
        for _, touched in self.former.values():
            require(not touched & mine, "a copy over what a former process touches: slot reused")
        self.jobs[job.job] = job
        self.aims[job.job] = {slot: tuple(sorted(spans)) for slot, spans in aims.items()}

    def finish(self, number: int, error: str | None = None) -> None:
        """A copy ends."""
        job, aims = self.jobs.pop(number), self.aims.pop(number)
        shadow = self.extents[job.extent]
        if job.pool in self.unread:
            error = "no such pool"
        for slot, spans in aims.items():
            self.flying.discard((job.extent, slot))
            require(not shadow.records[slot], "published: while it was copied")
            if error is None:
                shadow.content[slot] = (job.pool, spans)
        self.core.copy_done(fx.JobId(number), error, self.now_ns)

    # --- records --------------------------------------------------------------------------

    def _void(self, effect: fx.VoidRecords) -> None:
        shadow = self.extents[effect.extent]
        fingerprint = shadow.geometry.fingerprint
        busy = self.below.busy() if effect.reused else set()
        for slot in effect.slots.tolist():
            tag = shadow.tags[slot]
            if shadow.records[slot] and tag is not None:
                self.held[fingerprint, tag[1], tag[0]] -= 1
            shadow.records[slot] = False
            shadow.rows["checksum"][slot] = 0
            if effect.reused:
                shadow.rows["generation"][slot] = 0
                former = any((effect.extent, slot) in one for _, one in self.former.values())
                require(not former, f"a slot is reused while a former process reads it: {slot}")
                shadow.tags[slot] = None
                read = any(
                    (effect.extent, slot) == claim[:2]
                    for claims in self.claims.values()
                    for claim in claims
                )
                read = read or (effect.extent, slot) in busy
                require(not read, f"a slot is reused while it is read: {slot}")

    def _write(self, effect: fx.WriteRecords) -> None:
        shadow = self.extents[effect.extent]
        geometry = shadow.geometry
        require(not shadow.removed, "a record in a removed extent: the file is gone")
        good = checksums(np.ascontiguousarray(effect.records)) == effect.records["checksum"]
        require(bool(good.all()), "a record with a wrong checksum: written")
        names = effect.records.dtype.names or ()
        shadow.rows[effect.slots] = effect.records
        for slot, values in zip(effect.slots.tolist(), effect.records.tolist(), strict=True):
            row = dict(zip(names, values, strict=True))
            key, shard, generation = bytes(row["key"]), row["shard"], row["generation"]
            require(generation not in self.generations, f"a generation is not new: {generation}")
            self.generations.add(generation)
            require(row["state"] == STATE_HELD and shard == geometry.shard, "a record: misplaced")
            require(not shadow.records[slot], f"a record over another: slot {slot}")
            require(
                bytes(row["namespace"]) == geometry.fingerprint[:8], "a record: of another space"
            )
            self._check_content(shadow, slot, key, shard, bytes(row["owner"]))
            tenant = bytes(row["tenant"])
            require(not any(tenant) or tenant in self.tenants, "a record: of a tenant nobody named")
            self.parents[geometry.fingerprint, key] = bytes(row["parent"])
            shadow.records[slot] = True
            shadow.tags[slot] = (key, shard, generation)
            self.held[geometry.fingerprint, shard, key] += 1

    def _check_content(
        self, shadow: Shadow, slot: int, key: bytes, shard: int, owner: bytes
    ) -> None:
        content = shadow.content[slot]
        if content is None:
            raise Finding(f"published without a whole copy: {key!r}")
        if isinstance(content, Brought):
            name = Name(shadow.geometry.fingerprint, key, shard)
            self.below.check_brought(content, name, owner)
            return
        handle, spans = content
        process = self.handles[handle][0]
        require(self.instances[process] == owner, "a record names another owner: than copied it")
        known = self.offered.get((process, key, shard), set())
        require(spans in known, f"published other pages than the key was sent with: {key!r}")

    def expect(self, seat: Seat, store: m.Store) -> None:
        """Notes which pages a STORE names for which key, before it is sent."""
        pool = next((one for one in seat.body.pools if one.shard == store.shard), None)
        blocks = seat.body.namespace.chunk_blocks
        pages = np.frombuffer(store.pages[: len(store.pages) // 4 * 4], "<i4").tolist()
        if pool is None:
            return
        for number in range(min(len(store.keys) // 16, len(pages) // blocks)):
            key = store.keys[16 * number : 16 * number + 16]
            spans = spans_of(pool, pages[number * blocks : (number + 1) * blocks])
            self.offered.setdefault((seat.process, key, store.shard), set()).add(spans)

    # --- extents --------------------------------------------------------------------------

    def _give(self, effect: fx.GiveExtent) -> None:
        seat = self.seats.get(effect.session)
        if seat is not None:
            ours = seat.body.namespace.shards_of_rank(seat.body.rank)
            same = seat.fingerprint == effect.geometry.fingerprint
            require(same and effect.geometry.shard in ours, "an extent is given: to a stranger")
            require(seat.process == effect.process, "an extent is given: to another process")
            seat.given.add(effect.geometry.extent)
        self.given(effect)

    def _keep(self, effect: fx.KeepNamespace) -> None:
        require(fingerprint(effect.namespace) == effect.fingerprint, "a namespace: of another name")
        self.namespaces[effect.fingerprint] = effect.namespace

    def _drop(self, effect: fx.DropNamespace) -> None:
        self.namespaces.pop(effect.fingerprint, None)

    def _keep_quotas(self, effect: fx.KeepQuotas) -> None:
        self.quotas = effect.quotas

    def _find_salt(self, effect: fx.FindSalt) -> None:
        rows = self.extents[effect.extent].rows[effect.begin : effect.end]
        found = np.flatnonzero((rows["tenant"] == np.void(effect.salt)) & (rows["checksum"] != 0))
        generations = rows["generation"][found].astype(np.int64)
        self.core.salt_found(effect.search, effect.begin + found, generations, self.now_ns)

    def _reply(self, effect: fx.SendReply) -> None:
        self.replied(effect)

    def _remove(self, effect: fx.RemoveExtent) -> None:
        shadow = self.extents[effect.extent]
        require(not shadow.removed, "an extent is removed: twice")
        shadow.removed = True
        used = any(extent == effect.extent for extent, _ in (*self.flying, *self.below.busy()))
        require(not used, "an extent is removed: while it is copied into")
        former = any(slot[0] == effect.extent for _, one in self.former.values() for slot in one)
        require(not former, "an extent is removed: while a former process reads it")
        for seat in self.seats.values():
            require(effect.extent not in seat.reads, "an extent is removed: while it is mapped")
        for claims in self.claims.values():
            read = any(extent == effect.extent for extent, _, _ in claims)
            require(not read, "an extent is removed: while it is read")

    # --- checks ---------------------------------------------------------------------------

    def audit(self) -> None:
        """The core's own books, and that all that is read is pinned and unchanged."""
        try:
            self.core.check_integrity()
        except IntegrityError as error:
            raise Finding(f"the books do not agree: {error}") from error
        table = self.core._state.slots
        bases = {number: one.base for number, one in self.core._state.arena.extents.items()}
        for claims in self.claims.values():
            for extent, slot, generation in claims:
                shadow, base = self.extents[extent], bases.get(ExtentId(extent))
                tag = shadow.tags[slot]
                kept = tag is not None and tag[2] == generation and not shadow.removed
                require(kept, f"bytes changed under a reader: extent {extent} slot {slot}")
                pinned = base is not None and int(table.pins[base + slot]) > 0
                require(pinned, f"read and not pinned: extent {extent} slot {slot}")
        self.below.check_memory()


def spans_of(pool: ShardPool, pages: list[int]) -> Spans:
    """Where the bytes of one chunk come from and go to, counted page by page."""
    spans: list[tuple[int, int, int]] = []
    at = 0
    for page in pages:
        for region in pool.regions:
            source = region.offset_bytes + region.stride_bytes * page
            spans.append((at, source, region.size_bytes))
            at += region.size_bytes
    return tuple(sorted(spans))
