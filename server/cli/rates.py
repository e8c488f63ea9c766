"""What happened between two looks at a server: hits, chunks and bytes a second.

Must not know: how a server is asked, how it is shown. Runs in: the process of the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.messages import StatusReply
from protocol.quotas import QuotaRow

GONE_S = 60.0
"""For so long an engine that went is told of."""

_SECONDS_DIGITS = 3


@dataclass(frozen=True)
class Moment:
    """One look.

    Attributes:
        time_s: when, on a monotonic clock.
        status: the answer to STATUS.
        stats: the counters, asked right after.
        quotas: of tenants that have one.
    """

    time_s: float
    status: StatusReply
    stats: Mapping[str, int]
    quotas: Sequence[QuotaRow] = ()


class Departures:
    """Engines that were there and are not any more: whoever looks a moment later sees that, too."""

    def __init__(self) -> None:
        self._here: dict[tuple[bytes, int], str] = {}
        self._gone: dict[tuple[bytes, int], tuple[str, float]] = {}

    def note(self, now: Moment) -> list[dict[str, Any]]:
        """Takes a look in.

        Args:
            now: the look.

        Returns:
            Of each that went within ``GONE_S``: ``client``, ``pid`` and ``gone_s``.
        """
        status = now.status
        all_here = {(one.instance, one.pid) for one in status.engines}
        here = {
            (one.instance, one.pid): one.client for one in status.engines if one.state != "operator"
        }
        if not status.engines_more:  # else one that is not listed may be there all the same
            # A command is seen to be one with its first question only, a moment after it came.
            left = self._here.keys() - all_here
            self._gone |= {key: (self._here[key], now.time_s) for key in left}
        self._here = here
        self._gone = {
            key: (client, at_s)
            for key, (client, at_s) in self._gone.items()
            if key not in here and now.time_s - at_s <= GONE_S
        }
        return [
            {"client": client, "pid": key[1], "gone_s": round(now.time_s - at_s, _SECONDS_DIGITS)}
            for key, (client, at_s) in self._gone.items()
        ]


def between(before: Moment, now: Moment) -> dict[str, Any]:
    """Rates of the time between two looks at one server.

    Args:
        before: the first.
        now: the second; where it is of another server (it was started anew meanwhile), all it
            counted counts.

    Returns:
        ``seconds``; ``requested_chunks``, ``hit_chunks``, ``loaded_chunks``, ``saved_chunks``,
        ``evicted_chunks`` and ``reclaimed_chunks``, counts; ``saved_bytes_s`` and
        ``loaded_bytes_s`` (chunks named for loading, times the mean chunk of L1); ``engines`` and
        ``tiers``, a row each.
    """
    is_same = before.status.server.epoch == now.status.server.epoch
    old = before.stats if is_same else {}
    seconds = max(1e-3, now.time_s - before.time_s)

    def grown(name: str) -> int:
        return max(0, now.stats.get(name, 0) - old.get(name, 0))

    loaded = grown("retrieved_chunks")
    return {
        "seconds": round(seconds, _SECONDS_DIGITS),
        "requested_chunks": grown("lookup_chunks"),
        "hit_chunks": grown("hit_chunks"),
        "loaded_chunks": loaded,
        "saved_chunks": grown("published_chunks"),
        "evicted_chunks": grown("evicted_chunks"),
        "reclaimed_chunks": grown("reclaimed_chunks"),
        "saved_bytes_s": round(grown("copied_bytes") / seconds),
        "loaded_bytes_s": round(loaded * _chunk_bytes(now.status) / seconds),
        "engines": _engines(before.status if is_same else None, now.status),
        "tiers": [
            {
                "name": one.name,
                "state": one.state,
                "why": one.why,
                "silent_s": round(one.silent_s, _SECONDS_DIGITS),
                "used_bytes": one.used_bytes,
                "capacity_bytes": one.capacity_bytes,
                "get_bytes_s": round(grown(f"tier_{one.name}_get_bytes") / seconds),
                "put_bytes_s": round(grown(f"tier_{one.name}_put_bytes") / seconds),
                "hit_chunks": grown(f"tier_{one.name}_hit_chunks"),
                "errors": grown(f"tier_{one.name}_errors"),
                "waiting_puts": one.waiting_puts,
            }
            for one in now.status.tiers
        ],
    }


def _chunk_bytes(status: StatusReply) -> float:
    chunks = sum(one.chunks for one in status.namespaces)
    return sum(one.bytes for one in status.namespaces) / chunks if chunks else 0.0


def _engines(before: StatusReply | None, now: StatusReply) -> list[dict[str, Any]]:
    """Those that are there now, with what they asked for since."""
    old = {(one.instance, one.pid): one for one in (before.engines if before else ())}
    rows = []
    for one in now.engines:
        if one.state == "operator":
            continue
        then = old.get((one.instance, one.pid))
        asked, hit = (then.requested_chunks, then.hit_chunks) if then else (0, 0)
        rows.append(
            {
                "client": one.client,
                "pid": one.pid,
                "state": one.state,
                "idle_s": round(one.idle_s, _SECONDS_DIGITS),
                "sessions": one.sessions,
                "leases": one.leases,
                "requested_chunks": max(0, one.requested_chunks - asked),
                "hit_chunks": max(0, one.hit_chunks - hit),
            }
        )
    return rows
