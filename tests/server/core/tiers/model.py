"""The simulated world with lower tiers: model stores that hold labels, and porters that may fail.

Each command is answered when the test says so, in any order, or at once. After every effect the
model checks what no tier may see: bytes that are not published, or that change while they are
written; a chunk before the one it continues; a write of a namespace that is still to be forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from server.core import effects as fx
from server.core.config import CoreConfig, TierConfig
from server.core.tiers.listed import Listed
from server.core.tiers.parts import Share, Status, pack_names, unpack_quotas
from tests.server.core.world import World, config

Name = tuple[bytes, bytes, int]
"""Fingerprint, key, shard."""

Job = (
    fx.TierProbe
    | fx.TierGet
    | fx.TierPut
    | fx.TierDrop
    | fx.TierHealth
    | fx.TierList
    | fx.TierTouch
)
NO_PARENT = bytes(16)


@dataclass
class ModelTier:
    """One store: the names it has, and what it shall answer."""

    store: set[Name] = field(default_factory=set)
    #: Names that were given to it once and not refused; what it has lost since counts as had.
    had: set[Name] = field(default_factory=set)
    #: When each was written, read or touched last: a count of such uses.
    uses: dict[Name, int] = field(default_factory=dict)
    capacity_bytes: int = 0
    put_status: Status = Status.OK
    is_well: bool = True
    #: Fails every command, as a whole.
    fails: bool = False
    is_up: bool = False
    #: Descriptions by fingerprint; None for a tier that cannot list.
    described: dict[bytes, bytes] | None = field(default_factory=dict)
    #: Under which salt each was stored first.
    salts: dict[Name, bytes] = field(default_factory=dict)
    #: What it was told last; None for nothing.
    quotas: list[Share] | None = None
    #: Parent of each chunk that was ever written, by fingerprint and key; the first goes first.
    parents: dict[tuple[bytes, bytes], bytes] = field(default_factory=dict)
    #: Chunks of a page, and pairs still to be told by fingerprint.
    page: int = 3
    lists: dict[bytes, tuple[int, list[bytes]]] = field(default_factory=dict)

    def use(self, names: Sequence[Name]) -> None:
        """Counts a use of values, one after the other."""
        first = max(self.uses.values(), default=0) + 1
        self.uses.update({name: first + at for at, name in enumerate(names)})

    def lose_oldest(self, count: int) -> list[Name]:
        """Evicts as a tier does that is full."""
        oldest = sorted(self.store, key=lambda name: self.uses.get(name, 0))[:count]
        self.store -= set(oldest)
        return oldest

    def listed(self, job: fx.TierList) -> bytes | None:
        """What a TierList is answered with."""
        name = job.fingerprint
        if self.fails or self.described is None:
            return None
        if job.what is Listed.OF_SALT:
            mine = [one for one in sorted(self.store) if self.salts.get(one) == name]
            return pack_names(mine[: job.most])
        if job.what is Listed.NAMESPACES:
            return b"".join(self.described)
        if job.what is Listed.NAMESPACE:
            return self.described.get(name, b"")
        if job.what is Listed.HOTTEST:
            pairs = [
                key + parent
                for (space, key), parent in self.parents.items()
                if space == name and (name, key, job.shard) in self.store
            ]
            self.lists[name] = (len(pairs[: job.most]), pairs[: job.most])
        total, left = self.lists.get(name, (0, []))
        self.lists[name] = (total, left[self.page :])
        head = total.to_bytes(4, "little") + bool(left[self.page :]).to_bytes(4, "little")
        return head + b"".join(left[: self.page])


def tiered(*tiers: TierConfig, extents: int = 8, slots: int = 8, **fields: Any) -> CoreConfig:
    return config(extents=extents, slots=slots, tiers=tiers or (TierConfig("t"),), **fields)


class TierWorld(World):
    """A world whose core has lower tiers."""

    def __init__(self, config: CoreConfig, **fields: Any) -> None:
        self.auto_tiers = bool(fields.pop("auto_tiers", True))
        super().__init__(config, **fields)
        self.tiers = [ModelTier() for _ in config.tiers]
        self.tier_jobs: dict[int, Job] = {}
        self.stuck_jobs: dict[tuple[int, int], list[Job]] = {}
        for kind in (fx.TierProbe, fx.TierGet, fx.TierPut, fx.TierDrop, fx.TierHealth):
            self._acts[kind] = self._asked
        self._acts[fx.TierList] = self._asked
        self._acts[fx.TierTouch] = self._asked
        self._acts[fx.TierKeep] = self._kept
        self._acts[fx.TierAllot] = self._allotted
        #: What a next server reads, by tier and namespace: shards, and keys or all.
        self.owed: dict[tuple[int, bytes], tuple[int, bytes]] = {}
        self.auto_owed = True
        self._acts[fx.KeepOwed] = self._keep_owed
        self._acts[fx.DropOwed] = self._drop_owed

    def up(self, number: int = 0) -> None:
        """A porter starts."""
        self.tiers[number].is_up = True
        self.tiers[number].quotas = None
        self.core.porter_ready(fx.TierId(number), 0, 0, self.now_ns)
        self.pump()

    def down(self, number: int = 0, stuck_life: int = 0) -> None:
        """A porter dies, or is killed and does not die."""
        self.tiers[number].is_up = False
        mine = [job for job in self.tier_jobs.values() if job.tier == number]
        for job in mine:
            del self.tier_jobs[job.job]
        if stuck_life:
            self.stuck_jobs[number, stuck_life] = mine
            self.core.porter_stuck(fx.TierId(number), stuck_life, self.now_ns)
        else:
            for job in mine:
                self.check_put(job)
            self.core.porter_lost(fx.TierId(number), self.now_ns)

    def gone(self, number: int, life: int) -> None:
        """A stuck porter dies at last."""
        for job in self.stuck_jobs.pop((number, life), []):
            self.check_put(job)
            if isinstance(job, fx.TierDrop):
                # It may have been under way: what was written since is lost, which is a miss.
                self.tiers[number].store = remaining(job, self.tiers[number].store)
        self.core.porter_gone(fx.TierId(number), life, self.now_ns)

    def wait(self, ns: int) -> None:
        """Time passes, and everything due happens on the way."""
        end = self.now_ns + ns
        while True:
            due = self.core.next_timer_ns()
            if due is None or due > end:
                break
            self.now_ns = max(self.now_ns, due)
            self.core.tick(self.now_ns)
            self.pump()
        self.now_ns = end
        self.core.tick(end)
        self.pump()

    # --- what is owed ---------------------------------------------------------------------

    def _keep_owed(self, effect: fx.KeepOwed) -> None:
        self.owed[effect.tier, effect.fingerprint] = effect.shards, effect.keys
        if self.auto_owed:
            self.owed_kept(effect)

    def owed_kept(self, effect: fx.KeepOwed) -> None:
        """It is written down."""
        name = effect.tier, effect.fingerprint, effect.serial
        self.core.owed_kept(*name, self.now_ns)

    def _drop_owed(self, effect: fx.DropOwed) -> None:
        del self.owed[effect.tier, effect.fingerprint]

    # --- commands -------------------------------------------------------------------------

    def names(self, effect: fx.TierGet | fx.TierPut) -> list[Name]:
        return [(effect.fingerprint, bytes(row["key"]), int(row["shard"])) for row in effect.parts]

    def flying(self, number: int, kind: type[Any]) -> list[Any]:
        """What a tier's porters have, those included that were killed and do not die."""
        stuck = [job for jobs in self.stuck_jobs.values() for job in jobs]
        stuck = [job for job in stuck if isinstance(job, kind) and job.tier == number]
        return [*self.live(number, kind), *stuck]

    def live(self, number: int, kind: type[Any]) -> list[Any]:
        """What the porter that runs has.

        A DROP that a killed one had is failed at once and told to the next one: it stands against
        nothing from that one's answer on.
        """
        jobs = self.tier_jobs.values()
        return [job for job in jobs if isinstance(job, kind) and job.tier == number]

    def _asked(self, job: Job) -> None:
        assert self.tiers[job.tier].is_up, "a porter that is down is asked"
        assert job.job not in self.tier_jobs, "two jobs of one number"
        if isinstance(job, fx.TierPut):
            self._check_order(job)
        self.tier_jobs[job.job] = job
        self.check_put(job)
        if self.auto_tiers:
            self.answer(job.job)

    def _kept(self, job: fx.TierKeep) -> None:
        tier = self.tiers[job.tier]
        assert tier.is_up, "a porter that is down is asked"
        for drop in self.live(job.tier, fx.TierDrop):
            assert drop.keys or drop.fingerprint != job.fingerprint
        if tier.described is not None and not tier.fails:
            tier.described[job.fingerprint] = job.text
        self.core.tier_done(job.job, b"", self.now_ns)

    def _allotted(self, job: fx.TierAllot) -> None:
        tier = self.tiers[job.tier]
        assert tier.is_up, "a porter that is down is told"
        if not tier.fails:
            tier.quotas = unpack_quotas(job.quotas)
        self.core.tier_done(job.job, None if tier.fails else b"", self.now_ns)

    def _check_order(self, put: fx.TierPut) -> None:
        tier = self.tiers[put.tier]
        for drop in self.live(put.tier, fx.TierDrop):
            self.check_drop(drop, put)
        ahead = set(tier.had)
        for other in self.flying(put.tier, fx.TierPut):
            ahead |= set(self.names(other))
        space = self.namespaces[put.fingerprint]
        for row, name in zip(put.parts, self.names(put), strict=True):
            parent = bytes(row["parent"])
            is_full = not space.groups[space.group_of(name[2])].window_tokens
            if is_full and parent != NO_PARENT:
                assert (name[0], parent, name[2]) in ahead, "a chunk before the one it continues"
            ahead.add(name)

    def check_drop(self, drop: fx.TierDrop, put: fx.TierPut) -> None:
        """Nothing of a namespace that is to be forgotten is written meanwhile."""
        assert drop.fingerprint != put.fingerprint, "written while it is to be forgotten"

    def check_put(self, job: Job) -> None:
        """What is written is published when it begins and keeps its bytes to the end."""
        if not isinstance(job, fx.TierPut):
            return
        for row, (_, key, shard) in zip(job.parts, self.names(job), strict=True):
            shadow = self.extents[int(row["extent"])]
            geometry = shadow.geometry
            slot, rest = divmod(
                int(row["offset"]) - geometry.data_offset_bytes, geometry.slot_bytes
            )
            assert not rest
            assert not shadow.removed
            assert (int(row["length"]), int(row["room"])) == (
                geometry.payload_bytes,
                geometry.slot_bytes,
            )
            assert all(part == (key, shard) for part in shadow.content[slot])
            if job.job in self.tier_jobs and job is self.log[-1]:
                assert shadow.records[slot] is not None, "written before it is published"

    def answer(self, number: int) -> None:
        """A porter answers one command."""
        job = self.tier_jobs.pop(number)
        tier, job_id = self.tiers[job.tier], fx.JobId(number)
        if isinstance(job, fx.TierHealth):
            room = len(tier.store), tier.capacity_bytes
            self.core.tier_health(job_id, tier.is_well, *room, self.now_ns)
        elif isinstance(job, fx.TierProbe):
            self.core.tier_probed(job_id, None if tier.fails else self.probe(job), self.now_ns)
        elif isinstance(job, fx.TierTouch):
            touched = None if tier.fails else self.touch(job)
            self.core.tier_done(job_id, touched, self.now_ns)
        elif isinstance(job, fx.TierList):
            self.core.tier_done(job_id, tier.listed(job), self.now_ns)
        elif isinstance(job, fx.TierPut):
            self.check_put(job)
            status = Status.ERROR if tier.fails else tier.put_status
            if status is Status.OK:
                tier.store |= set(self.names(job))
                tier.use(self.names(job))
                tier.had |= set(self.names(job))
                tier.salts.update(zip(self.names(job), map(self.salt, job.parts), strict=True))
                for row in job.parts:
                    pair = (bytes(job.fingerprint), bytes(row["key"]))
                    tier.parents.setdefault(pair, bytes(row["parent"]))
            self.core.tier_done(job_id, bytes([status]) * len(job.parts), self.now_ns)
        else:
            assert isinstance(job, fx.TierDrop), "nobody reads in this world"
            self._forget(job, tier)
            self.core.tier_done(job_id, None if tier.fails else b"", self.now_ns)

    def salt(self, part: Any) -> bytes:
        """What a slot's record says, as a porter reads it."""
        shadow = self.extents[int(part["extent"])]
        offset = int(part["offset"]) - shadow.geometry.data_offset_bytes
        record = shadow.records[offset // shadow.geometry.slot_bytes]
        salt = bytes(16) if record is None else record["tenant"].tobytes()
        return salt if any(salt) else b""

    def probe(self, job: fx.TierProbe) -> int:
        count = 0
        for at in range(0, len(job.keys), 16):
            shards = range(job.first, job.first + job.shards)
            parts = {(job.fingerprint, job.keys[at : at + 16], one) for one in shards}
            if not parts <= self.tiers[job.tier].store:
                break
            count += 1
        return count

    def touch(self, job: fx.TierTouch) -> bytes:
        keys = [job.keys[at : at + 16] for at in range(0, len(job.keys), 16)]
        names = [(job.fingerprint, key, shard) for key in keys for shard in range(job.shards)]
        tier = self.tiers[job.tier]
        tier.use([name for name in names if name in tier.store])
        return bytes(Status.OK if name in tier.store else Status.ABSENT for name in names)

    def _forget(self, job: fx.TierDrop, tier: ModelTier) -> None:
        # Writes that were begun before are over when it takes place.
        for put in self.live(job.tier, fx.TierPut):
            if put.fingerprint == job.fingerprint:
                self.answer(put.job)
        if tier.fails:
            return
        if not job.keys and tier.described is not None:
            tier.described.pop(job.fingerprint, None)
        tier.store, tier.had = remaining(job, tier.store), remaining(job, tier.had)


def remaining(drop: fx.TierDrop, names: set[Name]) -> set[Name]:
    """What a DROP leaves of some names."""
    keys = {drop.keys[at : at + 16] for at in range(0, len(drop.keys), 16)}
    return {name for name in names if name[0] != drop.fingerprint or (keys and name[1] not in keys)}
