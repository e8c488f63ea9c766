"""How long the core holds the loop at a time: thread CPU of each of its calls.

    python -m tests.benchmarks.bench_core [--json] [--rounds N] [--index CHUNKS] [--chunks CHUNKS]

A program, not a test: it judges nothing, since a busy machine would decide. One engine stores,
commits, looks up, retrieves and releases chains of 4,096 chunks against a core that already holds
100,000 chunks, in an arena that is full half-way through, so that STOREs evict, too. The rows
``growing`` are the STOREs and COMMITs that filled it before: there the index grows. Every call of
``Core`` is one burst between two other peers' messages; what counts is thread CPU, not wall time
(design rule 9: p99 of one burst at most 300 µs). Knows ``protocol`` and the core, and needs no
server.

The row ``yardstick`` is a fixed loop of plain Python. How far its p99 is from its p50 is what the
machine, and whatever else runs on it, adds to every other row.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from protocol import messages as m
from protocol.frames import Reply
from protocol.ids import ArenaId, Epoch, InstanceId, PoolId, Token
from protocol.layout import MemfdMemory, Region, ShardPool, pack_pages
from protocol.namespace import LayerGroup, Namespace
from protocol.session import ClientSession
from server.core import effects as fx
from server.core.config import CoreConfig
from server.core.dispatch import Core
from server.shell.heap import use_small_pages

PAGE_BYTES = 4096
EXTENT_BYTES = 64 << 20
TARGET_US = 300.0
YARDSTICK_STEPS = 3000
PROCESS, PEER = fx.ProcessId(1), fx.PeerId(b"\0\0\0\0\1")
YARDSTICK = "yardstick"
NAMES = (
    YARDSTICK,
    "growing",
    "LOOKUP",
    "LOOKUP miss",
    "RETRIEVE",
    "RELEASE",
    "STORE",
    "STORE held",
    "COMMIT",
    "CANCEL",
)


def space() -> Namespace:
    """One layer group of small pages: the work per chunk is all there is."""
    return Namespace(
        model_id="bench",
        config_digest=b"",
        weights_digest=b"",
        host_version="1",
        kv_dtype="float16",
        attention_backend="x",
        kv_layout="NHD",
        tokens_per_block=32,
        num_ranks=1,
        groups=(LayerGroup(layers=(0,), page_bytes=PAGE_BYTES),),
    )


class Engine:
    """One engine and a shell that answers at once; times every call of the core.

    Args:
        index_chunks: how many chunks the arena holds.
        chain_chunks: length of a chain.
        seed: of the keys.

    Attributes:
        bursts: microseconds of thread CPU of each call, by what it was for.
    """

    def __init__(self, index_chunks: int, chain_chunks: int, seed: int = 0) -> None:
        self._random = random.Random(seed)
        room_bytes = (index_chunks + 2 * chain_chunks) * (PAGE_BYTES + 128)
        config = CoreConfig(
            arena_bytes=max(2 * EXTENT_BYTES, room_bytes), extent_bytes=EXTENT_BYTES
        )
        self._core = Core(config, Epoch(b"E" * 16), ArenaId(b"A" * 16), self._random.randbytes)
        self._client = ClientSession(InstanceId(b"I" * 16))
        self._num_pages = chain_chunks
        self._now_ns = 1
        self._replies: dict[int, Reply] = {}
        self._name = ""
        self._next_store = 1
        self.session = 0
        self.bursts: dict[str, list[float]] = {}

    # --- the shell ------------------------------------------------------------------------

    def _timed(self, call: Callable[[], object], what: str) -> object:
        began_ns = time.thread_time_ns()
        result = call()
        spent_us = (time.thread_time_ns() - began_ns) / 1000
        if self._name:
            self.bursts.setdefault(f"{self._name}: {what}", []).append(spent_us)
        return result

    def _rest(self) -> None:
        """Performs effects and slices until nothing is left."""
        core, more = self._core, True
        while more:
            for effect in core.take_effects():
                self._perform(effect)
            self._now_ns += 1000
            more = bool(self._timed(lambda: core.work(self._now_ns), "work"))
            effects = core.take_effects()
            more = more or bool(effects)
            for effect in effects:
                self._perform(effect)
        faults = core.take_faults()
        if faults:
            raise RuntimeError(faults[0])

    def _perform(self, effect: fx.Effect) -> None:
        core, now_ns = self._core, self._now_ns
        if isinstance(effect, fx.SendReply):
            reply = self._client.receive(effect.frame, now_ns)
            if reply is not None:
                self._replies[reply.seq] = reply
        elif isinstance(effect, fx.CreateExtent):
            extent = effect.geometry.extent
            self._timed(lambda: core.extent_created(extent, None, now_ns), "extent_created")
        elif isinstance(effect, fx.OpenPool):
            core.pool_opened(effect.handle, None, now_ns)
        elif isinstance(effect, fx.StartCopy):
            job = effect.job
            self._timed(lambda: core.copy_done(job, None, now_ns), "copy_done")
        elif isinstance(effect, fx.GiveExtent) and self.session:
            self._mapped([effect.geometry.extent])

    def ask(self, body: m.Request, name: str = "") -> Any:
        """One request, and all the work it brings.

        Args:
            body: the request.
            name: what its calls count as; empty to leave them out.

        Returns:
            The reply's body.
        """
        self._now_ns += 1000
        seq, frame = self._client.request(body, self._now_ns, 10**15)
        self._name = name
        self._timed(lambda: self._core.request(PEER, frame, self._now_ns), "request")
        self._rest()
        self._name = ""
        reply = self._replies.pop(seq)
        if reply.error is not None:
            raise reply.error
        return reply.body

    def _mapped(self, extents: list[int]) -> None:
        blob = b"".join(extent.to_bytes(4, "little") for extent in extents)
        _, frame = self._client.request(
            m.Mapped(session=self.session, mapped=blob), self._now_ns, 10**15
        )
        self._core.request(PEER, frame, self._now_ns)

    def register(self) -> None:
        """HELLO, REGISTER_KV_CACHE, MAPPED."""
        core, now_ns, num_bytes = self._core, self._now_ns, self._num_pages * PAGE_BYTES
        core.process_joined(PROCESS, Token(b"T" * 16), InstanceId(b"I" * 16), now_ns)
        _, frame = self._client.hello(Token(b"T" * 16))
        core.request(PEER, frame, now_ns)
        self._rest()
        core.pool_offered(PROCESS, PoolId(b"P" * 16), num_bytes)
        region = Region(offset_bytes=0, size_bytes=PAGE_BYTES, stride_bytes=PAGE_BYTES)
        body = m.RegisterKvCache(
            namespace=space(),
            rank=0,
            memory=MemfdMemory(pool=PoolId(b"P" * 16), size_bytes=num_bytes),
            pools=(ShardPool(shard=0, num_pages=self._num_pages, regions=(region,)),),
        )
        self.session = self.ask(body).session
        self._mapped(list(range(1, core.stats()["extents"] + 1)))

    # --- what an engine does --------------------------------------------------------------

    def keys(self, count: int) -> bytes:
        """A new chain's keys."""
        return self._random.randbytes(16 * count)

    def store(self, keys: bytes, name: str = "") -> m.StoreReply:
        """STORE of a whole chain."""
        count = len(keys) // 16
        body = m.Store(
            session=self.session,
            store=self._next_store,
            request=1,
            shard=0,
            start=0,
            parent=b"",
            keys=keys,
            pages=pack_pages(list(range(count))),
        )
        self._next_store += 1
        reply: m.StoreReply = self.ask(body, name)
        return reply

    def save(self, keys: bytes, store: str = "growing", commit: str = "growing") -> None:
        """STORE and COMMIT of a new chain, each counted under a name."""
        stored = self.store(keys, store)
        count = len(keys) // 16
        if stored.copied != count:
            raise RuntimeError(f"copied {stored.copied} of {count}: {stored.stop!r}")
        body = m.Commit(session=self.session, store=self._next_store - 1, count=count)
        self.ask(body, commit)

    def load(self, keys: bytes) -> None:
        """LOOKUP, RETRIEVE, RELEASE, END_SESSION of a held chain."""
        count = len(keys) // 16
        found = self.ask(m.Lookup(session=self.session, request=1, start=0, keys=keys), "LOOKUP")
        if found.ready != count:
            raise RuntimeError(f"{found.ready} of {count} are held")
        get = m.Retrieve(session=self.session, lease=found.lease, start=0, count=count)
        self.ask(get, "RETRIEVE")
        self.ask(m.Release(session=self.session, lease=found.lease), "RELEASE")
        self.ask(m.EndSession(session=self.session, request=1))

    def withdraw(self, keys: bytes) -> None:
        """STORE and CANCEL."""
        self.store(keys)
        self.ask(m.Cancel(session=self.session, store=self._next_store - 1), "CANCEL")

    def measure_the_machine(self) -> None:
        """Times a fixed piece of Python, as a burst of its own."""
        self._name = YARDSTICK
        self._timed(lambda: sum(number & 7 for number in range(YARDSTICK_STEPS)), "loop")
        self._name = ""

    def chunks(self) -> int:
        """Chunks in the index."""
        return self._core.stats()["chunks"]

    def evicted(self) -> int:
        """Chunks that were evicted."""
        return self._core.stats().get("evicted_chunks", 0)


