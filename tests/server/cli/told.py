"""Answers to STATUS as a server would give them, made by hand. Runs in the pytest process."""

from __future__ import annotations

from typing import Any

import msgspec

from protocol.messages import StatusReply
from protocol.status import (
    LATENCY_BOUNDS_US,
    NUM_BUCKETS,
    CopierStatus,
    EngineStatus,
    NamespaceStatus,
    OpLatency,
    ServerStatus,
    TierStatus,
)

SERVER = ServerStatus(
    version="0.1",
    pid=7,
    uptime_s=11_520.0,
    epoch=b"e" * 16,
    arena=b"a" * 16,
    endpoint="ipc:///x",
)
ENGINE = EngineStatus(
    client="engine one",
    pid=8,
    instance=b"i" * 16,
    state="serving",
    connected_s=61.0,
    idle_s=1.5,
    namespaces=(b"n" * 16,),
    sessions=1,
    leases=2,
    quarantined_bytes=0,
    requested_chunks=100,
    hit_chunks=80,
)
SPACE = NamespaceStatus(
    fingerprint=b"n" * 16,
    name="m/one",
    ranks=1,
    shards=1,
    chunk_tokens=32,
    chunk_blocks=1,
    sessions=1,
    chunks=10,
    bytes=10 << 20,
    pinned_chunks=3,
    idle_s=2.0,
)
TIER = TierStatus(
    name="disk",
    kind="disk",
    state="up",
    used_bytes=1 << 30,
    capacity_bytes=4 << 30,
    jobs=1,
    waiting_puts=5,
)
COPIER = CopierStatus(name="host", state="up", restarts=0, jobs=0, stuck=0)


def latency(*buckets: int, sum_us: int = 0) -> OpLatency:
    """A histogram; buckets that are not given are empty."""
    filled = buckets + (0,) * (NUM_BUCKETS - len(buckets))
    return OpLatency(buckets=filled, sum_us=sum_us, count=sum(buckets))


def reply(**changes: Any) -> StatusReply:
    """A server with one of everything, all of it well."""
    whole = StatusReply(
        server=SERVER,
        engines=(ENGINE,),
        namespaces=(SPACE,),
        tiers=(TIER,),
        copiers=(COPIER,),
        latency_bounds_us=LATENCY_BOUNDS_US,
        latency={"LOOKUP": latency(98, 1, 0, 1, sum_us=5000)},
    )
    return msgspec.structs.replace(whole, **changes)


STATS = {
    "arena_bytes": 64 << 20,
    "arena_held_bytes": 10 << 20,
    "arena_used_bytes": 16 << 20,
    "arena_quarantined_bytes": 0,
    "chunks": 10,
    "evicted_chunks": 4,
    "lookup_chunks": 200,
    "hit_chunks": 150,
    "retrieved_chunks": 120,
    "published_chunks": 14,
    "requested_tokens": 6400,
    "hit_tokens_l1": 4480,
    "hit_tokens_disk": 320,
    "loaded_tokens": 3840,
    "copied_bytes": 14 << 20,
    "tier_disk_get_bytes": 8 << 20,
    "tier_disk_put_bytes": 2 << 20,
    "tier_disk_hit_chunks": 6,
}
