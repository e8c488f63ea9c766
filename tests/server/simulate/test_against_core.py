"""The model against the real core: the same sessions as LOOKUPs, STOREs and COMMITs."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.simulate.memory import key
from server.simulate.node import Node
from server.simulate.traces import read
from tests.server.core.world import World, config, namespace

DATA = Path(__file__).parent / "data"
CHAT = "conversation_first_200.jsonl"


@pytest.mark.parametrize(
    ("name", "every", "share"), [("sessions", 4, 4), ("sessions", 8, 10), (CHAT, 1, 4)]
)
def test_each_request_hits_as_much_as_a_server_says(name: str, every: int, share: int) -> None:
    trace = read([DATA / name])
    chunk_tokens = trace.block_tokens * every
    full = [one.blocks[: one.tokens // trace.block_tokens] for one in trace.prompts]
    prompts = [list(blocks[every - 1 :: every]) for blocks in full]
    room = len({chunk for chunks in prompts for chunk in chunks}) // share
    world = World(config(extents=1, slots=room), check=False)
    engine = world.engine(pages=max(map(len, prompts)))
    engine.register(namespace())
    # Less than asked for: the extent holds records, too.
    (extent,) = world.extents.values()
    node = Node(extent.geometry.num_slots, [], 1.0)
    hits = 0
    for prompt, chunks in zip(trace.prompts, prompts, strict=True):
        usable = (prompt.tokens - 1) // chunk_tokens
        outcome = node.serve(prompt.at_s, chunks, usable)
        keys = [key(chunk) for chunk in chunks]
        world.step(1_000_000)
        found = engine.lookup(keys[:usable]).ready if keys[:usable] else 0
        engine.end()
        if keys:
            engine.save(keys)
        assert found == outcome.hits[0]
        hits += found
    assert 0 < hits < sum(map(len, prompts))
    counters = world.core.stats()
    assert counters["evicted_chunks"] > 0
    assert counters["published_chunks"] - counters["evicted_chunks"] == len(node.memory)
    world.core.check_integrity()
