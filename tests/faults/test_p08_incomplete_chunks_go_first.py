"""P08: one rank's saves keep failing, and what is complete on 7 of 8 shards makes room first.

A real server and an engine of eight ranks, each on a side connection and a pool of its own. Rank 7
withdraws every save it sends, as a rank does whose pages change under each copy. Chunks that all
ranks saved are older than any of those that it spoilt, so that plain least-recently-used order
would let them go first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from protocol.messages import ChunkCountReply, Inspect, Stats, StatsReply
from protocol.namespace import LayerGroup, Namespace, fingerprint
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import ServerProcess

RANKS = 8
PAGE = 4096
CHUNKS = 32
SLOTS = 96
"""Of each shard, less some headers: the good chain, one spoilt one, and part of another."""
OVERDUE_S = 0.5

GOOD = make_keys(1, CHUNKS)


def space(window_tokens: int) -> Namespace:
    plain = make_namespace(PAGE, model="p08")
    values = {name: getattr(plain, name) for name in plain.__struct_fields__}
    group = LayerGroup(layers=(0,), page_bytes=PAGE, window_tokens=window_tokens)
    return Namespace(**{**values, "num_ranks": RANKS, "groups": (group,)})


@pytest.fixture
def ranks(request: pytest.FixtureRequest, short_dir: Path, shm_dir: Path) -> Iterator[list[Engine]]:
    # Room for so many slots of each shard and not for more; the server cuts it to shorter extents.
    extent = 2 * PAGE + SLOTS * PAGE
    sizes = ("--l1-size", str(RANKS * extent), "--extent-size", str(extent))
    instance, namespace = os.urandom(16), space(request.param)
    with ExitStack() as stack:
        limit = ("--incomplete-timeout", str(OVERDUE_S))
        server = stack.enter_context(ServerProcess(short_dir, shm_dir / "a", *sizes, *limit))
        made = []
        for rank in range(RANKS):
            engine = Engine(server.url, server.side_path, namespace, CHUNKS, instance, rank)
            stack.enter_context(engine)
            engine.register()
            engine.pages[:] = rank + 1
            made.append(engine)
        yield made


def save(ranks: list[Engine], keys: list[bytes], spoilt: bool = False) -> list[int]:
    """Every rank saves; rank 7 confirms nothing of it if ``spoilt``."""
    saved = []
    for engine in ranks:
        store, reply = engine.store(keys, list(range(len(keys))))
        wanted = 0 if spoilt and engine.rank == RANKS - 1 else reply.copied
        published = engine.commit(store, wanted).published if reply.copied else 0
        saved.append(reply.held + published)
    return saved


def held(engine: Engine, keys: list[bytes]) -> int:
    name = fingerprint(engine.namespace)
    body = Inspect(fingerprint=name, keys=b"".join(keys))
    return engine.wire.call(body, ChunkCountReply).chunks


@pytest.mark.parametrize("ranks", [0, 10_000], indirect=True, ids=["full", "window"])
def test_p08_what_lacks_a_shard_for_too_long_makes_room_first(ranks: list[Engine]) -> None:
    assert save(ranks, GOOD) == [CHUNKS] * RANKS
    for seed in range(2, 8):
        time.sleep(OVERDUE_S + 0.1)  # what was spoilt before is overdue now
        keys = make_keys(seed, CHUNKS)
        assert save(ranks, keys, spoilt=True) == [CHUNKS] * (RANKS - 1) + [0]
        assert ranks[0].lookup(keys).ready == 0
        assert held(ranks[0], GOOD) == CHUNKS
    evicted = ranks[0].wire.call(Stats(), StatsReply).values["evicted_chunks"]
    assert evicted >= 3 * CHUNKS
    for engine in ranks:
        engine.pump()  # extents that came meanwhile
    found = ranks[0].lookup(GOOD)
    assert found.ready == CHUNKS
    for engine in ranks:
        data = engine.read(found.lease, CHUNKS)
        assert np.array_equal(data, np.full_like(data, engine.rank + 1))
    for engine in ranks:
        engine.release(found.lease)


@pytest.mark.parametrize("ranks", [0], indirect=True, ids=["full"])
def test_p08_what_becomes_complete_in_time_stays(ranks: list[Engine]) -> None:
    """The check on the test above: the order is by completeness, not by who saved it."""
    late = make_keys(2, CHUNKS)
    assert save(ranks, late, spoilt=True)[-1] == 0
    assert save(ranks[-1:], late) == [CHUNKS]
    time.sleep(OVERDUE_S + 0.1)
    spoilt = make_keys(3, CHUNKS)
    save(ranks, spoilt, spoilt=True)
    time.sleep(OVERDUE_S + 0.1)
    save(ranks, make_keys(4, CHUNKS))
    save(ranks, make_keys(5, CHUNKS)[:8])
    assert held(ranks[0], late) == CHUNKS
