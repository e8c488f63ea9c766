"""Recomputes from scratch what the core keeps up to date step by step.

Purpose: the oracle of the property tests; too slow for anything else. Must not know: how the data
came about. Runs in: tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from protocol.layout import CudaIpcMemory
from server.core.copiers import MAX_DEVICES
from server.core.effects import HOST_COPIER
from server.core.eviction import PARKED, QUEUED
from server.core.extents import Extent, Phase
from server.core.index import ABSENT, ChunkIndex
from server.core.indexcheck import check_index
from server.core.integrity import require
from server.core.namespaces import Owner, PoolState
from server.core.slots import FREE, HELD, NO_NODE, RESERVED, ZOMBIE
from server.core.state import State
from server.core.tiers.promotion import MOST_RUNS


def audit(state: State) -> None:
    """Checks all of a core's data against each other.

    Args:
        state: every room.

    Raises:
        IntegrityError: names the first contradiction.
    """
    state.slots.check()
    for owner in state.roster.owners.values():
        _check_owner(state, owner)
    _check_extents(state)
    _check_seals(state)
    _check_pins(state)
    _check_locks(state)
    _check_reservations(state)
    _check_accounts(state)
    _check_sessions(state)
    _check_copiers(state)


def _check_owner(state: State, owner: Owner) -> None:
    nodes = check_index(owner.index)
    extents = [extent for of_shard in owner.extents for extent in of_shard]
    sizes = [extent.geometry.slot_bytes for extent in extents]
    held = sum(one.num_held * size for one, size in zip(extents, sizes, strict=True))
    require(held == owner.held_bytes, "bytes that are held are counted", held)
    taken = sum(one.num_reserved * size for one, size in zip(extents, sizes, strict=True))
    require(taken == owner.reserved_bytes, "bytes that are taken are counted", taken)
    files = sum(extent.file_bytes for extent in extents)
    require(files == owner.file_bytes, "a namespace's files are counted", files)
    for node in nodes:
        for shard in range(owner.num_shards):
            slot = owner.index.cell(node, shard)
            if slot == ABSENT:
                continue
            extent = state.arena.extents[state.slots.extent_of[slot]]  # type: ignore[index]
            require(extent.owner is owner, "a cell's slot is its owner's", node, slot)
            require(extent.geometry.shard == shard, "a cell's slot is its shard's", node, slot)
            kind = state.slots.state_of[slot]
            require(kind in (HELD, RESERVED), "a cell's slot is used", node, slot, kind)
        leaf = owner.index.first_child[node] == ABSENT
        if leaf and state.arena.evictable(owner, node):
            flags = owner.index.flags[node]
            require(bool(flags & QUEUED), "an evictable leaf is on offer", node, flags & PARKED)


def _check_extents(state: State) -> None:
    arena, slots = state.arena, state.slots
    used = 0
    for number, extent in arena.extents.items():
        require(extent.extent == number, "an extent is listed under its id", number)
        used += extent.file_bytes
        _check_extent(state, extent)
    require(
        used == state.growth.used_bytes,
        "the budget is the sum of files",
        used,
        state.growth.used_bytes,
    )
    require(used <= state.config.arena_bytes, "the budget is kept", used)
    ids = set(np.unique(slots.extent).tolist()) - {0}
    require(ids == set(arena.extents), "slots belong to extents", ids)


def _check_extent(state: State, extent: Extent) -> None:
    slots, owner = state.slots, extent.owner
    run = slice(extent.base, extent.base + extent.geometry.num_slots)
    kinds, number = slots.state[run], extent.extent
    require(bool((slots.extent[run] == number).all()), "a run is its extent's", number)
    free = sorted(extent.free)
    expected = (np.flatnonzero(kinds == FREE) + extent.base).tolist()
    require(free == expected, "free slots are listed once", number)
    require(int((kinds == HELD).sum()) == extent.num_held, "held slots are counted", number)
    require(
        int((kinds == RESERVED).sum()) == extent.num_reserved, "reserved slots are counted", number
    )
    require(extent in owner.extents[extent.geometry.shard], "an owner knows its extents", number)
    if extent.phase in (Phase.CREATING, Phase.TAKEN):
        require(not kinds.any(), "an extent on its way is unused", number)
    for slot in (np.flatnonzero(kinds == HELD) + extent.base).tolist():
        if not state.arena.is_cleared(owner, slot):
            node = slots.node_of[slot]
            cell = owner.index.cell(node, extent.geometry.shard) if node != NO_NODE else ABSENT
            require(cell == slot, "a held slot is in the index", slot, node)


def _check_seals(state: State) -> None:
    for number, extent in state.arena.extents.items():
        run = slice(extent.base, extent.base + extent.geometry.num_slots)
        require(extent.sealed or not extent.parties, "a touched extent is sealed", number)
        require(extent.sealed or not state.slots.sealed[run].any(), "seals are an extent's", number)
        if extent.parties:
            require(bool(state.slots.sealed[run].all()), "a seal is whole", number)
        if extent.sealed:
            require(extent.phase is Phase.LIVE, "a sealed extent stays", number, extent.phase)
            require(not extent.num_reserved, "nothing is put under a seal", number)
    require(state.growth.foreign_bytes >= 0, "foreign bytes are counted")


def _check_pins(state: State) -> None:
    expected = np.zeros_like(state.slots.pins)
    for lease in state.leases.by_id.values():
        require(
            lease.is_open or (lease.held_by is not None and bool(lease.held_by.any())),
            "a lease promises or is read",
        )
        if lease.held_by is None or lease.slots is None:
            continue
        for rank in range(lease.held_by.shape[0]):
            for shard in lease.owner.namespace.shards_of_rank(rank):
                mine = lease.slots[lease.held_by[rank], shard]
                np.add.at(expected, mine[mine >= 0], 1)
    for writer in state.demotion.writers:
        for flight in writer.flights:
            np.add.at(expected, flight.slots, 1)
    require(bool((expected == state.slots.pins).all()), "pins are what readers and writes hold")
    pinned = state.slots.pins > 0
    kinds = state.slots.state[pinned]
    require(bool(((kinds == HELD) | (kinds == ZOMBIE)).all()), "what is read keeps its bytes")


def _check_locks(state: State) -> None:
    expected: dict[tuple[int, int], int] = {}
    for owner, index, node, life in _locks(state):
        if node != ABSENT and index is owner.index and owner.index.life[node] == life:
            key = (id(owner), node)
            expected[key] = expected.get(key, 0) + 1
    for owner in state.roster.owners.values():
        for node in owner.index.nodes():
            wanted = expected.get((id(owner), node), 0)
            have = owner.index.locks[node]
            require(have == wanted, "locks are what holds them", node, have)


def _locks(state: State) -> Iterator[tuple[Owner, ChunkIndex, int, int]]:
    """What leases, pins, plans, walks and promotions lock: node and life in an index."""
    for lease in state.leases.by_id.values():
        if lease.is_open:
            yield lease.owner, lease.index, lease.node, lease.life
    for pin in state.operations.pins.values():
        yield pin.owner, pin.index, pin.node, pin.life
    for session in state.roster.sessions.values():
        for plan in session.stores.values():
            yield plan.owner, plan.index, plan.anchor, plan.anchor_life
    for walk in state.lookups.walks:
        yield walk.owner, walk.index, walk.top, walk.life
    for run in state.promotion.runs:
        yield run.owner, run.index, run.anchor, run.anchor_life
        for share in run.shares:
            yield run.owner, run.index, share.anchor, share.anchor_life


def _check_reservations(state: State) -> None:
    reserved = set(np.flatnonzero(state.slots.state == RESERVED).tolist())
    require(reserved == set(state.reservations.by_slot), "a reserved slot has its STORE or run")
    flying: set[int] = set()
    jobs: set[int] = set()
    for window in state.copiers.windows.values():
        stranded = (piece for pieces in window.stranded.values() for piece in pieces)
        for piece in (*window.flying.values(), *stranded):
            base = state.arena.extents[piece.geometry.extent].base
            slots = {base + local for local in piece.local.tolist()}
            require(not slots & flying, "no slot is written by two copies", slots & flying)
            flying |= slots
        total = sum(piece.num_bytes for piece in window.flying.values())
        require(total == window.flying_bytes, "bytes in flight are counted")
        require(not jobs & set(window.flying), "a job is one copier's")
        jobs |= set(window.flying)
    reads = _check_runs(state)
    require(not reads & flying, "no slot is written by a copy and a read", reads & flying)
    flying |= reads
    require(flying <= reserved, "copies fly into reserved slots only", flying - reserved)


def _check_accounts(state: State) -> None:
    held: Counter[tuple[int, bytes]] = Counter()
    reserved: Counter[int] = Counter()
    for owner in state.roster.owners.values():
        space_bytes = 0
        for node in owner.index.nodes():
            for shard in range(owner.num_shards):
                if owner.index.holds(node, shard):
                    held[owner.index.account[node], owner.fingerprint] += owner.slot_bytes[shard]
                    space_bytes += owner.slot_bytes[shard]
        if not owner.cleared_generation:
            require(space_bytes == owner.held_bytes, "a namespace's bytes are counted")
    for plan in state.reservations.by_slot.values():
        reserved[plan.account] += plan.owner.slot_bytes[plan.shard]
    counted: Counter[tuple[int, bytes]] = Counter()
    for number, account in state.accounts.by_number.items():
        counted.update({(number, name): size for name, size in account.held_in.items()})
        require(reserved[number] == account.reserved_bytes, "reserved bytes are counted", number)
    mine = {key: size for key, size in held.items() if key[0]}
    require(mine == dict(counted), "a salt's bytes are counted", mine, counted)


def _check_runs(state: State) -> set[int]:
    """Slots that tiers may be writing to."""
    flying: set[int] = set()
    require(sum(not run.is_lost for run in state.promotion.runs) <= MOST_RUNS, "runs are bounded")
    for run in state.promotion.runs:
        for piece in run.pieces if run.num_unanswered else ():
            for share, first, length, _ in piece.spans if piece.num_unanswered else ():
                slots = set(share.slots[first - share.held :][:length])
                require(not slots & flying, "no slot is written by two reads", slots & flying)
                for slot in slots:
                    require(state.reservations.by_slot.get(slot) is share, "a read's slot", slot)
                flying |= slots
    every = [one for mine in state.prefetches.by_instance.values() for one in mine.values()]
    require(sum(len(one.keys) for one in every) == state.prefetches.key_bytes, "keys are counted")
    for mine in state.prefetches.by_instance.values():
        for request, prefetch in mine.items():
            require(prefetch.request == request, "a prefetch is listed under its request", request)
            riding = prefetch.run is not None and prefetch in prefetch.run.passengers
            require(riding or prefetch.is_final, "a prefetch waits for a run, or is over", request)
    return flying


def _check_copiers(state: State) -> None:
    copiers = state.copiers
    require(set(copiers.windows) == {HOST_COPIER, *copiers.devices}, "each copier has a window")
    require(len(copiers.devices) <= MAX_DEVICES, "devices are bounded")
    uuids = {device.device_uuid for device in copiers.devices.values()}
    require(len(uuids) == len(copiers.devices), "a device has one copier")
    counted = dict.fromkeys(copiers.devices, 0)
    for session in state.roster.sessions.values():
        memory, window = session.memory, copiers.windows[session.copier]
        if isinstance(memory, CudaIpcMemory):
            counted[session.copier] += 1
            named = copiers.devices[session.copier].device_uuid
            require(named == memory.device_uuid, "a pool is its device's copier's")
        else:
            require(session.copier == HOST_COPIER, "host memory is the host copier's")
        held = session.pool_state in (PoolState.OPENING, PoolState.OPEN, PoolState.CLOSING)
        require(window.is_up or not held, "a copier that is down has no pools")
        if not session.is_closing:
            lost = session.pool_state is PoolState.LOST
            require(not (window.is_up and lost), "a copier that is up is asked for every pool")
    for copier, device in copiers.devices.items():
        require(counted[copier] == device.num_sessions, "sessions of a copier are counted")
        idle = not device.num_sessions
        require(idle or not device.timer, "only an idle copier is about to end")
        require(not idle or device.is_leaving or bool(device.timer), "an idle copier ends")
        up = copiers.windows[copier].is_up
        require(not (up and device.is_leaving), "who leaves is given nothing")


def _check_sessions(state: State) -> None:
    for number, session in state.roster.sessions.items():
        require(session.session == number, "a session is listed under its number")
        instance = session.instance
        require(session.is_closing or instance.ranks.get(session.rank) is session, "a rank's seat")
        for extent in session.extents:
            known = state.arena.extents[extent]
            require(known.readers.get(number) is session, "an extent knows its readers", extent)
    for extent_id, given in state.arena.extents.items():
        for number in given.readers:
            require(extent_id in state.roster.sessions[number].extents, "readers know extents")
    for instance in state.roster.instances.values():
        lacking: dict[int, int] = {}
        for session in instance.ranks.values():
            for extent_number, is_mapped in session.extents.items():
                if not is_mapped:
                    lacking[extent_number] = lacking.get(extent_number, 0) + 1
        require(lacking == instance.unmapped, "unmapped extents are counted", lacking)
        sizes = [
            lease.slots.size
            for lease in map(state.leases.by_id.__getitem__, instance.leases)  # type: ignore[arg-type]
            if lease.slots is not None
        ]
        require(sum(sizes) == instance.num_leased_slots, "leased slots are counted")
