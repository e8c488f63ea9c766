"""The world with lower tiers that are read, too: they may lie, lose, spoil, hang and answer late.

Each read marks its slots as torn until it is answered, so that whatever is published under a torn
or a wrong label is seen by the world; slots that a porter may still write to are nobody else's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from protocol import codec
from protocol import messages as m
from protocol.namespace import fingerprint
from server.core import effects as fx
from server.core.config import CoreConfig, TierConfig
from server.core.index import ABSENT
from server.core.tiers.parts import Status
from server.core.tiers.policy import Policy
from tests.server.core.spaces import SPACES
from tests.server.core.tiers.model import NO_PARENT, Name, TierWorld, tiered
from tests.server.core.world import PAGE, Engine, namespace


@dataclass
class Manner:
    """How a tier reads."""

    #: Names that it claims and has not.
    lost: set[Name] = field(default_factory=set)
    spoilt: set[Name] = field(default_factory=set)
    #: Names of which it has what this server has no key for.
    locked: set[Name] = field(default_factory=set)
    #: More chunks than it has that it claims.
    boast: int = 0


class ReadWorld(TierWorld):
    """Tiers that may be read."""

    def __init__(self, config: CoreConfig, **fields: Any) -> None:
        super().__init__(config, **fields)
        self.manners = [Manner() for _ in config.tiers]
        self.tier_reads: list[fx.TierGet] = []
        #: Chunks of which some part came spoilt, or not at all, by tier and namespace.
        self.bad: set[tuple[int, bytes, bytes]] = set()

    def slot_of(self, row: Any) -> tuple[int, int]:
        geometry = self.extents[int(row["extent"])].geometry
        slot, rest = divmod(int(row["offset"]) - geometry.data_offset_bytes, geometry.slot_bytes)
        assert not rest
        assert int(row["length"]) == geometry.payload_bytes
        assert int(row["room"]) == geometry.slot_bytes
        assert int(row["shard"]) == geometry.shard
        return int(row["extent"]), slot

    def _asked(self, job: Any) -> None:
        if isinstance(job, fx.TierGet):
            self.tier_reads.append(job)
            others = {self.slot_of(row) for one in self.flying_gets() for row in one.parts}
            claimed = self.claimed()
            for row in job.parts:
                extent, slot = self.slot_of(row)
                shadow = self.extents[extent]
                assert not shadow.removed, "a read into a removed extent"
                assert shadow.records[slot] is None, "a read over a published record"
                assert not shadow.generations[slot], "a late reader's check would miss this read"
                assert (extent, slot) not in claimed, "a read over what somebody reads"
                assert (extent, slot) not in others, "two reads into one slot"
                shadow.content[slot] = ["torn"] * len(shadow.content[slot])
        super()._asked(job)

    def check_drop(self, drop: fx.TierDrop, put: fx.TierPut) -> None:
        # A chunk that came spoilt is dropped while others of its namespace are written, even other
        # parts of it: they may be lost below again, so L1 must not count on them afterwards.
        if drop.fingerprint == put.fingerprint:
            assert self.is_of_bad(drop), "written while it is to be forgotten"

    def is_of_bad(self, drop: fx.TierDrop) -> bool:
        """Whether a DROP is of chunks that came spoilt or not at all; else CLEAR or DELETE asked.

        A DELETE of such a chunk cannot be told apart.
        """
        keys = [drop.keys[at : at + 16] for at in range(0, len(drop.keys), 16)]
        return bool(keys) and all((drop.tier, drop.fingerprint, key) in self.bad for key in keys)

    def check_dropped(self, drop: fx.TierDrop) -> None:
        """L1 does not count on a tier for chunks that the tier has just dropped."""
        state = self.core._state
        for owner in state.roster.owners.values():
            if owner.fingerprint != drop.fingerprint:
                continue
            for at in range(0, len(drop.keys), 16):
                node = owner.index.find(drop.keys[at : at + 16])
                for shard in range(owner.num_shards) if node != ABSENT else ():
                    slot = owner.index.cell(node, shard)
                    if slot != ABSENT:
                        assert not state.slots.tiers_of[slot] >> drop.tier & 1, "counted on"

    def remove(self, extent: int) -> None:
        for job in self.flying_gets():
            assert not (job.parts["extent"] == extent).any(), "removed while it is read into"
        super().remove(extent)

    def flying_gets(self) -> list[fx.TierGet]:
        return [one for number in range(len(self.tiers)) for one in self.flying(number, fx.TierGet)]

    def answer(self, number: int, late: Status | None = None) -> None:
        job = self.tier_jobs[number]
        if not isinstance(job, fx.TierGet):
            super().answer(number)
            if isinstance(job, fx.TierDrop) and self.is_of_bad(job):
                self.check_dropped(job)
            return
        del self.tier_jobs[number]
        statuses = bytes(self.read(job, row, name) for row, name in self.rows(job))
        if late is not None:
            statuses = bytes([late]) * len(statuses)
        for status, (_, name) in zip(statuses, self.rows(job), strict=True):
            if status in (Status.CORRUPT, Status.ABSENT):
                self.bad.add((job.tier, name[0], name[1]))
        whole = None if self.tiers[job.tier].fails else statuses
        self.core.tier_done(fx.JobId(number), whole, self.now_ns)

    def rows(self, job: fx.TierGet) -> list[tuple[Any, Name]]:
        return list(zip(job.parts, self.names(job), strict=True))

    def read(self, job: fx.TierGet, row: Any, name: Name) -> Status:
        tier, manner = self.tiers[job.tier], self.manners[job.tier]
        extent, slot = self.slot_of(row)
        shadow = self.extents[extent]
        assert shadow.records[slot] is None, "published while it was read"
        if tier.fails:
            return Status.ERROR
        if name in manner.spoilt:
            return Status.CORRUPT
        if name in manner.locked:
            return Status.LOCKED
        if name not in tier.store or name in manner.lost:
            return Status.ABSENT
        shadow.content[slot] = [(name[1], name[2])] * len(shadow.content[slot])
        return Status.OK

    def probe(self, job: fx.TierProbe) -> int:
        return min(super().probe(job) + self.manners[job.tier].boast, len(job.keys) // 16)

    def down(self, number: int = 0, stuck_life: int = 0) -> None:
        super().down(number, stuck_life)
        self.pump()

    def gone(self, number: int, life: int) -> None:
        claimed = self.claimed()
        for job in self.stuck_jobs.get((number, life), []):
            for row in job.parts if isinstance(job, fx.TierGet) else ():
                extent, slot = self.slot_of(row)
                shadow = self.extents[extent]
                assert not shadow.removed
                assert shadow.records[slot] is None, "published under a stuck porter"
                assert (extent, slot) not in claimed, "read under a stuck porter"
                shadow.content[slot] = ["torn"] * len(shadow.content[slot])
        super().gone(number, life)
        self.pump()

    def settle(self) -> None:
        """Answers all that tiers were asked, until nothing is left."""
        self.pump()
        while self.tier_jobs:
            self.answer(next(iter(self.tier_jobs)))
            self.pump()

    # --- shorthands -----------------------------------------------------------------------

    def give(self, number: int, engine: Engine, keys: list[bytes]) -> None:
        """Puts all parts of chunks into a tier, as another server would."""
        names, tier = self.names_of(engine, keys), self.tiers[number]
        tier.store |= names
        tier.had |= names
        space = fingerprint(engine.space)
        if tier.described is not None:
            tier.described[space] = codec.bytes_from_struct(engine.space)
        for key, parent in zip(keys, [NO_PARENT, *keys], strict=False):
            tier.parents.setdefault((space, key), parent)

    def names_of(self, engine: Engine, keys: list[bytes]) -> set[Name]:
        space = engine.space
        return {(fingerprint(space), key, one) for key in keys for one in range(space.num_shards)}


def query(engine: Engine, wait_ms: int = 60_000, request: int = 1) -> int:
    """Sends a QUERY_PREFETCH_STATUS and lets the world come to rest; returns its seq."""
    body = m.QueryPrefetchStatus(session=engine.session, request=request, wait_ms=wait_ms)
    seq = engine.send(body)
    engine.world.pump()
    return seq


READ_ONLY = TierConfig("t", policy=Policy.NONE)


def world_of(*tiers: TierConfig, space: str = "", **fields: Any) -> tuple[ReadWorld, Engine]:
    """A world whose tiers are up, and one engine of one of ``SPACES`` or of the plainest kind."""
    options = {name: fields.pop(name) for name in ("auto_tiers", "check") if name in fields}
    world = ReadWorld(tiered(*(tiers or (READ_ONLY,)), **fields), **options)
    for number in range(len(world.tiers)):
        world.up(number)
    engine = world.engine()
    plain = namespace(page_bytes=fields.get("page_bytes", PAGE))
    engine.register(next((one for one in SPACES if one.model_id == space), plain))
    return world, engine
