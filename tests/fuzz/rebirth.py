"""Servers that end in the middle of a sequence, and what the next one finds.

The arena's files outlive the core: records as they stand, some of them torn, swapped or forged on
the way. Whoever was there becomes a party of a former incarnation and goes on reading, and the old
copier may go on writing, until the shell says that they are gone. Knows the heritage's form. Runs
in the fuzzer's process.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.extents import RECORD_DTYPE, checksums
from protocol.ids import Fingerprint
from protocol.namespace import Namespace
from server.core.adoption import FoundExtent, FoundParty, Heritage, PartyId
from server.core.config import CoreConfig
from server.core.slots import HELD
from tests.fuzz.clients import Clients
from tests.fuzz.finding import require
from tests.fuzz.truth import Shadow, Truth


def restart(clients: Clients, config: CoreConfig, draw: random.Random) -> None:
    """The server is killed, and the next one adopts what it finds.

    Args:
        clients: all of the old server's; none of them speaks to the new one.
        config: of the new server.
        draw: decides what is damaged.
    """
    truth = clients.truth
    parties = _leave_behind(clients)
    found = [
        FoundExtent(shadow.geometry, _rows(truth, shadow, draw))
        for shadow in truth.extents.values()
        if not shadow.removed
    ]
    namespaces: dict[Fingerprint, Namespace] = {
        Fingerprint(name): space for name, space in truth.namespaces.items() if draw.random() < 0.95
    }
    heritage = Heritage(namespaces, found, parties, max(truth.extents, default=0) + 1)
    truth.begin(config)
    clients.watch()
    adoption = truth.core.adopt(heritage, truth.now_ns)
    there = {one.geometry.extent for one in found}
    require(
        set(adoption.kept) | set(adoption.dropped) == there
        and set(adoption.kept).isdisjoint(adoption.dropped),
        "adopted or dropped: not each extent once",
    )
    for extent in adoption.dropped:
        _forget(truth, extent)
    # A generation that is held nowhere may come again: its slot is sealed as long as anybody
    # knows it.
    slots = truth.core._state.slots
    truth.generations = {0, *slots.generation[slots.state == HELD].tolist()}
    truth.effects()
    truth.audit()


def _leave_behind(clients: Clients) -> list[FoundParty]:
    """Everybody becomes a party; what each may still touch is kept in mind."""
    truth = clients.truth
    claims: dict[int, set[tuple[int, int]]] = {}
    for (session, _), rows in truth.claims.items():
        mine = claims.setdefault(truth.seats[session].process, set())
        mine.update((extent, slot) for extent, slot, _ in rows)
    spaces: dict[int, set[Fingerprint]] = {}
    for seat in truth.seats.values():
        if clients.processes[seat.process - 1].is_alive:
            spaces.setdefault(seat.process, set()).add(Fingerprint(seat.fingerprint))
    truth.next_party += 1
    truth.former[truth.next_party] = (None, set(truth.flying))
    for process, names in spaces.items():
        truth.next_party += 1
        truth.former[truth.next_party] = (frozenset(names), claims.get(process, set()))
    for one in clients.processes:
        one.is_alive = False
        clients.gone.update(one.peers)
    clients.owed.clear()
    clients.closed.clear()
    clients.released.clear()
    return [FoundParty(PartyId(number), names) for number, (names, _) in truth.former.items()]


def _rows(truth: Truth, shadow: Shadow, draw: random.Random) -> NDArray[Any]:
    """The records as the next server reads them, damaged here and there."""
    rows: NDArray[Any] = shadow.rows.copy()
    count = len(rows)
    for _ in range(draw.choice((0, 0, 0, 1, 2))):
        slot, kind = draw.randrange(count), draw.randrange(4)
        if kind == 0:
            rows[slot : slot + 1].view(np.uint8)[draw.randrange(128)] ^= 1 << draw.randrange(8)
        elif kind == 1:
            rows[slot] = rows[draw.randrange(count)]
        elif kind == 2:
            rows[slot] = np.frombuffer(draw.randbytes(128), RECORD_DTYPE)[0]
        else:
            name = draw.choice(("shard", "generation", "chunk_blocks", "state", "payload_bytes"))
            # Two records of one generation in one arena are beyond what any crash leaves.
            fresh = max(truth.generations) + 1 + draw.randrange(9)
            rows[slot][name] = draw.choice((0, fresh if name == "generation" else 2, 255, 1)[:2])
            truth.generations.add(fresh)
            rows["checksum"][slot : slot + 1] = checksums(rows[slot : slot + 1].copy())
        _learn(truth, shadow, rows, slot)
    return rows


def _learn(truth: Truth, shadow: Shadow, rows: NDArray[Any], slot: int) -> None:
    """What a damaged record says is what is there from now on; a torn one says nothing."""
    name, tag = shadow.geometry.fingerprint, shadow.tags[slot]
    if shadow.records[slot] and tag is not None:
        truth.held[name, tag[1], tag[0]] -= 1
    row = rows[slot : slot + 1]
    sound = int(checksums(row.copy())[0]) == int(row["checksum"][0]) and int(row["state"][0]) == 1
    shadow.rows[slot] = rows[slot]
    shadow.records[slot] = sound
    shadow.tags[slot] = None
    if sound:
        key, shard = bytes(row["key"][0]), int(row["shard"][0])
        generation = int(row["generation"][0])
        truth.parents[name, key] = bytes(row["parent"][0])
        truth.held[name, shard, key] += 1
        shadow.tags[slot] = (key, shard, generation)


def _forget(truth: Truth, extent: int) -> None:
    shadow = truth.extents[extent]
    shadow.removed = True
    for slot, tag in enumerate(shadow.tags):
        if shadow.records[slot] and tag is not None:
            truth.held[shadow.geometry.fingerprint, tag[1], tag[0]] -= 1
    for _, touched in truth.former.values():
        touched.difference_update({one for one in touched if one[0] == extent})


def party_gone(truth: Truth, number: int) -> None:
    """One of the former parties is seen gone."""
    if truth.former:
        party = list(truth.former)[number % len(truth.former)]
        del truth.former[party]
        truth.core.party_gone(PartyId(party), truth.now_ns)
        truth.effects()