def measure(rounds: int, index_chunks: int, chain_chunks: int) -> Engine:
    """Fills an index, then does everything ``rounds`` times.

    Args:
        rounds: how often.
        index_chunks: chunks held.
        chain_chunks: chunks of one request.

    Returns:
        The engine, with its bursts.
    """
    use_small_pages()  # as the server does
    engine = Engine(index_chunks, chain_chunks)
    engine.register()
    chains = [engine.keys(chain_chunks) for _ in range(-(-index_chunks // chain_chunks))]
    for keys in chains:
        engine.save(keys)
    # As the server does once it is up (server.app).
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    for _ in range(rounds):
        engine.measure_the_machine()
        fresh = engine.keys(chain_chunks)
        engine.save(fresh, "STORE", "COMMIT")
        engine.load(fresh)
        engine.store(fresh, "STORE held")
        engine.withdraw(engine.keys(chain_chunks))
        missing = engine.keys(chain_chunks)
        engine.ask(
            m.Lookup(session=engine.session, request=2, start=0, keys=missing), "LOOKUP miss"
        )
    return engine


def figures(bursts: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Percentiles per kind of call.

    Args:
        bursts: microseconds of each call.

    Returns:
        For each kind: calls, p50, p99 and max in microseconds, p99 in shares of the target.
    """
    table = {}
    for name in sorted(bursts, key=lambda name: (NAMES.index(name.split(":")[0]), name)):
        values = sorted(bursts[name])
        p99_us = values[min(len(values) - 1, int(len(values) * 0.99))]
        table[name] = {
            "calls": len(values),
            "p50_us": round(statistics.median(values), 1),
            "p99_us": round(p99_us, 1),
            "max_us": round(values[-1], 1),
            "p99_of_target": round(p99_us / TARGET_US, 2),
        }
    return table


def main() -> None:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--index", type=int, default=100_000, help="chunks in the index")
    parser.add_argument("--chunks", type=int, default=4096)
    options = parser.parse_args()
    engine = measure(options.rounds, options.index, options.chunks)
    table = figures(engine.bursts)
    if options.json:
        facts = {"chunks": engine.chunks(), "evicted": engine.evicted(), "rounds": options.rounds}
        print(json.dumps({**facts, "target_us": TARGET_US, "bursts": table}))
        return
    print(f"{engine.chunks()} chunks in the index, {engine.evicted()} evicted; thread CPU in µs")
    print(f"{'':30}{'calls':>8}{'p50':>9}{'p99':>9}{'max':>9}{'p99/target':>12}")
    for name, row in table.items():
        print(
            f"{name:30}{row['calls']:8.0f}{row['p50_us']:9.1f}{row['p99_us']:9.1f}"
            f"{row['max_us']:9.1f}{row['p99_of_target']:12.2f}"
        )


if __name__ == "__main__":
    main()
