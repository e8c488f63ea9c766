"""Lower tiers below a fuzzed core: their porters, and what no tier may see or do to memory.

A porter answers late, in any order, in part, or not at all; it dies, or is killed and does not die.
What it reads into a slot is that slot's content from then on, and is judged when it is published;
what it writes must be published, pinned and unchanged from beginning to end. Knows no grammar.
Runs in the fuzzer's process.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from protocol.ids import Fingerprint
from server.core import effects as fx
from server.core.slots import RESERVED
from server.core.tiers.parts import Status
from tests.fuzz.finding import require
from tests.fuzz.stores import Brought, Name, Store

if TYPE_CHECKING:
    from tests.fuzz.truth import Truth

Job = (
    fx.TierProbe
    | fx.TierGet
    | fx.TierPut
    | fx.TierDrop
    | fx.TierHealth
    | fx.TierKeep
    | fx.TierList
    | fx.TierAllot
)
NOBODY = bytes(16)
MOST_STUCK = 3
"""Porters at once that were killed and do not die."""

_KINDS = (
    fx.TierProbe,
    fx.TierGet,
    fx.TierPut,
    fx.TierDrop,
    fx.TierHealth,
    fx.TierKeep,
    fx.TierList,
    fx.TierAllot,
)


class Below:
    """All tiers of a truth's server.

    Args:
        truth: the shell around the core.

    Attributes:
        stores: by tier; they outlive servers.
        owed: what a next server is told, by tier and namespace: shards, and keys or all.
        serial: of the last frame that was sent.
        is_lazy: jobs are answered only when told to.
        bad: share of the answers of prompt porters that are not as they should be.
        jobs: what porters have.
        late: jobs of porters that died; answers to them mean nothing.
        stuck: jobs of porters that were killed and do not die, by tier and life.
        up: tiers whose porter runs.
    """

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self.stores: dict[int, Store] = {}
        self.owed: dict[tuple[int, bytes], tuple[int, bytes]] = {}
        self.serial = 0
        self.is_lazy, self.bad = False, 0.0
        self._draw = random.Random(0)
        #: Serial of the last CLEAR or DELETE that was answered: by tier, namespace, key or nothing.
        self._cleared: dict[tuple[int, bytes, bytes], int] = {}
        self._lives = 0
        self.begin()

    def acts(self) -> dict[type, Any]:
        """What is done with each effect that concerns tiers."""
        return {
            **dict.fromkeys(_KINDS, self._asked),
            fx.KeepOwed: self._keep_owed,
            fx.DropOwed: self._drop_owed,
        }

    def begin(self) -> None:
        """A server starts; it knows nothing yet, and no porter runs."""
        self.jobs: dict[int, Job] = {}
        self.late: list[Job] = []
        self.stuck: dict[tuple[int, int], list[Job]] = {}
        self.up: set[int] = set()
        self._notes: list[fx.KeepOwed] = []
        self._slots: dict[int, list[tuple[int, int]]] = {}
        self._begun: dict[int, int] = {}
        self._pages = 3

    def open(self, is_lazy: bool, bad: float, seed: int) -> None:
        """What a former server owed is told, and porters start.

        Args:
            is_lazy: they answer only when told to.
            bad: share of other answers that are not as they should be.
            seed: decides which.
        """
        self.is_lazy, self.bad, self._draw = is_lazy, bad, random.Random(seed)
        core, now_ns = self._truth.core, self._truth.now_ns
        for (tier, name), (shards, keys) in self.owed.items():
            if tier < len(self._truth.config.tiers):
                core.owes(fx.TierId(tier), Fingerprint(name), shards, keys, now_ns)
        for number in range(len(self._truth.config.tiers)):
            self.start(number)

    def store(self, tier: int) -> Store:
        """What a tier holds; every third one cannot list it."""
        if tier not in self.stores:
            self.stores[tier] = Store(texts=None if tier % 3 == 1 else {})
        return self.stores[tier]

    # --- porters' lives -------------------------------------------------------------------

    def start(self, number: int, refused: bool = False) -> None:
        """A tier's porter starts, or cannot open its store."""
        truth, tier = self._truth, fx.TierId(number)
        if number in self.up or number >= len(truth.config.tiers):
            return
        if refused:
            truth.core.porter_said(tier, "its place is not there", truth.now_ns)
            truth.core.porter_refused(tier, truth.now_ns)
        else:
            self.up.add(number)
            truth.core.porter_ready(tier, len(self.store(number).parts), 0, truth.now_ns)
            truth.core.tick(truth.now_ns)  # it may want to know at once how that one is
        truth.effects()

    def end(self, number: int, sticks: bool) -> None:
        """A tier's porter dies, or is killed and does not die."""
        truth, tier = self._truth, fx.TierId(number)
        if number not in self.up:
            return
        self.up.discard(number)
        mine = [job for job in self.jobs.values() if job.tier == number]
        for job in mine:
            del self.jobs[job.job]
        self.late += mine[:4]
        self._lives += 1
        if sticks and len(self.stuck) < MOST_STUCK:
            self.stuck[number, self._lives] = mine
            truth.core.porter_stuck(tier, self._lives, truth.now_ns)
        else:
            for job in mine:
                self._over(job)
            truth.core.porter_lost(tier, truth.now_ns)
        truth.effects()

    def stuck_dies(self, number: int) -> None:
        """A stuck porter is seen dead."""
        truth = self._truth
        if self.stuck:
            which = list(self.stuck)[number % len(self.stuck)]
            for job in self.stuck.pop(which):
                self._over(job)
            truth.core.porter_gone(fx.TierId(which[0]), which[1], truth.now_ns)
            truth.effects()

    def moves(self, number: int) -> None:
        """A tier's porter gets on with something."""
        self._truth.core.tier_moves(fx.TierId(number), self._truth.now_ns)

    def recover(self) -> None:
        """Whatever was wrong with any tier is over, and all are prompt."""
        self.is_lazy, self.bad = False, 0.0
        while self.stuck:
            self.stuck_dies(0)
        for number in range(len(self._truth.config.tiers)):
            self.start(number)

    def check_rest(self) -> None:
        """All was answered, and tiers that are well have forgotten what they were to forget."""
        require(not self.jobs and not self._notes, "left behind: questions to tiers")
        here = range(len(self._truth.config.tiers))
        require(not any(tier in here for tier, _ in self.owed), "left behind: owed by a tier")
        job = self._truth.core._state.warming.job
        require(job is None or job.is_over, "left behind: a warm job")

    # --- what is owed ---------------------------------------------------------------------

    def _keep_owed(self, effect: fx.KeepOwed) -> None:
        self.owed[effect.tier, effect.fingerprint] = effect.shards, effect.keys
        self._notes.append(effect)

    def _drop_owed(self, effect: fx.DropOwed) -> None:
        self.owed.pop((effect.tier, effect.fingerprint), None)

    def written_down(self) -> bool:
        """KeepOwed ends, the oldest one; returns whether there was one."""
        if not self._notes:
            return False
        note, truth = self._notes.pop(0), self._truth
        truth.core.owed_kept(note.tier, note.fingerprint, note.serial, truth.now_ns)
        return True

    def forgotten(self, fingerprint: bytes, keys: bytes, serial: int) -> None:
        """CLEAR or DELETE was answered: what was below before is to be found no more.

        Args:
            fingerprint: of the namespace.
            keys: 16 bytes per chunk; empty for all of it.
            serial: of the frame that asked.
        """
        names = [keys[at : at + 16] for at in range(0, len(keys), 16)] or [b""]
        for number, tier in enumerate(self._truth.config.tiers):
            for key in names if tier.policy.writes else ():
                self._cleared[number, fingerprint, key] = serial

    def check_brought(self, content: Brought, name: Name, owner: bytes) -> None:
        """What came from a tier is published: as what it is, and as nobody's."""
        require(content.name == name, f"published as another part: {content.name} as {name}")
        require(owner == NOBODY, "a record names an owner: of what a tier had")
        for key in (b"", name.key):
            since = self._cleared.get((content.tier, name.fingerprint, key), 0)
            require(content.serial >= since, "what was cleared is back: out of a tier")

    # --- questions ------------------------------------------------------------------------

    def _asked(self, job: Job) -> None:
        require(job.tier in self.up, "a tier is asked: whose porter is down")
        require(job.job not in self.jobs, "a job number of a tier: twice")
        self.jobs[job.job] = job
        if isinstance(job, fx.TierGet):
            self._begin_get(job)
        elif isinstance(job, fx.TierPut):
            self._begin_put(job)

    def _begin_get(self, job: fx.TierGet) -> None:
        truth = self._truth
        mine = self._slots[job.job] = [self._slot(job, row) for row in job.parts]
        require(len(set(mine)) == len(mine), "a tier reads: two parts into one slot")
        read = {(extent, slot) for claims in truth.claims.values() for extent, slot, _ in claims}
        require(read.isdisjoint(mine), "a tier reads: over what somebody reads")
        require(truth.flying.isdisjoint(mine), "a tier reads: into a slot given to two")
        for _, touched in truth.former.values():
            require(touched.isdisjoint(mine), "a tier reads: over what a former process touches")
        for extent, slot in mine:
            shadow = truth.extents[extent]
            require(not shadow.records[slot], f"a tier reads: over a published record ({slot})")
            # A reader that comes late looks at this number to see that its bytes are others'.
            require(not shadow.rows["generation"][slot], "a tier reads: under an old generation")
            shadow.content[slot] = None
        truth.flying |= set(mine)

    def _begin_put(self, job: fx.TierPut) -> None:
        barred = (int(job.tier), bytes(job.fingerprint)) in self.owed
        require(not barred, "written to a tier: that is still to forget that namespace")
        self._slots[job.job] = [self._slot(job, row) for row in job.parts]
        self._begun[job.job] = self.serial
        self._check_put(job, begins=True)

    def _slot(self, job: fx.TierGet | fx.TierPut, row: Any) -> tuple[int, int]:
        shadow = self._truth.extents[int(row["extent"])]
        geometry = shadow.geometry
        slot, rest = divmod(int(row["offset"]) - geometry.data_offset_bytes, geometry.slot_bytes)
        sizes = int(row["length"]), int(row["room"])
        whole = not rest and sizes == (geometry.payload_bytes, geometry.slot_bytes)
        require(whole and 0 <= slot < geometry.num_slots, "a tier's job: not of a whole slot")
        right = (geometry.fingerprint, geometry.shard) == (job.fingerprint, int(row["shard"]))
        require(right, "a tier's job: in another part's extent")
        require(not shadow.removed, "a tier's job: in a removed extent")
        return int(row["extent"]), slot

    def _check_put(self, job: fx.TierPut, begins: bool = False) -> None:
        for row, (extent, slot) in zip(job.parts, self._slots[job.job], strict=True):
            shadow = self._truth.extents[extent]
            tag, name = shadow.tags[slot], (bytes(row["key"]), int(row["shard"]))
            require(tag is not None and tag[:2] == name, f"a tier is given: other bytes ({slot})")
            require(not shadow.removed, "an extent is removed: while a tier is given it")
            if begins:
                require(shadow.records[slot], "a tier is given: what is not published")

    def busy(self) -> set[tuple[int, int]]:
        """Extents and slots that porters read and write, those that do not die included."""
        every = [*self.jobs.values(), *(job for jobs in self.stuck.values() for job in jobs)]
        return {slot for job in every for slot in self._slots.get(job.job, ())}

    def check_memory(self) -> None:
        """Nobody else is given what porters read into, and what they write is kept for them."""
        state = self._truth.core._state
        bases = {int(number): one.base for number, one in state.arena.extents.items()}
        every = [*self.jobs.values(), *(job for jobs in self.stuck.values() for job in jobs)]
        for job in every:
            for extent, slot in self._slots.get(job.job, ()):
                base = bases.get(extent)
                number = -1 if base is None else base + slot
                if isinstance(job, fx.TierGet):
                    kept = number >= 0 and state.slots.state_of[number] == RESERVED
                else:
                    kept = number >= 0 and int(state.slots.pins[number]) > 0
                what = "read into" if isinstance(job, fx.TierGet) else "given to a tier"
                require(kept, f"{what} and not kept: extent {extent} slot {slot}")

    def _over(self, job: Job) -> None:
        """Nothing of a job touches memory any more, and nothing came of it."""
        if isinstance(job, fx.TierPut):
            self._check_put(job)
        elif isinstance(job, fx.TierGet):
            self._land(job, [Status.ERROR] * len(job.parts))
        self._slots.pop(job.job, None)

    def _land(self, job: fx.TierGet, statuses: list[Status]) -> None:
        truth, store = self._truth, self.store(job.tier)
        for row, (extent, slot), status in zip(
            job.parts, self._slots[job.job], statuses, strict=True
        ):
            shadow = truth.extents[extent]
            require(not shadow.removed, "an extent is removed: while a tier reads into it")
            require(not shadow.records[slot], "published: while a tier read into it")
            truth.flying.discard((extent, slot))
            name = Name(job.fingerprint, bytes(row["key"]), int(row["shard"]))
            good = status is Status.OK
            shadow.content[slot] = Brought(name, job.tier, store.parts[name]) if good else None

    # --- answers --------------------------------------------------------------------------

    def prompt(self) -> bool:
        """Answers all that was asked, unless answers wait; returns whether there was anything."""
        return not self.is_lazy and self.serve()

    def serve(self) -> bool:
        """Answers all that was asked; returns whether there was anything."""
        done = bool(self.jobs or self._notes)
        while self.written_down():
            pass
        for number in list(self.jobs):
            if number in self.jobs:  # what is written of a namespace ends before a drop of it
                how = 1 + self._draw.randrange(60_000) if self._draw.random() < self.bad else 0
                self.answer(number, how)
        return done

    def answer(self, number: int, how: int = 0) -> None:
        """A porter answers.

        Args:
            number: the job.
            how: 0 for well; an odd one fails as a whole, another one here and there.
        """
        job, truth = self.jobs.pop(number), self._truth
        draw = random.Random(how) if how else None
        self._answer(job, how % 2 == 1, draw)
        self._slots.pop(job.job, None)
        truth.effects()

    def answer_late(self) -> None:
        """What a porter that died was asked is answered after all: that means nothing."""
        truth = self._truth
        if self.late:
            job = self.late.pop(0)
            if isinstance(job, fx.TierHealth):
                truth.core.tier_health(job.job, True, 1, 1, truth.now_ns)
            elif isinstance(job, fx.TierProbe):
                truth.core.tier_probed(job.job, len(job.keys) // 16, truth.now_ns)
            else:
                count = len(job.parts) if isinstance(job, fx.TierGet | fx.TierPut) else 0
                truth.core.tier_done(job.job, bytes(count), truth.now_ns)
            truth.effects()

    def _answer(self, job: Job, fails: bool, draw: random.Random | None) -> None:
        truth, store = self._truth, self.store(job.tier)
        core, now_ns = truth.core, truth.now_ns
        if isinstance(job, fx.TierHealth):
            core.tier_health(job.job, not fails, len(store.parts), 0, now_ns)
        elif isinstance(job, fx.TierProbe):
            count = store.probe(job)
            if draw is not None:  # it claims more or fewer than it has
                count = draw.choice((0, count // 2, count + 1, count + 5))
            count = min(count, len(job.keys) // 16)
            core.tier_probed(job.job, None if fails else count, now_ns)
        elif isinstance(job, fx.TierGet):
            core.tier_done(job.job, self._read(job, store, fails, draw), now_ns)
        elif isinstance(job, fx.TierPut):
            core.tier_done(job.job, self._write(job, store, fails, draw), now_ns)
        elif isinstance(job, fx.TierDrop):
            self._drop(job, store, fails, draw)
        elif isinstance(job, fx.TierKeep):
            if not fails and store.texts is not None:
                store.texts[job.fingerprint] = job.text
            core.tier_done(job.job, None if fails else b"", now_ns)
        elif isinstance(job, fx.TierAllot):
            core.tier_done(job.job, None if fails else b"", now_ns)
        else:
            listed = None if fails else store.listed(job, self._pages)
            if draw is not None and listed:
                listed = listed[: draw.randrange(len(listed))]
            core.tier_done(job.job, listed, now_ns)

    def _read(
        self, job: fx.TierGet, store: Store, fails: bool, draw: random.Random | None
    ) -> bytes | None:
        names = [Name(job.fingerprint, bytes(row["key"]), int(row["shard"])) for row in job.parts]
        bad = [Status.ERROR] * len(names)
        statuses = bad if fails else [store.get(name, draw) for name in names]
        self._land(job, statuses)
        return None if fails else bytes(statuses)

    def _write(
        self, job: fx.TierPut, store: Store, fails: bool, draw: random.Random | None
    ) -> bytes | None:
        self._check_put(job)
        statuses, bad = [], (Status.NO_ROOM, Status.ERROR, Status.OVER)
        for row, (extent, slot) in zip(job.parts, self._slots[job.job], strict=True):
            status = Status.OK
            if fails or (draw is not None and draw.random() < 0.3):
                status = draw.choice(bad) if draw else Status.ERROR
            statuses.append(status)
            if status is Status.OK:
                name = Name(job.fingerprint, bytes(row["key"]), int(row["shard"]))
                salt = self._truth.extents[extent].rows["tenant"][slot].tobytes()
                store.put(name, bytes(row["parent"]), self._begun[job.job], salt)
        return None if fails else bytes(statuses)

    def _drop(
        self, job: fx.TierDrop, store: Store, fails: bool, draw: random.Random | None
    ) -> None:
        truth = self._truth
        puts = [one for one in self.jobs.values() if isinstance(one, fx.TierPut)]
        for put in puts:
            if (put.tier, put.fingerprint) == (job.tier, job.fingerprint) and put.job in self.jobs:
                self.answer(put.job)
        if not fails or draw is None or draw.random() < 0.5:
            store.drop(job)
        truth.core.tier_done(job.job, None if fails else b"", truth.now_ns)
