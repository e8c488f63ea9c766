"""What a fuzzed core tells operators and routers, held against the truth.

Knows no grammar and no verbs. Runs in the fuzzer's process.
"""

from __future__ import annotations

from protocol import messages as m
from protocol.events import CLEARED, EVENT_KINDS, STORED
from tests.fuzz.finding import require
from tests.fuzz.truth import Truth


def check_told(truth: Truth, body: m.Body) -> None:
    """What operators and routers are told is so.

    Args:
        truth: the shell.
        body: of a reply; of other operations, nothing is looked at.

    Raises:
        Finding: it is not.
    """
    if isinstance(body, m.QuotasReply):
        floors = sum(one.floor_bytes for one in body.quotas if not one.tier)
        require(floors <= body.arena_bytes, f"quotas: floors of {floors} of {body.arena_bytes}")
    elif isinstance(body, m.EventsReply):
        truth.told = body.cursor
        for event in body.events:
            require(event.kind in EVENT_KINDS, f"an event: of no kind, {event.kind}")
            require(bool(event.keys) != (event.kind == CLEARED), "an event: with keys, or without")
            for at in range(0, len(event.keys) if event.kind == STORED else 0, 16):
                known = (event.fingerprint, event.keys[at : at + 16]) in truth.parents
                require(known, "an event tells of what was never stored: a key")
    elif isinstance(body, m.SnapshotReply):
        require(len(body.keys) == len(body.parents), "a page: with as many parents as keys")
        for at in range(0, len(body.keys), 16):
            key, parent = body.keys[at : at + 16], body.parents[at : at + 16]
            there = any(truth.held[body.fingerprint, shard, key] > 0 for shard in range(8))
            require(there, f"a page tells of what is not held: {key!r}")
            right = truth.parents.get((body.fingerprint, key)) == parent
            require(right, f"a page tells of another parent: of {key!r}")
