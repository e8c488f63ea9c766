"""B08: saves and loads interleave, copies end late and in any order: each request has its bytes.

The order of streams on a GPU needs one; what the server does with late answers does not.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from protocol import messages as m
from tests.faults.bystander import engaged, read_all, submit_store
from tests.faults.copierfaults import faulty_server
from tests.server.core.world import World, chain, config, namespace
from tests.wire.client import Engine, expect, make_keys, make_namespace

PAGES = 64


@pytest.mark.parametrize("seed", range(40))
def test_answers_of_the_copier_come_in_any_order(seed: int) -> None:
    """STOREs of several engines in pieces; pieces end, or fail, in any order; loads in between.

    The world holds a label for each byte range and checks at every step that a published slot has
    what its key says and that nothing is copied into what somebody reads.
    """
    world = World(config(extents=4, slots=4, copy_piece_bytes=4096), auto_copies=False)
    engines = [world.engine(name) for name in "abcd"]
    for engine in engines:
        engine.register(namespace())
    plans, random = [], Random(seed)
    for number in range(random.randint(2, 4)):
        engine = engines[number]
        keys = chain(f"{number}", random.randint(1, 4))
        body = engine.store_body(keys)
        plans.append((engine, keys, body, engine.send(body)))
        world.pump()
        if number % 2:
            _end_some(world, random)
    while world.jobs:
        _end_some(world, random)
    for engine, keys, body, seq in plans:
        reply = engine.answer(seq)
        if reply.copied:
            assert engine.commit(body.store, reply.copied).published == reply.copied
        found = engine.lookup(keys)
        assert found.ready == reply.copied
        if found.ready:
            engine.retrieve(keys, found.lease, 0, found.ready)
            engine.release(found.lease)
    world.core.check_integrity()
    assert world.core.stats()["slots_reserved"] == 0


def _end_some(world: World, random: Random) -> None:
    for _ in range(random.randint(1, 3)):
        if world.jobs:
            number = random.choice(sorted(world.jobs))
            world.finish(number, "failed" if random.random() < 0.1 else None)
            world.pump()


def test_slow_copies_of_two_engines_whose_pages_change_at_the_answer(
    short_dir: Path, shm_dir: Path
) -> None:
    """One of them a staging ring. The moment a STORE is answered its pages hold other bytes."""
    sizes = ("--l1-size", "32M", "--extent-size", "1M")
    with (
        faulty_server(short_dir, shm_dir / "a", *sizes) as (server, faults),
        engaged(server, make_namespace(model="b08/pool"), PAGES) as pool,
        engaged(server, make_namespace(model="b08/ring"), PAGES, register=False) as ring,
    ):
        ring.ring = True
        ring.register()
        ring.pump_while_waiting()
        kept: list[tuple[Engine, list[bytes], np.ndarray]] = []
        with faults.pace(0.001):
            for round_number in range(6):
                asked = []
                for engine in (pool, ring):
                    rng = np.random.default_rng(1000 * round_number + engine.ring)
                    engine.pages[:] = rng.integers(0, 256, engine.pages.shape, dtype=np.uint8)
                    for half in range(2):  # two STOREs of one engine interleave as well
                        pages = list(range(half, PAGES, 2))
                        seed = 10_000 * round_number + 10 * half + engine.ring
                        keys = make_keys(seed, PAGES // 2)
                        seq = submit_store(engine, keys, pages, seed + 1)
                        asked.append((engine, keys, pages, seed + 1, seq))
                for engine, keys, pages, store, seq in asked[::-1]:
                    assert expect(engine.wire.reply(seq), m.StoreReply).copied == PAGES // 2
                    kept.append((engine, keys, engine.pages[pages].copy()))
                    engine.pages[pages] = 0xAA  # the next one's bytes
                    assert engine.commit(store, PAGES // 2).published == PAGES // 2
        for engine, keys, expected in kept:
            assert np.array_equal(read_all(engine, keys), expected)
