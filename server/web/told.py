"""What ``/api/status`` tells the dashboard, as plain values.

Fingerprints are short, texts are as the server gave them: the page shows them as text, never as
markup. Must not know: HTTP, how it is drawn. Runs in: the threads that serve.
"""

from __future__ import annotations

from typing import Any

import msgspec

from protocol.messages import StatusReply
from protocol.quotas import QuotaRow, TenantKind
from protocol.status import COPIER_SILENT_S, SLOW_US, TIER_SILENT_S, SlowRequest
from server.remarks import is_at_limit, pinned_bytes, remarks
from server.web import health, latency
from server.web.history import FIGURES, TIER_FIGURES, History, Point
from server.web.watch import EVERY_S, Answer, View

SHORT_BYTES = 6
"""Of a fingerprint: enough to tell the namespaces of a node apart."""

Plain = dict[str, Any]

_KINDS = {TenantKind.NAMESPACE: "namespace", TenantKind.SALT: "salt"}


def short(fingerprint: bytes) -> str:
    """A fingerprint for people and for labels: its first twelve hex digits."""
    return fingerprint[:SHORT_BYTES].hex()


def tenant(row: QuotaRow) -> tuple[str, str]:
    """Whose quota a row is: the kind, and the fingerprint or the salt's digest, shortened."""
    return _KINDS[row.kind], short(row.tenant)


def place_of(row: QuotaRow) -> str:
    """Where a quota holds: ``l1``, or the tier's name, as the figures of hits have them."""
    return row.tier or "l1"


def told(view: View, history: History, now_s: float, since_s: float) -> Plain:
    """Everything that the page shows.

    Args:
        view: what is known.
        history: the last hour.
        now_s: of the wall clock, seconds since 1970.
        since_s: points later than this are told.
    """
    good = view.good
    return {
        "now": now_s,
        "answers": not view.why,
        "why": view.why,
        "asked_at": view.latest.clock_s if view.latest is not None else None,
        "answered_at": good.clock_s if good is not None else None,
        "checks": [
            {"name": check.name, "good": check.is_good, "text": check.text}
            for check in health.ready(view)
        ],
        "remarks": remarks(good.status, good.values, good.quotas)
        if good is not None and good.status is not None
        else [],
        "stats": dict(sorted(good.values.items())) if good is not None else {},
        "status": _status(good, history) if good is not None and good.status is not None else None,
        "quotas": [_quota(row) for row in good.quotas] if good is not None else [],
        "history": {
            "every_s": EVERY_S,
            "figures": FIGURES,
            "tier_figures": TIER_FIGURES,
            "points": [_point(point) for point in history.since(since_s)],
        },
    }


def _point(point: Point) -> list[Any]:
    if not point.is_answered:
        return [point.clock_s]
    return [point.clock_s, point.figures, point.tiers]


def _status(answer: Answer, history: History) -> Plain:
    status = answer.status
    assert status is not None
    return {
        "server": _fields(status.server),
        "engines": [
            {**_fields(engine), "namespaces": [short(name) for name in engine.namespaces]}
            for engine in status.engines
        ],
        "engines_more": status.engines_more,
        "namespaces": [
            {**_fields(space), "fingerprint": short(space.fingerprint)}
            for space in status.namespaces
        ],
        "namespaces_more": status.namespaces_more,
        "pinned_bytes": pinned_bytes(status.namespaces),
        "prefixes": _prefixes(status),
        "tiers": [_fields(tier) for tier in status.tiers],
        "copiers": [_fields(copier) for copier in status.copiers],
        "latency": _latency(answer, status, history),
        "silent": {"copier_s": COPIER_SILENT_S, "tier_s": TIER_SILENT_S},
        "slow": [_slow(row) for row in status.slow],
    }


def _prefixes(status: StatusReply) -> list[Plain]:
    """The hot ones, each with its model's name where that is told."""
    names = {space.fingerprint: space.name for space in status.namespaces}
    return [
        {
            **_fields(row),
            "fingerprint": short(row.fingerprint),
            "name": names.get(row.fingerprint, ""),
        }
        for row in status.prefixes
    ]


def _slow(row: SlowRequest) -> Plain:
    """As the row is; a fingerprint is short, and a number that a script would round is text."""
    request = str(row.request) if row.request >= 0 else ""
    return {**_fields(row), "request": request, "fingerprint": short(row.fingerprint)}


def _quota(row: QuotaRow) -> Plain:
    kind, name = tenant(row)
    sizes = {"held_bytes": row.held_bytes, "floor_bytes": row.floor_bytes}
    where = {"kind": kind, "tenant": name, "tier": place_of(row)}
    limit = {"limit_bytes": row.limit_bytes, "at_limit": is_at_limit(row)}
    return {**where, **sizes, **limit}


def _fields(row: msgspec.Struct) -> Plain:
    values = ((name, getattr(row, name)) for name in row.__struct_fields__)
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in values}


def _latency(answer: Answer, status: StatusReply, history: History) -> Plain:
    """By operation: of its whole life, and of the last five minutes."""
    recent_s, before = history.buckets_before(answer)
    bounds = status.latency_bounds_us
    told: Plain = {}
    for op, row in status.latency.items():
        recent = latency.minus(row.buckets, before.get(op, ()))
        told[op] = {
            "count": row.count,
            "mean_us": row.sum_us / row.count if row.count else None,
            "p50_us": latency.quantile_us(bounds, recent, 0.5),
            "p99_us": latency.quantile_us(bounds, recent, 0.99),
            "recent": sum(recent),
            "slow": latency.slow(bounds, recent),
            "slow_ever": latency.slow(bounds, row.buckets),
        }
    return {"recent_s": recent_s, "slow_us": SLOW_US, "ops": told}
