"""P14: a message about thousands of blocks holds the loop in slices of microseconds.

The core alone, call by call, by thread CPU: what a busy machine adds is measured in the same run,
by a fixed piece of Python. Then a real server: its own figures, and another engine that asks
meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from protocol.limits import MAX_BLOCKS_PER_MESSAGE
from protocol.messages import ChunkCountReply, Clear, Delete, Done, Lookup, LookupReply, Ping
from protocol.namespace import fingerprint
from server.core.admission import SLICE_BLOCKS
from tests.benchmarks import bench_core
from tests.faults.bystander import engaged, stats
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.load import percentile, timed_ms
from tests.wire.process import ServerProcess

TARGET_US = 300.0
ROUNDS = 3
"""Attempts; one of them without another program in the way is enough."""

CHUNKS = 4096


@pytest.fixture(scope="module")
def bursts() -> Iterator[list[dict[str, list[float]]]]:
    thresholds = gc.get_threshold()
    try:
        yield [bench_core.measure(8, 20_000, CHUNKS).bursts for _ in range(ROUNDS)]
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)


KINDS = ("growing", "LOOKUP", "LOOKUP miss", "RETRIEVE", "RELEASE", "STORE", "STORE held")


@pytest.mark.parametrize("kind", [*KINDS, "COMMIT", "CANCEL"])
def test_p14_no_call_of_the_core_is_long(bursts: list[dict[str, list[float]]], kind: str) -> None:
    seen = []
    for one in bursts:
        yardstick = one[f"{bench_core.YARDSTICK}: loop"]
        slower = max(1.0, max(yardstick) / min(yardstick))
        mine = [us for name, all_us in one.items() if name.startswith(f"{kind}:") for us in all_us]
        seen.append((percentile(mine, 0.5), percentile(mine, 0.99), slower))
    assert any(p50 < TARGET_US / 2 * slower for p50, _, slower in seen), seen
    assert any(p99 < TARGET_US * slower for _, p99, slower in seen), seen


def test_p14_long_messages_are_cut_into_slices(bursts: list[dict[str, list[float]]]) -> None:
    for name in ("STORE: work", "COMMIT: work", "CANCEL: work"):
        assert len(bursts[0][name]) >= 8 * CHUNKS // SLICE_BLOCKS - 8, name


@contextmanager
def asked(server: ServerProcess, model: str) -> Iterator[tuple[Engine, Engine, Callable[[], None]]]:
    """Two engines, and a call that asks for the second one and keeps how long that took."""
    space = make_namespace(4096, model)
    with engaged(server, space, num_pages=CHUNKS) as a, engaged(server) as b:
        took_ms: list[float] = []

        def ask() -> None:
            took_ms.append(timed_ms(partial(b.wire.call, Ping(), Done)))

        yield a, b, ask
        assert len(took_ms) > 10
        assert percentile(took_ms, 0.5) < 20, took_ms
        assert percentile(took_ms, 0.95) < 100, took_ms


def while_waiting(engine: Engine, seq: int, ask: Callable[[], None]) -> None:
    """Asks until a reply is there."""
    while not engine.wire.socket.poll(0):
        ask()
    reply = engine.wire.reply(seq)
    assert reply.error is None, reply.error


def test_p14_others_are_served_beside_long_saves_and_their_end(own_server: ServerProcess) -> None:
    with asked(own_server, "p14/saves") as (a, b, ask):
        for number in range(3):
            keys = make_keys(number, CHUNKS)
            store, reply = a.store(keys, list(range(CHUNKS)))
            assert reply.copied > 0
            ask()
            a.commit(store, reply.copied)
            ask()
        seqs = []
        for number in range(10):
            keys = make_keys(100 + number, MAX_BLOCKS_PER_MESSAGE)
            body = Lookup(session=a.session, request=number, start=0, keys=b"".join(keys))
            seqs.append(a.wire.submit(body))
        for seq in seqs:
            while_waiting(a, seq, ask)
        name = fingerprint(a.namespace)
        keys = make_keys(2, CHUNKS)
        while_waiting(a, a.wire.submit(Delete(fingerprint=name, keys=b"".join(keys[2000:]))), ask)
        while_waiting(a, a.wire.submit(Clear(fingerprint=name)), ask)
        for _ in range(10):
            ask()
        assert a.wire.call(Clear(fingerprint=name), ChunkCountReply).chunks == 0
        found = a.wire.call(
            Lookup(session=a.session, request=1, start=0, keys=b"".join(keys)), LookupReply
        )
        assert found.ready == 0
        told = stats(b)
        # The bound proper is for a machine that is not overloaded: see docs/benchmarks.md.
        assert told["loop_bursts"] > 100
        assert told["loop_burst_p50_us"] < TARGET_US / 2
        assert told["loop_burst_max_us"] < 50_000
