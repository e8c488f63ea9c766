"""What a server's answers to STATUS and STATS come to: one document, and what is wrong.

Must not know: how a server is asked, how it is shown. Runs in: the process of the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protocol.messages import StatusReply
from protocol.quotas import QuotaRow
from protocol.status import (
    COPIER_SILENT_S,
    TIER_SILENT_S,
    EngineStatus,
    OpLatency,
    SlowRequest,
)
from server.remarks import remarks

QUANTILES = (0.5, 0.99)


def document(
    status: StatusReply, stats: Mapping[str, int], quotas: Sequence[QuotaRow] = ()
) -> dict[str, Any]:
    """All that a server told of itself, as plain values.

    Args:
        status: its answer to STATUS.
        stats: its counters, asked right after.
        quotas: of tenants that have one.

    Returns:
        ``healthy``, ``reasons``, ``remarks`` and ``complaints``; ``server``, ``l1``, ``hits``,
        ``engines``, ``tiers``, ``copiers``, ``namespaces``, ``latency`` and ``slow``.
    """
    wrong = reasons(status, stats)
    server = status.server
    return {
        "healthy": not wrong,
        "reasons": wrong,
        "remarks": remarks(status, stats, quotas),
        "complaints": complaints(stats),
        "server": {
            "version": server.version,
            "pid": server.pid,
            "uptime_s": round(server.uptime_s, 3),
            "endpoint": server.endpoint,
            "epoch": server.epoch.hex(),
            "arena": server.arena.hex(),
            "draining": server.draining,
            "http": server.http,
            "started_in_s": round(server.started_in_s, 3),
            "adopted_chunks": server.adopted_chunks,
            "adopted_bytes": server.adopted_bytes,
            "adopted_in_s": round(server.adopted_in_s, 3),
        },
        "l1": l1(status, stats),
        "hits": hits(stats),
        "engines": [engine(one) for one in status.engines if one.state != "operator"],
        "engines_more": status.engines_more,
        "tiers": [_plain(one) for one in status.tiers],
        "copiers": [_plain(one) for one in status.copiers],
        "namespaces": [
            {**_plain(one), "fingerprint": one.fingerprint.hex()} for one in status.namespaces
        ],
        "namespaces_more": status.namespaces_more,
        "latency": {
            name: latency(status.latency_bounds_us, one) for name, one in status.latency.items()
        },
        "slow": [slow(one) for one in status.slow],
    }


def reasons(status: StatusReply, stats: Mapping[str, int]) -> list[str]:
    """What is not as it should be, one line each; empty where all is well.

    It is what ``/readyz`` fails for.

    Args:
        status: a server's answer to STATUS.
        stats: its counters.
    """
    found = ["the server is ending"] if status.server.draining else []
    if stats.get("extents_failed", 0) and not stats.get("extents", 0):
        found.append("the arena's file system is full: not a single extent could be made")
    if stats.get("complaint_socket_removed", 0):
        found.append(
            "a socket's file was removed: engines that are connected go on, others find no server "
            "until it is restarted"
        )
    for copier in status.copiers:
        if copier.state not in ("up", "ending"):
            found.append(f"the copier of {copier.name} is {copier.state}: nothing is saved")
        elif copier.silent_s >= COPIER_SILENT_S:
            found.append(
                f"the copier of {copier.name} has not answered for {copier.silent_s:.0f} s: "
                "nothing is saved, and no engine is let in, until it does or is replaced"
            )
        if copier.stuck:
            found.append(f"{copier.stuck} copiers of {copier.name} were killed and do not end")
    for tier in status.tiers:
        if tier.state != "up":
            text = {"breaker open": "left alone for a while, after failures"}
            why = f": {tier.why}" if tier.why else ""
            found.append(f"tier {tier.name} is {text.get(tier.state, tier.state)}{why}")
        elif tier.silent_s >= TIER_SILENT_S:
            found.append(
                f"tier {tier.name} has not answered for {tier.silent_s:.0f} s: nothing is read or "
                "written there until it does, or its porter is replaced"
            )
    return found


def complaints(stats: Mapping[str, int]) -> dict[str, int]:
    """How often which kind of trouble has been in the log since the server's start."""
    start = "complaint_"
    return {name[len(start) :]: count for name, count in stats.items() if name.startswith(start)}


def l1(status: StatusReply, stats: Mapping[str, int]) -> dict[str, int]:
    """The cache in memory: bytes and chunks; its fill is ``held_bytes`` of ``capacity_bytes``.

    What made room is in ``evicted_chunks`` where it was for others of its namespace, and in
    ``reclaimed_chunks`` where it went with its extent, for another namespace or a lowered limit.
    """
    of_namespaces = sum(one.bytes for one in status.namespaces)  # of a server of before
    return {
        "capacity_bytes": stats.get("arena_bytes", 0),
        "held_bytes": stats.get("arena_held_bytes", of_namespaces),
        "extent_bytes": stats.get("arena_used_bytes", 0),
        "quarantined_bytes": stats.get("arena_quarantined_bytes", 0),
        "chunks": stats.get("chunks", 0),
        "pinned_chunks": sum(one.pinned_chunks for one in status.namespaces),
        "evicted_chunks": stats.get("evicted_chunks", 0),
        "reclaimed_chunks": stats.get("reclaimed_chunks", 0),
    }


def hits(stats: Mapping[str, int]) -> dict[str, int]:
    """How much of what was asked for was there, since the server's start.

    Returns:
        Chunks, and tokens as docs/observability.md has them; hits by tier are ``hit_tokens_…``.
    """
    return {
        "requested_chunks": stats.get("lookup_chunks", 0),
        "hit_chunks": stats.get("hit_chunks", 0),
        "retrieved_chunks": stats.get("retrieved_chunks", 0),
        "published_chunks": stats.get("published_chunks", 0),
        "requested_tokens": stats.get("requested_tokens", 0),
        "hit_tokens_l1": 0,
        **{name: value for name, value in stats.items() if name.startswith("hit_tokens_")},
        "loaded_tokens": stats.get("loaded_tokens", 0),
    }


def engine(one: EngineStatus) -> dict[str, Any]:
    """One engine for programs."""
    return {
        **_plain(one),
        "instance": one.instance.hex(),
        "namespaces": [name.hex() for name in one.namespaces],
    }


def latency(bounds_us: Sequence[int], one: OpLatency) -> dict[str, float | int]:
    """How long one operation took, in microseconds.

    Returns:
        ``count``, ``mean_us``, and the upper ends of the buckets that median and 99th percentile
        are in (of the last bucket, which has none, that of the one before).
    """
    found: dict[str, float | int] = {
        "count": one.count,
        "mean_us": round(one.sum_us / one.count, 1) if one.count else 0,
    }
    for share in QUANTILES:
        found[f"p{share * 100:g}_us"] = _quantile(bounds_us, one.buckets, share)
    return found


def slow(one: SlowRequest) -> dict[str, Any]:
    """One slow request for programs."""
    return {
        **_plain(one),
        "instance": one.instance.hex(),
        "fingerprint": one.fingerprint.hex(),
    }


def _quantile(bounds_us: Sequence[int], buckets: Sequence[int], share: float) -> int:
    total, upto = sum(buckets), 0
    for bound, count in zip(bounds_us, buckets, strict=False):
        upto += count
        if upto >= share * total:
            return bound if total else 0
    return bounds_us[-1] if bounds_us else 0


def _plain(one: Any) -> dict[str, Any]:
    return {name: _rounded(getattr(one, name)) for name in one.__struct_fields__}


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value
