"""The verbs of a sequence, and how often each is drawn.

Knows what a client and a shell may do; what must hold afterwards is checked elsewhere. Runs in the
fuzzer's process.
"""

from __future__ import annotations

import random
import struct

import msgspec

from protocol import messages as m
from server.core import effects as fx
from tests.fuzz import deaths, rebirth
from tests.fuzz.askers import AskerVerbs
from tests.fuzz.clients import Clients, Process
from tests.fuzz.drawing import config_of, open_below
from tests.fuzz.grammar import NAMES, Step, pick, register_body, store_body
from tests.fuzz.loading import LeaseFact
from tests.fuzz.mutate import Material
from tests.fuzz.tierverbs import TierVerbs
from tests.fuzz.truth import SECOND, Seat
from tests.server.core.spaces import CHAINS, LENGTH, SPACES, TENANTS, keys_of

_PLAIN = Step("", 0, 0, 0, 0, 0)


class Verbs(TierVerbs, AskerVerbs):
    """Each method is a verb.

    Attributes:
        saved: which chain was saved last in each namespace.
    """

    def __init__(self, clients: Clients, stock: Material) -> None:
        super().__init__(clients, stock)
        self.saved: dict[int, int] = {}

    # --- coming and going -----------------------------------------------------------------

    def join(self, step: Step) -> None:
        """A process connects and says HELLO; further ranks of an engine as they are missing."""
        known = len(self.clients.processes)
        if known >= 20:
            return
        previous = self.clients.processes[-1] if known else None
        if previous is not None and not previous.is_alive:
            previous = None
        if previous is not None and previous.rank + 1 < SPACES[previous.space].num_ranks:
            instance, rank, space = previous.instance, previous.rank + 1, previous.space
        else:
            instance, rank, space = bytes([65 + known]) * 16, 0, step.b % len(SPACES)
            if previous is not None and step.c % 2:
                space = previous.space
        process = self.clients.join(instance, rank, space)
        self.hello(process, self.clients.connect(process))

    def register(self, step: Step) -> None:
        """A process offers a pool and registers it; the newest one that has no session."""
        lacking = [one for one in self.alive() if not one.seats]
        process = lacking[-1] if lacking and step.a % 4 else pick(self.alive(), step.a)
        if process is None:
            return
        body, length = register_body(process, bytes(16), step.c)
        if body.memory is not None:
            size = max(1, length)
            pool = self.clients.offer(process, size)
            body = m.RegisterKvCache(
                namespace=body.namespace,
                rank=body.rank,
                memory=register_body(process, pool, step.c)[0].memory,
                pools=body.pools,
            )
        self.ask(process, body, step)

    def engine(self, step: Step) -> None:
        """A whole engine comes, and maps what it is given."""
        for number in range(3):
            last = self.clients.processes[-1] if self.clients.processes else None
            whole = last is None or last.rank + 1 == SPACES[last.space].num_ranks
            if number and whole:
                break
            self.join(step)
            self.register(step._replace(a=1, m=0))
            if step.a % 4:
                self.hurry()
            self.report(step._replace(a=0, m=0))

    def greet(self, step: Step) -> None:
        """HELLO once more, over a connection that is known or not, in some other way."""
        process = pick(self.alive(), step.a)
        if process is not None:
            body = m.Hello(
                token=b"" if step.b % 5 == 0 else process.token,
                instance=process.instance,
                major=2 if step.c % 4 == 0 else 1,
                minor=step.c % 3,
            )
            self.ask(process, body, step)

    def unregister(self, step: Step) -> None:
        process = self.who(step.a)
        if process is not None:
            if step.c % 3 == 0:  # what it asked a moment ago may be under way still
                self.lookup(step._replace(m=0, c=1))
            self.ask(process, m.Unregister(session=self.seat(process, step.b)), step)

    def quiet(self, step: Step) -> None:
        process = pick(self.alive(), step.a)
        if process is not None:
            process.is_quiet = True
            self.truth.core.process_quiet(fx.ProcessId(process.number), self.truth.now_ns)

    def exit(self, step: Step) -> None:
        process = pick(self.alive(), step.a)
        if process is not None:
            self.clients.exit(process)

    def drop(self, step: Step) -> None:
        process = pick(self.alive(), step.a)
        peer = pick(process.peers, step.b) if process is not None else None
        if peer is not None:
            self.clients.drop(peer)
            self.truth.core.peer_dropped(fx.PeerId(peer))

    def report(self, step: Step) -> None:
        """MAPPED of all that was given and taken, by every process or by one."""
        one = pick(self.alive(), step.a // 2)
        for process in [one] if step.a % 2 and one is not None else self.alive():
            for session in process.seats:
                seat = self.truth.seats[session]
                mapped = [one for one in process.to_map if one in seat.given]
                unmapped = list(process.to_unmap)
                if seat.is_open and (mapped or unmapped):
                    self.ask(process, _mapped(session, mapped, unmapped), step)
            if process.seats:
                process.to_map, process.to_unmap = [], []

    # --- loading --------------------------------------------------------------------------

    def lookup(self, step: Step) -> None:
        process = self.who(step.a)
        if process is None:
            return
        chain = step.b if step.x % 4 == 0 else self.saved.get(process.space, step.b)
        keys = keys_of(CHAINS[chain % len(CHAINS)], chain // 8 % 2)
        start = 0 if step.c % 2 else step.c // 2 % LENGTH
        body = m.Lookup(
            session=self.seat(process, step.a),
            request=step.c % 4,
            start=start,
            keys=b"".join(keys[start : start + 1 + step.x % LENGTH]),
            tenant=TENANTS[step.x // 16 % len(TENANTS)],
        )
        self.ask(process, body, step)

    def query(self, step: Step) -> None:
        process = self.who(step.a)
        if process is not None:
            body = m.QueryPrefetchStatus(
                session=self.seat(process, step.a), request=step.c % 4, wait_ms=step.b % 50
            )
            self.ask(process, body, step)

    def retrieve(self, step: Step) -> None:
        process = self.who(step.a)
        if process is None:
            return
        mine = self.leases_of(process, step.x)
        lease = pick(mine, -1 - step.b % 3)
        if lease is None:
            self.lookup(step)
            return
        first = 0 if step.c % 2 else step.c // 2 % len(lease.keys)
        count = len(lease.keys) - first if step.c % 3 else 1
        body = m.Retrieve(
            session=self.seat(process, step.a),
            lease=lease.lease,
            start=lease.start + first,
            count=count,
        )
        self.ask(process, body, step)

    def leases_of(self, process: Process, number: int) -> list[LeaseFact]:
        """The leases of its engine; now and then, those of the others."""
        ours = number % 12 > 0
        leases = self.clients.leases.values()
        return [one for one in leases if (one.instance == process.instance) is ours]

    def load(self, step: Step) -> None:
        """A LOOKUP and a RETRIEVE of what it found, after a save if there was none."""
        process = self.who(step.a)
        if process is not None and process.space not in self.saved:
            self.save(step)
        self.lookup(step._replace(m=0, c=1))
        self.truth.settle(30)
        self.retrieve(step._replace(b=0, c=1))
        if step.c % 2:
            self.report(step._replace(a=0, m=0))

    def release(self, step: Step) -> None:
        process = self.who(step.a)
        if process is None:
            return
        mine = self.leases_of(process, step.x)
        lease = pick(mine, step.b)
        whole = step.c % 3 != 0
        body = m.Release(
            session=self.seat(process, step.a),
            lease=lease.lease if lease is not None else b"L" * 16,
            start=0 if whole or lease is None else lease.start + step.c % 4,
            count=0 if whole else 1 + step.c // 4 % 5,
            all_readers=step.c % 5 == 4,
        )
        self.ask(process, body, step)

    def end(self, step: Step) -> None:
        process = self.who(step.a)
        if process is not None:
            session = self.seat(process, step.a)
            self.ask(process, m.EndSession(session=session, request=step.c % 4), step)

    def heartbeat(self, step: Step) -> None:
        process = self.who(step.a)
        if process is not None:
            live = struct.pack("<Q", step.c % 4) if step.b % 2 else b""
            session = self.seat(process, step.a)
            self.ask(process, m.Heartbeat(session=session, requests=live), step)

    # --- saving ---------------------------------------------------------------------------

    def store(self, step: Step) -> None:
        process = self.who(step.a)
        seat = self.seat_of(process, step.a) if process is not None else None
        if process is not None and seat is not None and seat.process == process.number:
            self.ask(process, store_body(process, seat, step), step)

    def commit(self, step: Step) -> None:
        process = self.who(step.a)
        if process is None:
            return
        found = pick(process.stores, -1 - step.b % 2)
        session, store, copied = found or (self.seat(process, step.a), 1 + step.b % 5, None)
        count = copied or 0
        if step.c % 4 == 0:
            count = step.c // 4 % (count + 2)
        self.ask(process, m.Commit(session=session, store=store, count=count), step)
        self._forget(process, (session, store))

    def cancel(self, step: Step) -> None:
        process = self.who(step.a)
        if process is None:
            return
        found = pick(process.stores, -1 - step.b % 2)
        session, store, _ = found or (self.seat(process, step.a), 1 + step.b % 5, None)
        self.ask(process, m.Cancel(session=session, store=store), step)
        self._forget(process, (session, store))

    @staticmethod
    def _forget(process: Process, which: tuple[int, int]) -> None:
        process.stores = [one for one in process.stores if one[:2] != which]

    def save(self, step: Step) -> None:
        """The same run of a chain by every rank of an engine in all of its shards, committed."""
        first = self.who(step.a)
        if first is None:
            return
        self.saved[first.space] = step.b
        for process in self.alive():
            seat = self.seat_of(process, 0)
            if process.instance != first.instance or seat is None or process.is_quiet:
                continue
            if seat.process == process.number and seat.body.pools:
                self._save(process, seat, step)

    def _save(self, process: Process, seat: Seat, step: Step) -> None:
        shards = seat.body.namespace.shards_of_rank(seat.body.rank)
        for number in range(len(shards)):
            shard = shards[number]
            body = store_body(process, seat, step._replace(c=1 + 3 * (step.c % LENGTH)))
            body = msgspec.structs.replace(body, shard=shard)
            self.ask(process, body, _PLAIN._replace(x=step.x))
            self.hurry()
            found = next((one for one in process.stores if one[1] == body.store), None)
            if found is not None and found[2]:
                commit = m.Commit(session=seat.session, store=body.store, count=found[2])
                self.ask(process, commit, step if number == len(shards) - 1 else _PLAIN)
                self._forget(process, found[:2])

    def hurry(self, below: bool = False) -> None:
        """The shell does all that it was asked for.

        Args:
            below: lazy porters, too.
        """
        for _ in range(6):
            self.truth.settle(20)
            answered = self.truth.below.serve() if below else self.truth.below.prompt()
            while self.truth.pending:
                self.truth.act(0)
                self.truth.effects()
            for job in list(self.truth.jobs):
                self.truth.finish(job)
            self.truth.effects()
            if not (answered or self.truth.pending or self.truth.jobs):
                break

    # --- operators ------------------------------------------------------------------------

    def operate(self, step: Step) -> None:
        process = self.who(step.a)
        if process is None:
            return
        name = NAMES[process.space] if step.b % 4 else NAMES[step.c % len(NAMES)]
        keys = keys_of(CHAINS[step.c % len(CHAINS)], step.c // 4 % 2)[: 1 + step.x % LENGTH]
        blob = b"".join(keys)
        kind = step.b // 4 % 10
        bodies: tuple[m.Request, ...] = (
            m.Clear(fingerprint=name),
            m.Clear() if step.c % 3 == 0 else m.Clear(fingerprint=name),
            m.Delete(fingerprint=name, keys=keys[-1]),
            m.Delete(fingerprint=name, keys=blob),
            m.Pin(fingerprint=name, keys=blob, ttl_s=1 + step.c % 60),
            m.Pin(fingerprint=name, keys=blob, ttl_s=5),
            m.Unpin(fingerprint=name, keys=blob),
            m.Inspect(fingerprint=name, keys=blob, tiers=step.c % 2 == 1),
            (m.Ping(), m.Stats(), m.Status(), m.Stats())[step.c % 4],
            (m.Warm(fingerprint=name), m.WarmStatus(warm=1), m.WarmCancel(warm=1))[step.c % 3],
        )
        self.ask(process, bodies[kind], step)

    # --- the shell ------------------------------------------------------------------------

    def copy(self, step: Step) -> None:
        job = pick(list(self.truth.jobs), step.a)
        if job is not None:
            self.truth.finish(job, "no" if step.b % 8 == 0 else None)

    def act(self, step: Step) -> None:
        self.truth.act(step.a, "no" if step.b % 8 == 0 else None)

    def work(self, step: Step) -> None:
        self.truth.settle(1 + step.a % 6)

    def finish(self, step: Step) -> None:
        self.hurry(below=True)

    def time(self, step: Step) -> None:
        self.truth.now_ns += (1000, SECOND, 5 * SECOND, 61 * SECOND)[step.a % 4]
        due = self.truth.core.next_timer_ns()
        if due is not None and due <= self.truth.now_ns:
            self.truth.core.tick(self.truth.now_ns)

    def copier(self, step: Step) -> None:
        if step.a % 3 == 2:
            deaths.stuck_dies(self.truth)
        else:
            deaths.copier_dies(self.truth, sticks=step.a % 3 == 1, number=step.b)

    def restart(self, step: Step) -> None:
        rebirth.restart(self.clients, config_of(step), random.Random(step.x))
        open_below(self.truth.below, step)

    def party(self, step: Step) -> None:
        rebirth.party_gone(self.truth, step.a)

    def drain(self, step: Step) -> None:
        if step.a % 4 == 0:
            self.truth.draining = True
            self.truth.core.begin_drain(self.truth.now_ns)


def _mapped(session: int, mapped: list[int], unmapped: list[int]) -> m.Mapped:
    blobs = [struct.pack(f"<{len(one)}I", *one) for one in (mapped, unmapped)]
    return m.Mapped(session=session, mapped=blobs[0], unmapped=blobs[1])
