"""The whole core under random engines, copies in any order, deaths and operators.

A shadow of what each slot holds (see ``world``) proves after every step that no published slot's
content is overwritten while it is published, read, or copied into (B25, P02), that only what was
committed whole is found (P07), that what a reader was told stays readable until it gives back, and
that every request is answered exactly once. ``check_integrity`` runs after each slice of work.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol import messages as m
from protocol.layout import unpack_slots
from server.core import effects as fx
from server.core.copiers import IDLE_NS
from tests.server.core.spaces import CHAINS, LENGTH, SPACES, TENANTS, keys_of, quota_of
from tests.server.core.world import PAGE, SECOND, Engine, World, chain, config

chains = st.sampled_from(CHAINS)
numbers = st.integers(0, 1 << 16)
DEVICES = (b"A" * 16, b"B" * 16)


class CoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World(
            config(extents=7, slots=6, copy_window_bytes=6 * PAGE, copy_piece_bytes=3 * PAGE),
            auto_copies=False,
            auto_pools=False,
            auto_extents=False,
            auto_map=False,
            auto_copiers=False,
        )
        self.alive: list[Engine] = []
        self.num_engines = 0
        self.num_stuck = 0
        #: What to do when a reply comes: (engine, seq) to a callback.
        self.awaited: list[tuple[Engine, int, Callable[[m.Body | None], None]]] = []

    # --- helpers --------------------------------------------------------------------------

    def pick(self, number: int) -> Engine | None:
        ready = [engine for engine in self.alive if engine.session]
        return ready[number % len(ready)] if ready else None

    def wait(
        self, engine: Engine, body: m.Request, then: Callable[[m.Body | None], None] | None = None
    ) -> None:
        seq = engine.send(body, timeout_ns=60 * SECOND)
        self.awaited.append((engine, seq, then or (lambda body: None)))
        self.settle()

    def settle(self) -> None:
        self.world.pump()
        # A callback may send; what it sends is settled by the next round.
        ready = [one for one in self.awaited if one[0].dead or one[1] in one[0].replies]
        self.awaited = [one for one in self.awaited if one not in ready]
        for engine, seq, then in ready:
            if not engine.dead:
                reply = engine.replies[seq]
                then(None if reply.error is not None else reply.body)
        self.world.pump()

    # --- engines --------------------------------------------------------------------------

    @initialize(spaces=st.lists(st.integers(0, len(SPACES) - 1), min_size=2, max_size=4))
    def begin(self, spaces: list[int]) -> None:
        for space in spaces:
            self.start(space)
            self.act_on_all()
        self.report_all()

    def act_on_all(self) -> None:
        for _ in range(20):
            self.report_all()
            while self.world.pending:
                self.act(1)
            while self.world.jobs:
                self.copy(1)

    def report_all(self) -> None:
        for engine in self.alive:
            if engine.session and (engine.to_map or engine.to_unmap):
                engine.report()
                self.settle()

    @rule(space=st.integers(0, len(SPACES) - 1))
    def start(self, space: int) -> None:
        if len(self.alive) >= 6:
            return
        self.num_engines += 1
        for rank in range(SPACES[space].num_ranks):
            engine = self.world.engine(f"e{self.num_engines}", rank, pages=LENGTH * 2)
            engine.ring = self.num_engines % 2 == 0
            if self.num_engines % 3 != 1:
                engine.device = DEVICES[(self.num_engines // 3 + rank) % len(DEVICES)]
            self.alive.append(engine)
            body = engine.register_body(SPACES[space])
            assert body.memory is not None
            if not engine.device:
                size = body.memory.size_bytes
                self.world.core.pool_offered(engine.process, engine.pool, size)

            def registered(reply: m.Body | None, engine: Engine = engine) -> None:
                if isinstance(reply, m.RegisterKvCacheReply):
                    engine.session = reply.session

            self.wait(engine, body, registered)

    @rule(number=numbers)
    def kill(self, number: int) -> None:
        if self.alive and number % 3 == 0:
            engine = self.alive.pop(number % len(self.alive))
            engine.die()
            self.settle()

    @rule(number=numbers)
    def unregister(self, number: int) -> None:
        engine = self.pick(number)
        if engine is not None and number % 5 == 0:
            body = engine.unregister_body()
            engine.session = 0
            engine.to_map, engine.to_unmap = [], []
            self.alive.remove(engine)

            def ended(reply: m.Body | None) -> None:
                # As for a CANCEL; and whatever its stores were, none of them copies any more.
                assert reply is None or not self.world.copies_of(engine.process)

            self.wait(engine, body, ended)

    @rule(number=numbers)
    def report(self, number: int) -> None:
        engine = self.pick(number)
        if engine is not None and (engine.to_map or engine.to_unmap):
            engine.report()
            self.settle()

    # --- saving ---------------------------------------------------------------------------

    @rule(number=numbers, name=chains, branch=st.integers(0, 1), ends=st.tuples(numbers, numbers))
    def store(self, number: int, name: str, branch: int, ends: tuple[int, int]) -> None:
        engine = self.pick(number)
        if engine is None:
            return
        start = 0 if ends[0] % 2 else ends[0] % LENGTH
        stop = start + 1 + ends[1] % (LENGTH - start)
        shards = engine.space.shards_of_rank(engine.rank)
        engine.tenant = TENANTS[number // 7 % len(TENANTS)]
        self.begin_store(
            engine, keys_of(name, branch), start, stop, shards[ends[0] // 2 % len(shards)]
        )

    def begin_store(
        self, engine: Engine, keys: list[bytes], start: int, stop: int, shard: int
    ) -> None:
        # One STORE at a time per engine: its pool holds one chain's labels.
        if getattr(engine, "storing", False):
            return
        body = engine.store_body(keys, start, stop, shard)
        engine.storing = True  # type: ignore[attr-defined]
        engine.copied = None  # type: ignore[attr-defined]

        def stored(reply: m.Body | None) -> None:
            if engine.current != body.store:  # type: ignore[attr-defined]
                return  # its CANCEL gave up waiting before it, and another one is under way
            if isinstance(reply, m.StoreReply) and reply.copied:
                engine.copied = (body.store, reply.copied)  # type: ignore[attr-defined]
            else:
                engine.storing = False  # type: ignore[attr-defined]

        engine.current = body.store  # type: ignore[attr-defined]
        self.wait(engine, body, stored)

    @rule(number=numbers, part=numbers)
    def commit(self, number: int, part: int) -> None:
        engine = self.pick(number)
        if engine is not None:
            self.begin_commit(engine, part)

    def begin_commit(self, engine: Engine, part: int) -> None:
        copied = getattr(engine, "copied", None)
        if copied is None:
            return
        store, count = copied
        count = count if part % 2 else part % (count + 1)
        engine.copied = None  # type: ignore[attr-defined]

        def committed(reply: m.Body | None) -> None:
            engine.storing = False  # type: ignore[attr-defined]

        self.wait(engine, m.Commit(session=engine.session, store=store, count=count), committed)

    @rule(number=numbers)
    def cancel(self, number: int) -> None:
        engine = self.pick(number)
        if engine is None or not getattr(engine, "storing", False):
            return

        current = engine.current  # type: ignore[attr-defined]

        def cancelled(reply: m.Body | None) -> None:
            # No copy of it can touch the pool any more, nor one of a copier that hangs; past its
            # deadline a CANCEL is answered so, and goes on. A STORE whose copier hangs is answered
            # before its CANCEL: by then the next one may be under way.
            assert reply is None or not self.world.copies_of(engine.process, current)
            if engine.current == current:  # type: ignore[attr-defined]
                engine.storing, engine.copied = False, None  # type: ignore[attr-defined]

        self.wait(engine, m.Cancel(session=engine.session, store=current), cancelled)

    @rule(number=numbers, name=chains, branch=st.integers(0, 1), stop=st.integers(1, LENGTH))
    def save(self, number: int, name: str, branch: int, stop: int) -> None:
        """A whole save by every rank without interruption, so that there is something to find."""
        first = self.pick(number)
        if first is None:
            return
        for engine in list(self.alive):
            if engine.instance != first.instance or not engine.session:
                continue
            for shard in engine.space.shards_of_rank(engine.rank):
                self.begin_store(engine, keys_of(name, branch), 0, stop, shard)
                self.act_on_all()
                self.begin_commit(engine, 1)
                self.act_on_all()

    @rule(number=numbers, name=chains, branch=st.integers(0, 1), stop=st.integers(4, LENGTH))
    def save_and_load(self, number: int, name: str, branch: int, stop: int) -> None:
        """A whole save, and a whole load up to the reading."""
        self.save(number, name, branch, stop)
        self.lookup(number, name, branch, 0)
        self.retrieve(number, 1)

    # --- loading --------------------------------------------------------------------------

    @rule(number=numbers, name=chains, branch=st.integers(0, 1), start=st.integers(0, 5))
    def lookup(self, number: int, name: str, branch: int, start: int) -> None:
        engine = self.pick(number)
        if engine is None:
            return
        keys = keys_of(name, branch)
        request = number % 3

        def found(reply: m.Body | None) -> None:
            if isinstance(reply, m.LookupReply) and reply.ready:
                offer = (keys, reply.lease, start, reply.ready)
                engine.offer = offer  # type: ignore[attr-defined]

        body = m.Lookup(
            session=engine.session, request=request, start=start, keys=b"".join(keys[start:])
        )
        self.wait(engine, body, found)

    @rule(number=numbers, part=numbers)
    def retrieve(self, number: int, part: int) -> None:
        engine = self.pick(number)
        offer = getattr(engine, "offer", None) if engine is not None else None
        if engine is None or offer is None:
            return
        keys, lease, start, ready = offer
        count = ready if part % 2 else 1 + part % ready
        body = m.Retrieve(session=engine.session, lease=lease, start=start, count=count)

        def retrieved(reply: m.Body | None) -> None:
            if isinstance(reply, m.RetrieveReply):
                slots = unpack_slots(reply.slots, count, reply.num_shards)
                if count == ready:
                    engine.check_complete(start, slots)
                engine.claim(keys, lease, start, slots)

        self.wait(engine, body, retrieved)

    @rule(number=numbers, everyone=st.booleans())
    def release(self, number: int, everyone: bool) -> None:
        engine = self.pick(number)
        if engine is None or not engine.claims:
            return
        lease = next(iter(engine.claims))
        if everyone:
            # The scheduler may only do that before the lease reached the other ranks.
            for other in self.alive:
                if other.instance == engine.instance:
                    other.claims.pop(lease, None)
        engine.claims.pop(lease, None)
        self.wait(engine, m.Release(session=engine.session, lease=lease, all_readers=everyone))

    @rule(number=numbers)
    def end(self, number: int) -> None:
        engine = self.pick(number)
        if engine is not None:
            self.wait(engine, m.EndSession(session=engine.session, request=number % 3))

    @rule(number=numbers)
    def heartbeat(self, number: int) -> None:
        engine = self.pick(number)
        if engine is not None:
            live = struct.pack("<Q", number % 3)
            self.wait(engine, m.Heartbeat(session=engine.session, requests=live))

    # --- operators ------------------------------------------------------------------------

    @rule(number=numbers, what=st.integers(0, 20), name=chains, at=st.integers(1, LENGTH))
    def operate(self, number: int, what: int, name: str, at: int) -> None:
        engine = self.pick(number)
        owners = self.world.core._state.roster.owners
        if engine is None or not owners:
            return
        fingerprint = list(owners)[number % len(owners)]
        keys = chain(name, at)
        blob = b"".join(keys)
        if what == 0 and number % 4 == 0:
            self.wait(engine, m.Clear())
        elif what == 1:
            self.wait(engine, m.Clear(fingerprint=fingerprint))
        elif what <= 3:
            self.wait(engine, m.Delete(fingerprint=fingerprint, keys=keys[-1]))
        elif what <= 6:
            self.wait(engine, m.Pin(fingerprint=fingerprint, keys=blob, ttl_s=5))
        elif what <= 8:
            self.wait(engine, m.Unpin(fingerprint=fingerprint, keys=blob))
        elif what >= 12:
            self.wait(engine, m.Quotas(change=quota_of(list(owners), number, at - 1, what - 12)))
        else:
            self.wait(engine, m.Inspect(fingerprint=fingerprint, keys=blob))

    # --- the shell ------------------------------------------------------------------------

    @precondition(lambda self: self.world.jobs)
    @rule(number=numbers)
    def copy(self, number: int) -> None:
        jobs = list(self.world.jobs)
        self.world.finish(jobs[number % len(jobs)], "no" if number % 8 == 0 else None)
        self.world.core.take_faults()
        self.settle()

    @precondition(lambda self: self.world.pending)
    @rule(number=numbers)
    def act(self, number: int) -> None:
        effect = self.world.pending.pop(number % len(self.world.pending))
        often = 16 if isinstance(effect, fx.OpenPool) else 8
        self.world.act(effect, "it went wrong" if number % often == 0 else None)
        self.settle()

    @rule(seconds=st.integers(0, 25))
    def time(self, seconds: int) -> None:
        self.world.step(seconds * SECOND)
        due = self.world.core.next_timer_ns()
        if due is not None and due <= self.world.now_ns:
            self.world.core.tick(self.world.now_ns)
        self.settle()

    @rule(number=numbers)
    def copier_dies(self, number: int) -> None:
        if number % 4:
            return
        running = sorted(self.world.running)
        copier = running[number // 16 % len(running)]
        others = [job for job in self.world.jobs.values() if job.copier != copier]
        hangs = bool(number % 8) and len(self.world.stuck) < 2
        self.num_stuck += hangs
        self.world.lose(copier, self.num_stuck if hangs else 0)
        self.settle()
        assert all(self.world.jobs.get(job.job) is job for job in others), "others noticed"
        restart = fx.StartCopier(fx.CopierId(copier), b"")
        self.world.begin(restart, "not now" if copier and number % 32 == 0 else None)
        self.settle()

    @rule(number=numbers)
    def stuck_copier_dies(self, number: int) -> None:
        if self.world.stuck and number % 2 == 0:
            self.world.see_stuck_die(*min(self.world.stuck))
            self.settle()

    @invariant()
    def nothing_read_changed(self) -> None:
        self.world.check_claims()
        self.world.check_tokens()

    def teardown(self) -> None:
        """When all engines are gone and every copy ended, nothing is held for anybody."""
        for engine in list(self.alive):
            engine.die()
        for which in list(self.world.stuck):
            self.world.see_stuck_die(*which)
            self.settle()
        for _ in range(10_000):
            while self.world.jobs:
                self.world.finish(next(iter(self.world.jobs)))
            pending, self.world.pending = self.world.pending, []
            for effect in pending:
                self.world.act(effect)
            self.world.pump()
            if not (self.world.jobs or self.world.pending):
                break
        self.settle()
        for engine, seq, _ in self.awaited:
            assert engine.dead, f"request {seq} was never answered"
        stats = self.world.core.stats()
        for name in (
            "sessions",
            "instances",
            "leases",
            "stores",
            "replies_owed",
            "copies_in_flight",
            "slots_reserved",
            "pinned_slots",
            "arena_quarantined_bytes",
        ):
            assert stats[name] == 0, (name, stats[name])
        self.world.step(IDLE_NS)
        self.world.auto_copiers = True
        self.world.core.tick(self.world.now_ns)
        self.world.pump()
        assert self.world.core.stats()["device_copiers"] == 0
        self.world.core.check_integrity()


CoreMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestCore = CoreMachine.TestCase


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestCoreLong(CoreMachine.TestCase):  # type: ignore[misc, valid-type]
    settings = settings(
        max_examples=400,
        stateful_step_count=120,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
