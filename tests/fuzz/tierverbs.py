"""The verbs about lower tiers: what porters do, what others store below, who asks for it.

Knows what a porter, an engine and an operator may do; what must hold afterwards is checked
elsewhere. Runs in the fuzzer's process.
"""

from __future__ import annotations

from protocol import codec
from protocol import messages as m
from server.core import effects as fx
from tests.fuzz.clients import Process
from tests.fuzz.grammar import NAMES, Actor, Step
from tests.fuzz.stores import Name, Store
from tests.fuzz.truth import SECOND
from tests.server.core.spaces import CHAINS, LENGTH, SPACES, TENANTS, keys_of
from tests.server.core.world import PAGE

NO_PARENT = bytes(16)
WAITS_MS = (0, 20, 2000, 60_000)


class TierVerbs(Actor):
    """Each method is a verb; most do nothing to a server without tiers."""

    def _tier(self, number: int) -> int | None:
        count = len(self.truth.config.tiers)
        return number % count if count else None

    def _space(self, number: int) -> int:
        """A namespace, mostly one that an engine has registered."""
        process = self.who(number)
        return number % len(SPACES) if process is None or number % 5 == 0 else process.space

    # --- what is below --------------------------------------------------------------------

    def fill(self, step: Step) -> None:
        """Another server writes a chain to a tier, whole or with a part left out."""
        tier = self._tier(step.c)
        if tier is not None:
            self._fill(self.truth.below.store(tier), self._space(step.a), step)

    def _fill(self, store: Store, number: int, step: Step) -> None:
        space, name = SPACES[number % len(SPACES)], NAMES[number % len(SPACES)]
        if store.texts is not None:
            text = codec.bytes_from_struct(space)
            store.texts[name] = text[: step.x % len(text)] if step.x % 16 == 1 else text
        keys = keys_of(CHAINS[step.b % len(CHAINS)], step.b // 8 % 2)[: 1 + step.x % LENGTH]
        hole = step.x // 16 % 40  # of the parts; mostly none of them
        for at, key in enumerate(keys):
            parent = keys[at - 1] if at else NO_PARENT
            for shard in range(space.num_shards):
                if at * space.num_shards + shard != hole or hole > 20:
                    store.put(Name(name, key, shard), parent, self.clients.serial)

    def spoil(self, step: Step) -> None:
        """A part that a tier has goes bad, or away without a word."""
        tier = self._tier(step.a)
        if tier is not None:
            store = self.truth.below.store(tier)
            parts = list(store.parts)
            if parts:
                (store.spoilt if step.c % 2 else store.lost).add(parts[step.b % len(parts)])

    # --- porters --------------------------------------------------------------------------

    def porter(self, step: Step) -> None:
        """A porter dies, or does not, or starts, or says that it gets on."""
        below, tier = self.truth.below, self._tier(step.b)
        if tier is None:
            below.moves(step.b % 3)  # whoever is asked about a tier that is not there
            return
        what = step.a % 8
        if what < 2:
            below.end(tier, sticks=what == 1)
        elif what == 2:
            below.stuck_dies(step.c)
        elif what == 3:
            below.moves(tier)
        elif what == 4:
            below.answer_late()
        else:
            below.start(tier, refused=what == 5)

    def reply(self, step: Step) -> None:
        """Some questions are answered, the newest first, some of them badly."""
        below = self.truth.below
        for number in range(1 + step.a % 6):
            if below.jobs:
                jobs = sorted(below.jobs, reverse=step.b % 2 == 0)
                bad = step.c % 2 == 0 and number == step.c // 2 % 2
                below.answer(jobs[0], 1 + step.x % 60_000 if bad else 0)
                self.truth.settle(1 + step.b % 7)
        if step.b % 5 == 0:
            below.written_down()

    def serve(self, step: Step) -> None:
        """All is answered, until nothing more is asked."""
        for _ in range(1 + step.a % 8):
            more = self.truth.below.serve()
            self.truth.settle(20)
            if not more:
                break

    # --- who asks -------------------------------------------------------------------------

    def want(self, step: Step) -> None:
        """What a tier has is looked up, waited for and, if it comes, retrieved."""
        process, tier = self.who(step.a), self._tier(step.c)
        if process is None or tier is None:
            return
        if step.x % 4:
            self._fill(self.truth.below.store(tier), process.space, step)
        keys = keys_of(CHAINS[step.b % len(CHAINS)], step.b // 8 % 2)[: 1 + step.c // 2 % LENGTH]
        session, request = self.seat(process, step.a), step.c % 4
        body = m.Lookup(
            session=session,
            request=request,
            start=0,
            keys=b"".join(keys),
            tenant=TENANTS[step.x // 16 % len(TENANTS)],
        )
        self.ask(process, body, step._replace(m=0))
        self.truth.settle(20)
        self.wait(step)
        if step.c % 3 == 0:
            self.reply(step._replace(c=step.c // 3))
        elif step.c % 3 == 1:
            self.serve(step)
            self._read(process, session, step)
        else:
            self._hang(step)

    def _hang(self, step: Step) -> None:
        """Reads begin; then their porter is slow, dies or does not."""
        below = self.truth.below
        for number, job in list(below.jobs.items()):
            if isinstance(job, fx.TierProbe):
                below.answer(number)
        self.truth.settle(20)
        tiers = [job.tier for job in below.jobs.values() if isinstance(job, fx.TierGet)]
        if tiers and step.a % 3:
            below.end(tiers[0], sticks=step.a % 3 == 1)
            self.truth.settle(1 + step.b % 9)

    def _read(self, process: Process, session: int, step: Step) -> None:
        mine = [one for one in self.clients.leases.values() if one.session == session]
        if mine:
            last = mine[-1]
            read = m.Retrieve(
                session=session, lease=last.lease, start=last.start, count=len(last.keys)
            )
            self.ask(process, read, step._replace(m=0))

    def wait(self, step: Step) -> None:
        """QUERY_PREFETCH_STATUS, for as long as it likes."""
        process = self.who(step.a)
        if process is not None:
            body = m.QueryPrefetchStatus(
                session=self.seat(process, step.a),
                request=step.c % 4,
                wait_ms=WAITS_MS[step.b % len(WAITS_MS)],
            )
            self.ask(process, body, step)

    def warm(self, step: Step) -> None:
        """WARM of all, of a namespace or of a prefix; how far it is; its end."""
        process = self.who(step.a)
        if process is None:
            return
        name = NAMES[self._space(step.a)] if step.b % 3 else b""
        keys = keys_of(CHAINS[step.c % len(CHAINS)], 0)[: 1 + step.x % LENGTH]
        most = (0, 0, 1, 5, 40)[step.c % 5] * PAGE
        job = self.truth.core._state.warming.job
        number = 1 if job is None else job.number
        bodies: tuple[m.Request, ...] = (
            m.Warm(fingerprint=name, max_bytes=most),
            m.Warm(fingerprint=name, max_bytes=most),
            m.Warm(fingerprint=name, keys=b"".join(keys) if name else b""),
            m.WarmStatus(warm=number),
            m.WarmStatus(warm=number + step.c % 2),
            m.WarmCancel(warm=number),
        )
        self.ask(process, bodies[step.b // 3 % 6], step)

    def wipe(self, step: Step) -> None:
        """CLEAR or DELETE of something that is below, too, and time for tiers to answer."""
        process = self.who(step.a)
        if process is None:
            return
        name = NAMES[self._space(step.a)]
        keys = b"".join(keys_of(CHAINS[step.c % len(CHAINS)], 0)[step.x % LENGTH :][:3])
        body = m.Clear(fingerprint=name) if step.b % 2 else m.Delete(fingerprint=name, keys=keys)
        self.ask(process, body, step)
        self.truth.settle(1 + step.b % 9)
        if step.b % 3 == 0:
            self.truth.now_ns += SECOND
            self.truth.core.tick(self.truth.now_ns)
