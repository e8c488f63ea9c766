"""A shell without sockets or memory around a real core, with a shadow of every byte that matters.

Each page and each slot part holds a label instead of bytes. The world performs effects, completes
copies when told to, and checks after each of them what no byte may suffer: a copy into a slot that
is published or read, a removed extent that someone may still read, a published slot with other
content than its key says. Its server can be killed between two effects and within one: see
``fuse``, and ``tests.server.core.reborn`` for the next server.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol import messages as m
from protocol.extents import STATE_HELD, ExtentGeometry, checksums
from protocol.ids import ArenaId, Epoch, Fingerprint
from protocol.namespace import Namespace
from server.core import effects as fx
from server.core.config import CoreConfig
from server.core.dispatch import Core
from tests.server.core.engine import PAGE, SECOND, Claim, Engine, Label, namespace

T = TypeVar("T", bound=m.Body)
__all__ = ["PAGE", "SECOND", "Claim", "Engine", "World", "chain", "config", "namespace"]

EPOCH, ARENA = Epoch(b"E" * 16), ArenaId(b"A" * 16)


def chain(name: str, count: int) -> list[bytes]:
    """Keys of a chain; equal prefixes of equal names."""
    return [f"{name:.8}/{number:07d}".encode().rjust(16, b"_") for number in range(count)]


@dataclass
class ExtentShadow:
    geometry: ExtentGeometry
    content: list[list[Label | str]]
    records: list[NDArray[Any] | None]
    generations: list[int]
    removed: bool = False


@dataclass
class Stranger:
    """A process of a former server's time: an engine, or that server's copier.

    ``extents`` are those it may touch; a copier has ``writes`` left: extent, slot, part, label.
    """

    party: int
    space: Fingerprint | None
    extents: set[int]
    claims: list[Claim] = field(default_factory=list)
    writes: list[tuple[int, int, int, Label]] = field(default_factory=list)


@dataclass
class World:
    config: CoreConfig
    seed: int = 0
    now_ns: int = SECOND
    check: bool = True
    auto_extents: bool = True
    auto_pools: bool = True
    auto_copies: bool = True
    auto_map: bool = True
    auto_copiers: bool = True
    extents: dict[int, ExtentShadow] = field(default_factory=dict)
    jobs: dict[int, fx.StartCopy] = field(default_factory=dict)
    #: What copiers that were killed and do not die are still at, by copier and life.
    stuck: dict[tuple[int, int], list[fx.StartCopy]] = field(default_factory=dict)
    #: Process of each copy, and that one's newest STORE, as if it had one after the other.
    store_of: dict[int, tuple[int, int]] = field(default_factory=dict)
    pools: dict[int, int] = field(default_factory=dict)
    #: Copier of each pool that is open, and copiers that run.
    copier_of: dict[int, int] = field(default_factory=dict)
    running: set[int] = field(default_factory=lambda: {fx.HOST_COPIER})
    pending: list[fx.Effect] = field(default_factory=list)
    log: list[fx.Effect] = field(default_factory=list)
    engines: dict[int, Engine] = field(default_factory=dict)
    namespaces: dict[Fingerprint, Namespace] = field(default_factory=dict)
    strangers: list[Stranger] = field(default_factory=list)
    #: Effects that are still performed before the server is killed within the last of them.
    fuse: int | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.core = Core(self.config, EPOCH, ARENA, self.random.randbytes)
        self.next_process = 1
        self._acts: dict[type, Callable[[Any], None]] = {
            fx.SendReply: self._reply,
            fx.KeepNamespace: self._keep,
            fx.DropNamespace: self._drop,
            fx.CreateExtent: lambda effect: self._later(effect, self.auto_extents, self.create),
            fx.StartCopier: lambda effect: self._later(effect, self.auto_copiers, self.begin),
            fx.StopCopier: lambda effect: self._later(effect, self.auto_copiers, self.end),
            fx.OpenPool: lambda effect: self._later(effect, self.auto_pools, self.open),
            fx.ClosePool: lambda effect: self._later(effect, self.auto_pools, self.close),
            fx.StartCopy: self.start_copy,
            fx.VoidRecords: self._void,
            fx.FindSalt: self._find_salt,
            fx.WriteRecords: self.write_records,
            fx.RemoveExtent: lambda effect: self.remove(effect.extent),
            fx.GiveExtent: lambda effect: self.engines[effect.process].given(effect),
            fx.TakeExtent: lambda effect: self.engines[effect.process].taken(effect),
        }

    # --- running --------------------------------------------------------------------------

    def step(self, ns: int = 1000) -> None:
        self.now_ns += ns

    def pump(self) -> None:
        """Performs effects and slices of work until nothing is left to do at once."""
        for _ in range(100_000):
            more = self.core.work(self.now_ns)
            if self.check:
                self.core.check_integrity()
            taken = self.core.take_effects()
            for effect in taken:
                self.perform(effect)
            if not taken and not more:
                break
        else:
            raise AssertionError("the core never comes to rest")
        faults = self.core.take_faults()
        assert not faults, faults[0]

    @property
    def killed(self) -> bool:
        """Whether the server is gone: nothing is done for it, and it is told nothing, any more."""
        return self.fuse == 0

    def perform(self, effect: fx.Effect) -> None:
        if self.fuse is not None:
            if self.fuse == 0:
                return
            self.fuse -= not isinstance(effect, fx.SendReply)
            if self.fuse == 0:
                self._cut_short(effect)
                return
        self.log.append(effect)
        act = self._acts.get(type(effect))
        if act is not None:
            act(effect)

    def _cut_short(self, effect: fx.Effect) -> None:
        """The server dies in the middle of an effect on records."""
        if isinstance(effect, fx.VoidRecords):
            some = self.random.randrange(len(effect.slots) + 1)
            self._void(fx.VoidRecords(effect.extent, effect.slots[:some], reused=False))
        elif isinstance(effect, fx.WriteRecords):
            # Fields are written while checksums are zero, then one checksum after the other.
            some = self.random.randrange(len(effect.slots) + 1)
            if some:
                self.write_records(
                    fx.WriteRecords(effect.extent, effect.slots[:some], effect.records[:some])
                )
            for slot, row in zip(effect.slots[some:].tolist(), effect.records[some:], strict=True):
                self.extents[effect.extent].generations[slot] = int(row["generation"])
        elif isinstance(effect, fx.RemoveExtent) and self.random.random() < 0.5:
            self.remove(effect.extent)

    def _keep(self, effect: fx.KeepNamespace) -> None:
        self.namespaces[effect.fingerprint] = effect.namespace

    def _drop(self, effect: fx.DropNamespace) -> None:
        del self.namespaces[effect.fingerprint]

    def _reply(self, effect: fx.SendReply) -> None:
        for engine in list(self.engines.values()):
            engine.receive(effect)

    def _void(self, effect: fx.VoidRecords) -> None:
        shadow = self.extents[effect.extent]
        for slot in effect.slots.tolist():
            shadow.records[slot] = None
            if effect.reused:
                assert (effect.extent, slot) not in self.claimed(), "reused while read"
                shadow.generations[slot] = 0

    def _find_salt(self, effect: fx.FindSalt) -> None:
        rows = list(enumerate(self.extents[effect.extent].records))[effect.begin : effect.end]
        found = [
            (slot, int(row["generation"]))
            for slot, row in rows
            if row is not None and row["tenant"].tobytes() == effect.salt
        ]
        slots, generations = np.array(found, np.int64).reshape(-1, 2).T
        self.core.salt_found(effect.search, slots, generations, self.now_ns)

    def _later(self, effect: Any, at_once: bool, act: Callable[[Any], None]) -> None:
        if at_once:
            act(effect)
        else:
            self.pending.append(effect)

    def act(self, effect: fx.Effect, error: str | None = None) -> None:
        """Ends what the core waits for; what can fail may fail."""
        if isinstance(effect, fx.CreateExtent):
            self.create(effect, error)
        elif isinstance(effect, fx.OpenPool):
            self.open(effect, error)
        elif isinstance(effect, fx.StartCopier):
            self.begin(effect, error)
        elif isinstance(effect, fx.StopCopier):
            self.end(effect)
        else:
            assert isinstance(effect, fx.ClosePool)
            self.close(effect)

    def create(self, effect: fx.CreateExtent, error: str | None = None) -> None:
        geometry = effect.geometry
        if self.killed:
            return
        assert geometry.fingerprint in self.namespaces, "an extent before its namespace"
        if error is None:
            assert geometry.extent not in self.extents, "an id was used again"
            parts = geometry.chunk_blocks
            self.extents[geometry.extent] = ExtentShadow(
                geometry,
                [[None] * parts for _ in range(geometry.num_slots)],
                [None] * geometry.num_slots,
                [0] * geometry.num_slots,
            )
        self.core.extent_created(geometry.extent, error, self.now_ns)

    def open(self, effect: fx.OpenPool, error: str | None = None) -> None:
        if self.killed:
            return
        assert effect.copier in self.running, "a copier that is down is asked for a pool"
        if error is None:
            self.pools[effect.handle] = effect.process
            self.copier_of[effect.handle] = effect.copier
        self.core.pool_opened(effect.handle, error, self.now_ns)

    def close(self, effect: fx.ClosePool) -> None:
        if self.killed:
            return
        assert not any(job.pool == effect.handle for job in self.jobs.values()), "closed in use"
        assert self.copier_of.pop(effect.handle) == effect.copier, "asked of another copier"
        del self.pools[effect.handle]
        self.core.pool_closed(effect.handle, self.now_ns)

    # --- copiers of devices ---------------------------------------------------------------

    def begin(self, effect: fx.StartCopier, error: str | None = None) -> None:
        """A device's copier starts, or cannot; that is tried again until it is to end."""
        if error is None:
            self.running.add(effect.copier)
            self.core.copier_ready(effect.copier, self.now_ns)
        else:
            self.pending.append(effect)
            self.core.copier_refused(effect.copier, error, self.now_ns)

    def end(self, effect: fx.StopCopier) -> None:
        assert effect.copier not in self.copier_of.values(), "ended with pools"
        if effect.copier in self.running:
            self.lose(effect.copier)
        self.pending = [
            one
            for one in self.pending
            if not (isinstance(one, fx.StartCopier) and one.copier == effect.copier)
        ]
        self.core.copier_ended(effect.copier, self.now_ns)

    def lose(self, copier: int, stuck_life: int = 0) -> list[fx.StartCopy]:
        """A copier dies, or is killed and does not die; returns what it was at."""
        had = [job for job in self.jobs.values() if job.copier == copier]
        self.jobs = {number: job for number, job in self.jobs.items() if job.copier != copier}
        gone = [handle for handle, one in self.copier_of.items() if one == copier]
        for handle in gone:
            del self.pools[handle], self.copier_of[handle]
        self.pending = [
            one
            for one in self.pending
            if not (isinstance(one, fx.OpenPool | fx.ClosePool) and one.copier == copier)
        ]
        self.running.discard(copier)
        if stuck_life:
            self.stuck[copier, stuck_life] = had
            self.core.copier_stuck(fx.CopierId(copier), stuck_life, self.now_ns)
        else:
            self.core.copier_lost(fx.CopierId(copier), self.now_ns)
        return had

    def see_stuck_die(self, copier: int, life: int) -> None:
        """Until the very end it may write where it was told to."""
        for job in self.stuck.pop((copier, life)):
            shadow, claimed = self.extents[job.extent], self.claimed()
            assert not shadow.removed
            for slot, part in self.targets(job):
                assert shadow.records[slot] is None, "published under a stuck copier"
                assert (job.extent, slot) not in claimed, "read under a stuck copier"
                shadow.content[slot][part] = "torn"
        self.core.copier_gone(fx.CopierId(copier), life, self.now_ns)

    # --- copies and records ---------------------------------------------------------------

    def copies_of(self, process: int, store: int = 0) -> list[fx.StartCopy]:
        """Copies that may still touch a process's pool, of one STORE or of all of them."""
        jobs = [*self.jobs.values(), *(job for jobs in self.stuck.values() for job in jobs)]
        owners = [(job, *self.store_of[job.job]) for job in jobs]
        return [job for job, whose, which in owners if whose == process and store in (0, which)]

    def targets(self, job: fx.StartCopy) -> list[tuple[int, int]]:
        geometry = self.extents[job.extent].geometry
        page = geometry.payload_bytes // geometry.chunk_blocks
        where = [
            divmod(offset - geometry.data_offset_bytes, geometry.slot_bytes)
            for offset in job.targets.tolist()
        ]
        return [(slot, rest // page) for slot, rest in where]

    def start_copy(self, job: fx.StartCopy) -> None:
        shadow = self.extents[job.extent]
        assert not shadow.removed, "a copy into a removed extent"
        assert job.pool in self.pools, "a copy from a pool that is not open"
        assert self.copier_of[job.pool] == job.copier, "a copy by another device's copier"
        assert job.job not in self.jobs, "two jobs of one number"
        claimed = self.claimed()
        for stranger in self.strangers:
            assert job.extent not in stranger.extents, "a copy into what others may touch"
        for slot, part in self.targets(job):
            assert shadow.records[slot] is None, "a copy over a published record"
            assert not shadow.generations[slot], "a late reader's check would miss this copy"
            assert (job.extent, slot) not in claimed, "a copy over what somebody reads"
            shadow.content[slot][part] = "torn"
        process = self.pools[job.pool]
        self.store_of[job.job] = process, self.engines[process].next_store - 1
        self.jobs[job.job] = job
        if self.auto_copies:
            self.finish(job.job)

    def finish(self, number: int, error: str | None = None) -> None:
        job = self.jobs.pop(number)
        shadow = self.extents[job.extent]
        engine = self.engines[self.pools[job.pool]]
        page = shadow.geometry.payload_bytes // shadow.geometry.chunk_blocks
        for (slot, part), source in zip(self.targets(job), job.sources.tolist(), strict=True):
            assert shadow.records[slot] is None, "published while it was copied"
            if error is None:
                shadow.content[slot][part] = engine.pages[source // page]
        if not self.killed:
            self.core.copy_done(job.job, error, self.now_ns)

    def write_records(self, effect: fx.WriteRecords) -> None:
        shadow = self.extents[effect.extent]
        assert not shadow.removed
        assert (checksums(np.ascontiguousarray(effect.records)) == effect.records["checksum"]).all()
        for slot, row in zip(effect.slots.tolist(), effect.records, strict=True):
            assert row["state"] == STATE_HELD
            key, shard = bytes(row["key"]), int(row["shard"])
            for part in shadow.content[slot]:
                assert part == (key, shard), f"published {part} under {key!r}"
            shadow.records[slot] = row.copy()
            shadow.generations[slot] = int(row["generation"])

    def remove(self, extent: int) -> None:
        shadow = self.extents[extent]
        assert not any(number == extent for number, _ in self.claimed()), "removed while read"
        assert not any(job.extent == extent for job in self.jobs.values()), "removed while copied"
        for engine in self.engines.values():
            assert engine.dead or extent not in engine.mapped, "removed while mapped"
        for stranger in self.strangers:
            assert extent not in stranger.extents, "removed while others may touch it"
        shadow.removed = True

    def claims(self) -> list[Claim]:
        """What living processes may read, of this server's time and of former ones'."""
        mine = [
            claim
            for engine in self.engines.values()
            if not engine.dead
            for claims in engine.claims.values()
            for claim in claims
        ]
        return mine + [claim for stranger in self.strangers for claim in stranger.claims]

    def claimed(self) -> set[tuple[int, int]]:
        return {(claim.extent, claim.slot) for claim in self.claims()}

    def check_claims(self) -> None:
        """Whatever a live reader may read still has the bytes and the generation it was told."""
        for claim in self.claims():
            shadow = self.extents[claim.extent]
            assert shadow.generations[claim.slot] == claim.generation, "a check fails"
            for part in shadow.content[claim.slot]:
                assert part == (claim.key, claim.shard), "bytes changed under a reader"

    def check_tokens(self) -> None:
        """No engine's death, no cancel and no retry makes more hit than asked for, or loaded."""
        counters = self.core._state.outbox.counters
        hit = sum(n for name, n in counters.items() if name.startswith("hit_tokens_"))
        assert counters["requested_tokens"] >= hit >= counters["loaded_tokens"]

    def engine(self, name: str = "a", rank: int = 0, pages: int = 256) -> Engine:
        return Engine(self, name, rank, pages)


def config(extents: int = 8, slots: int = 8, page_bytes: int = PAGE, **fields: Any) -> CoreConfig:
    """An arena of so many extents of so many slots of one page."""
    extent = 2 * PAGE + slots * page_bytes
    return CoreConfig(arena_bytes=extents * extent, extent_bytes=extent, **fields)
