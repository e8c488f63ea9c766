"""Looks up and reads every chunk that a server should have, and compares every byte.

Knows the wire client and the content. Runs in the conductor, between the start and the load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.layout import unpack_slots
from protocol.messages import (
    EndSession,
    Lookup,
    LookupReply,
    Released,
    Retrieve,
    RetrieveReply,
)
from tests.restarts.content import CHAIN_CHUNKS, Words, as_bytes, keys_of, num_wrong
from tests.wire.client import Engine, expect

AT_ONCE = 16
"""Requests on their way at a time."""


@dataclass
class Found:
    """What one look at a space found.

    Attributes:
        due: committed chunks with a whole record.
        hits: those of them that were offered.
        more: chunks offered beyond them, committed or in flight, read and compared as well.
        unrecorded: chunks offered that had no whole record at the kill.
        wrong: pages that do not hold what their key says.
        ready: chunks offered of each chain.
        gone: chains of which nothing is left.
    """

    due: int = 0
    hits: int = 0
    more: int = 0
    unrecorded: int = 0
    wrong: int = 0
    ready: dict[int, int] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)


def read_slots(engine: Engine, slots: NDArray[Any]) -> NDArray[np.uint8]:
    """Copies slots out of an engine's own mappings.

    Args:
        engine: that has their extents mapped.
        slots: SLOT_DTYPE[n].

    Returns:
        uint8[n, page_bytes].
    """
    result = np.empty((len(slots), engine.page_bytes), np.uint8)
    for extent in set(slots["extent"].tolist()):
        mapped = engine.extents[extent]
        cut = mapped.geometry
        whole = mapped.view[cut.data_offset_bytes :].reshape(-1, cut.slot_bytes)
        rows = slots["extent"] == extent
        result[rows] = whole[slots["slot"][rows], : engine.page_bytes]
    return result


def verify(engine: Engine, space: int, chains: Mapping[int, int], recorded: set[bytes]) -> Found:
    """Looks at every chain of a space.

    Args:
        engine: registered for it.
        space: which.
        chains: committed chunks of each chain; 0 for one that was in flight.
        recorded: keys with a whole record when the former server was killed.
    """
    found, every = Found(), list(chains)
    for at in range(0, len(every), AT_ONCE):
        batch = [(one, keys_of(space, one, CHAIN_CHUNKS)) for one in every[at : at + AT_ONCE]]
        answers = _look(engine, batch)
        for (chain, keys), answer in zip(batch, answers, strict=True):
            ready, committed = answer.ready, chains[chain]
            has = [key in recorded for key in as_bytes(keys)]
            found.ready[chain] = ready
            hits = sum(has[: min(committed, ready)])
            found.due += sum(has[:committed])
            found.hits += hits
            found.more += ready - hits
            found.unrecorded += ready - sum(has[:ready])
            if not ready and not any(has):
                found.gone.append(chain)
        found.wrong += _read(engine, [keys for _, keys in batch], answers)
    return found


def _look(engine: Engine, batch: list[tuple[int, Words]]) -> list[LookupReply]:
    asked = [
        engine.wire.submit(
            Lookup(session=engine.session, request=number, start=0, keys=keys.tobytes())
        )
        for number, (_, keys) in enumerate(batch, 1)
    ]
    return [expect(engine.wire.reply(seq), LookupReply) for seq in asked]


def _read(engine: Engine, keys: list[Words], answers: list[LookupReply]) -> int:
    """Reads what was leased, gives it back, and counts wrong pages."""
    asked = [
        engine.wire.submit(
            Retrieve(session=engine.session, lease=one.lease, start=0, count=one.ready)
        )
        if one.ready
        else 0
        for one in answers
    ]
    wrong, ended = 0, []
    for number, (some, answer, seq) in enumerate(zip(keys, answers, asked, strict=True), 1):
        if seq:
            reply = expect(engine.wire.reply(seq), RetrieveReply)
            slots = unpack_slots(reply.slots, answer.ready, reply.num_shards)[:, engine.shard]
            wrong += num_wrong(read_slots(engine, slots), some[: answer.ready])
            body = EndSession(session=engine.session, request=number)
            ended.append(engine.wire.submit(body))
    for seq in ended:
        expect(engine.wire.reply(seq), Released)
    return wrong
