"""Rows of STATUS: bounds of buckets, and that the fullest reply is one that a client reads."""

from __future__ import annotations

from protocol import frames, limits
from protocol.messages import REQUEST_TYPES, Op, StatusReply
from protocol.prefixes import MAX_PREFIXES, PrefixStatus
from protocol.status import (
    COPIER_STATES,
    ENGINE_STATES,
    LATENCY_BOUNDS_US,
    MAX_SLOW,
    NUM_BUCKETS,
    TIER_STATES,
    CopierStatus,
    EngineStatus,
    NamespaceStatus,
    OpLatency,
    ServerStatus,
    SlowRequest,
    TierStatus,
)

LONG = "\U0001f600" * limits.MAX_STATUS_CHARS
BIG = limits.MAX_U63
ID = b"\xff" * 16


def full() -> StatusReply:
    """As many rows as there may be, each as long as it may be."""
    rows = limits.MAX_STATUS_ROWS
    engine = EngineStatus(
        client=LONG,
        pid=BIG,
        instance=ID,
        state=ENGINE_STATES[2],
        connected_s=1e9,
        idle_s=1e9,
        namespaces=(ID,),  # one engine has one
        sessions=BIG,
        leases=BIG,
        quarantined_bytes=BIG,
        requested_chunks=BIG,
        hit_chunks=BIG,
    )
    space = NamespaceStatus(
        fingerprint=ID,
        name=LONG,
        ranks=BIG,
        shards=BIG,
        chunk_tokens=BIG,
        chunk_blocks=BIG,
        sessions=BIG,
        chunks=BIG,
        bytes=BIG,
        pinned_chunks=BIG,
        idle_s=1e9,
    )
    tier = TierStatus(
        name=LONG,
        kind=LONG,
        state=TIER_STATES[2],
        used_bytes=BIG,
        capacity_bytes=BIG,
        jobs=BIG,
        waiting_puts=BIG,
        why="\U0001f600" * limits.MAX_TEXT_CHARS,
    )
    copier = CopierStatus(
        name=LONG, state=COPIER_STATES[0], restarts=BIG, jobs=BIG, stuck=BIG, silent_s=1e9
    )
    prefix = PrefixStatus(fingerprint=ID, head=b"\xff" * 6, chunks=BIG, hits=BIG, idle_s=1e9)
    slow = SlowRequest(
        op=LONG,
        seq=BIG,
        request=BIG,
        client=LONG,
        instance=ID,
        fingerprint=ID,
        spent_us=BIG,
        wait_ms=BIG,
        age_s=1e9,
    )
    latency = OpLatency(buckets=(BIG,) * NUM_BUCKETS, sum_us=BIG, count=BIG)
    return StatusReply(
        server=ServerStatus(
            version=LONG,
            pid=BIG,
            uptime_s=1e9,
            epoch=ID,
            arena=ID,
            endpoint="\U0001f600" * limits.MAX_TEXT_CHARS,
            draining=True,
            http="\U0001f600" * limits.MAX_TEXT_CHARS,
            started_in_s=1e9,
            adopted_chunks=BIG,
            adopted_bytes=BIG,
            adopted_in_s=1e9,
        ),
        engines=(engine,) * rows,
        engines_more=limits.MAX_U32,
        namespaces=(space,) * rows,
        namespaces_more=limits.MAX_U32,
        tiers=(tier,) * 8,
        copiers=(copier,) * 17,
        latency_bounds_us=LATENCY_BOUNDS_US,
        latency={Op(op).name: latency for op in REQUEST_TYPES},
        prefixes=(prefix,) * MAX_PREFIXES,
        slow=(slow,) * MAX_SLOW,
    )


def test_the_fullest_reply_is_one_frame_and_is_read_again() -> None:
    reply = full()
    frame = frames.pack_reply(int(Op.STATUS), 1, reply)
    assert len(frame) < limits.MAX_FRAME_BYTES
    assert frames.unpack_reply(frame).body == reply


def test_buckets_ascend_and_have_one_more_than_bounds() -> None:
    assert list(LATENCY_BOUNDS_US) == sorted(set(LATENCY_BOUNDS_US))
    assert len(LATENCY_BOUNDS_US) + 1 == NUM_BUCKETS
