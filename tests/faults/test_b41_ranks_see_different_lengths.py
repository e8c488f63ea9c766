"""B41: one rank's middle chunk is missing; all get the same shorter hit, and no pin too many."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from protocol.messages import StopReason
from server.asking import stats
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import ServerProcess, wait_until

NUM_CHUNKS = 7
MISSING = 3


def ranks_of(server: ServerProcess, stack: ExitStack, model: str, num_ranks: int) -> list[Engine]:
    instance = os.urandom(16)
    namespace = make_namespace(model=model, num_ranks=num_ranks)
    engines = [
        stack.enter_context(
            Engine(server.url, server.side_path, namespace, instance=instance, rank=rank)
        )
        for rank in range(num_ranks)
    ]
    for engine in engines:
        engine.register()
        engine.pump_while_waiting()
    return engines


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def gauges(server: ServerProcess) -> dict[str, int]:
    return stats(server.side_path, 5.0)


def fill(engine: Engine) -> None:
    rng = np.random.default_rng(100 + engine.rank)
    engine.pages[:NUM_CHUNKS] = rng.integers(0, 256, (NUM_CHUNKS, engine.page_bytes), np.uint8)


def save_but_the_missing(engine: Engine, keys: list[bytes]) -> None:
    """Saves what comes before a chunk; what comes behind the gap is not taken."""
    assert engine.save(keys[:MISSING], list(range(MISSING))) == MISSING
    _, reply = engine.store(keys, list(range(MISSING + 1, NUM_CHUNKS)), start=MISSING + 1)
    assert (reply.copied, reply.stop) == (0, StopReason.MISSING_PARENT)


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("late", [0, -1])
def test_b41_the_shortest_rank_counts_for_all(
    server: ServerProcess, stack: ExitStack, num_ranks: int, late: int
) -> None:
    ranks = ranks_of(server, stack, f"b41/{num_ranks}/{late}", num_ranks)
    keys = make_keys(41 * num_ranks + late, NUM_CHUNKS)
    unlucky = ranks[late]
    for engine in ranks:
        fill(engine)
        if engine is not unlucky:
            assert engine.save(keys, list(range(NUM_CHUNKS))) == NUM_CHUNKS
    save_but_the_missing(unlucky, keys)
    before = gauges(server)

    found = ranks[0].lookup(keys)
    assert found.ready == MISSING
    for engine in ranks:
        assert np.array_equal(engine.read(found.lease, MISSING), engine.pages[:MISSING])
    assert gauges(server)["pinned_slots"] - before["pinned_slots"] == MISSING * num_ranks
    for engine in ranks[:-1]:
        engine.release(found.lease)
    assert gauges(server)["leases"] == before["leases"] + 1, "one reader has not given it back"
    ranks[-1].release(found.lease)
    assert wait_until(lambda: gauges(server)["leases"] == before["leases"])
    assert gauges(server)["pinned_slots"] == before["pinned_slots"]

    # The shares that were missing come: now all of it is a hit, with the bytes of each rank.
    assert unlucky.save(keys, list(range(NUM_CHUNKS))) == NUM_CHUNKS
    found = ranks[0].lookup(keys, request=2)
    assert found.ready == NUM_CHUNKS
    for engine in ranks:
        assert np.array_equal(engine.read(found.lease, NUM_CHUNKS), engine.pages[:NUM_CHUNKS])
    for engine in ranks:
        engine.release(found.lease)
    assert wait_until(lambda: gauges(server)["leases"] == before["leases"])
