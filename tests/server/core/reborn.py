"""The next server of a world whose server was killed: what it finds, and what it must make of it.

``holdings`` says from the shadow alone what a new server may hold, in the plainest way; the tests
compare it with what the core built out of arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.extents import RECORD_DTYPE
from protocol.ids import Fingerprint
from protocol.namespace import fingerprint
from server.core.adoption import Adoption, FoundExtent, FoundParty, Heritage, PartyId
from server.core.config import CoreConfig
from server.core.dispatch import Core
from server.core.index import ROOT, ChunkIndex
from tests.server.core.engine import Label
from tests.server.core.world import ExtentShadow, Stranger, World

Cells = dict[tuple[bytes, int], tuple[int, int]]
"""Of one namespace: extent and slot of each key and shard that is held."""

NO_PARENT = bytes(16)


def records_of(shadow: ExtentShadow) -> NDArray[Any]:
    """The records as they stand in the file: voided ones keep their generation."""
    rows = np.zeros(shadow.geometry.num_slots, RECORD_DTYPE)
    for slot, row in enumerate(shadow.records):
        if row is not None:
            rows[slot] = row
        rows["generation"][slot] = shadow.generations[slot]
    return rows


def kill(world: World) -> None:
    """Whoever lives becomes a stranger; the copier too, with the copies it has under way."""
    world.fuse = 0
    party = max((one.party for one in world.strangers), default=0)
    there = {number for number, shadow in world.extents.items() if not shadow.removed}
    writes: list[tuple[int, int, int, Label]] = []
    for job in world.jobs.values():
        # A copier that was killed and hangs still has the pools it had.
        engine = world.engines.get(world.pools.get(job.pool, 0))
        geometry = world.extents[job.extent].geometry
        page = geometry.payload_bytes // geometry.chunk_blocks
        for (slot, part), source in zip(world.targets(job), job.sources.tolist(), strict=True):
            label = engine.pages[source // page] if engine is not None else None
            writes.append((job.extent, slot, part, label))
    world.strangers.append(Stranger(party + 1, None, there, writes=writes))
    for engine in world.engines.values():
        if not engine.dead:
            party += 1
            space = fingerprint(engine.space)
            mine = {one for one in there if world.extents[one].geometry.fingerprint == space}
            claims = [claim for part in engine.claims.values() for claim in part]
            world.strangers.append(Stranger(party + 1, space, mine, claims))


def heritage(world: World) -> Heritage:
    """What lies in the arena's folder now."""
    there = [shadow for shadow in world.extents.values() if not shadow.removed]
    return Heritage(
        namespaces=dict(world.namespaces),
        extents=[FoundExtent(shadow.geometry, records_of(shadow)) for shadow in there],
        parties=[
            FoundParty(PartyId(one.party), None if one.space is None else frozenset({one.space}))
            for one in world.strangers
        ],
        next_extent=max(world.extents, default=0) + 1,
    )


def reborn(old: World, config: CoreConfig) -> tuple[World, Adoption]:
    """The next server over the same arena."""
    world = World(
        config,
        seed=old.seed + 1,
        now_ns=old.now_ns,
        check=old.check,
        auto_extents=old.auto_extents,
        auto_pools=old.auto_pools,
        auto_copies=old.auto_copies,
        auto_map=old.auto_map,
        extents=old.extents,
        namespaces=old.namespaces,
        strangers=old.strangers,
    )
    adoption = world.core.adopt(heritage(old), world.now_ns)
    for extent in adoption.dropped:
        world.extents[extent].removed = True
    world.core.check_integrity()
    world.pump()
    return world, adoption


def holdings(world: World, kept: Iterable[int]) -> dict[Fingerprint, Cells]:
    """What may be held of the records in some extents, said as plainly as possible."""
    spaces: dict[Fingerprint, Cells] = {}
    newest: dict[tuple[Fingerprint, bytes, int], int] = {}
    parents: dict[bytes, bytes] = {}
    for number in kept:
        shadow = world.extents[number]
        space = shadow.geometry.fingerprint
        cells = spaces.setdefault(space, {})
        for slot, row in enumerate(shadow.records):
            if row is None:
                continue
            key, shard, born = bytes(row["key"]), int(row["shard"]), int(row["generation"])
            assert parents.setdefault(key, bytes(row["parent"])) == bytes(row["parent"])
            if born > newest.get((space, key, shard), 0):
                newest[space, key, shard] = born
                cells[key, shard] = (number, slot)
    for space, cells in spaces.items():
        namespace = world.namespaces[space]
        is_full = [
            not namespace.groups[namespace.group_of(shard)].window_tokens
            for shard in range(namespace.num_shards)
        ]
        while True:
            keys = {key for key, _ in cells}
            orphans = [
                (key, shard)
                for key, shard in cells
                if (above := parents[key]) != NO_PARENT
                and (above not in keys or (is_full[shard] and (above, shard) not in cells))
            ]
            if not orphans:
                break
            for one in orphans:
                del cells[one]
    return {space: cells for space, cells in spaces.items() if cells}


def held(core: Core, rooted: bool = False) -> dict[Fingerprint, Cells]:
    """What a core holds, by its indexes; ``rooted``: only what continues chunks that are held.

    A chunk of which nothing is held may be there for what continues it alone. No record names its
    parent, so a later server cannot know where in the chain it stood.
    """
    state = core._state
    spaces: dict[Fingerprint, Cells] = {}
    for space, owner in state.roster.owners.items():
        index = owner.index
        cells = spaces[space] = {}
        for node in index.nodes():
            for shard in range(owner.num_shards):
                if index.holds(node, shard) and not (rooted and _is_loose(index, node)):
                    slot = index.cell(node, shard)
                    extent = int(state.slots.extent[slot])
                    cells[index.key(node), shard] = (extent, int(state.slots.local[slot]))
    return {space: cells for space, cells in spaces.items() if cells}


def _is_loose(index: ChunkIndex, node: int) -> bool:
    while node != ROOT:
        if not any(index.holds(node, shard) for shard in range(index.num_shards)):
            return True
        node = index.parent[node]
    return False


def resized(config: CoreConfig, arena_bytes: int, extent_bytes: int) -> CoreConfig:
    """The same settings with another arena."""
    return replace(config, arena_bytes=arena_bytes, extent_bytes=extent_bytes)
