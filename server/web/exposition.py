"""``/metrics``: what STATS and STATUS said, as Prometheus reads it.

Written by Prometheus' own client from what was told a second ago at most, so a scrape costs the
server nothing. Without an answer there is ``kvkeep_up 0`` and no figure: old ones would look like
a server at rest. Labels name tiers, reasons, devices, models and shortened fingerprints; no salt,
no key. Counters and histograms that have not begun yet are told as 0, so that their first step is
one. Must not know: HTTP. Runs in: the threads that serve.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from protocol.errors import ErrorCode
from protocol.figures import COMPLAINTS, FIGURES, TIER_FIGURES, Kind
from protocol.messages import Op, StatusReply
from protocol.quotas import QuotaRow
from protocol.status import (
    COPIER_SILENT_S,
    ENGINE_STATES,
    EngineStatus,
    NamespaceStatus,
    OpLatency,
)
from server.web.latency import cumulative
from server.web.names import PREFIX, Placed, place
from server.web.told import place_of, short, tenant
from server.web.watch import Answer, View

MAX_ROWS = 64
"""Engines, and namespaces, that have series of their own; ``…_unlisted`` counts the others."""

MISS_REASONS = ("cold", "evicted", "incomplete", "deadline", "corrupt", "tier_error", "no_room")


def exposed(view: View, accept: str) -> tuple[str, bytes]:
    """Everything, in the format that was asked for.

    Args:
        view: what is known.
        accept: header of that name.

    Returns:
        Content type and content.
    """
    encode, kind = choose_encoder(accept)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Told(view))
    return kind, encode(registry)


class _Told(Collector):
    """Turns a view into metrics, once."""

    def __init__(self, view: View) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        """The metrics of one scrape."""
        latest = self._view.latest
        is_up = not self._view.why
        yield _gauge("up", "1 while the server answers", int(is_up))
        if latest is None or not is_up:
            return
        age_s = max(0.0, time.monotonic() - latest.at_s)
        yield _gauge("answer_age_seconds", "Age of what is told here", age_s)
        yield _gauge("answer_seconds", "Time that the server took to tell it", latest.took_s)
        yield from _stats(_with_zeros(latest))
        if latest.status is not None:
            yield from _status(latest.status)
        # A row for each tenant and tier, 128 at most; beginnings of two names might be the same.
        quotas = {(*tenant(row), place_of(row)): row for row in latest.quotas}
        for name, text, read in _QUOTA:
            rows = [(key, read(row)) for key, row in sorted(quotas.items())]
            yield _rows(f"quota_{name}", text, ("kind", "tenant", "tier"), rows)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value)


def _rows(
    name: str, text: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]
) -> Metric:
    is_counter = name.endswith("_total")
    made = (CounterMetricFamily if is_counter else GaugeMetricFamily)(
        PREFIX + name, text, labels=labels
    )
    for values, value in rows:
        made.add_metric(values, value)
    return made


# --- STATS -------------------------------------------------------------------------------------


def _with_zeros(answer: Answer) -> dict[str, int]:
    """What STATS told, and 0 for counters that it does not have because nothing happened yet."""
    values = {name: 0 for name, figure in FIGURES.items() if figure.kind is Kind.COUNTER}
    values.update({f"error_{code.name.lower()}": 0 for code in ErrorCode})
    values.update({f"miss_chunks_{reason}": 0 for reason in MISS_REASONS})
    values.update({f"complaint_{kind}": 0 for kind in COMPLAINTS})
    values["hit_tokens_l1"] = 0
    for tier in answer.status.tiers if answer.status is not None else ():
        counters = (end for end, figure in TIER_FIGURES.items() if figure.kind is Kind.COUNTER)
        values.update({f"tier_{tier.name}_{end}": 0 for end in counters})
        values[f"hit_tokens_{tier.name}"] = 0
    values.update(answer.values)
    return values


def _stats(values: Mapping[str, int]) -> Iterable[Metric]:
    families: dict[str, Metric] = {}
    for name, value in values.items():
        placed = place(name)
        if placed is None:
            continue  # of a later server; /api/status and STATS have it
        family = families.get(placed.family)
        if family is None:
            family = families[placed.family] = _family(placed)
        suffix = "_total" if placed.is_counter else ""
        labels = {placed.label: placed.value} if placed.label else {}
        scaled = value * placed.scale if placed.scale != 1 else value
        family.add_sample(placed.family + suffix, labels, scaled)
    return families.values()


def _family(placed: Placed) -> Metric:
    return Metric(placed.family, placed.help, "counter" if placed.is_counter else "gauge")


# --- STATUS ------------------------------------------------------------------------------------


_ENGINE: tuple[tuple[str, str, Callable[[EngineStatus], float]], ...] = (
    ("up", "1 while a process is registered and served", lambda row: row.state == "serving"),
    ("idle_seconds", "Since a process was last heard", lambda row: row.idle_s),
    ("leases", "Leases of an engine's requests", lambda row: row.leases),
    (
        "quarantined_bytes",
        "Extents taken back that a process has not let go of",
        lambda row: row.quarantined_bytes,
    ),
    (
        "requested_chunks_total",
        "Chunks that a process asked for",
        lambda row: row.requested_chunks,
    ),
    (
        "hit_chunks_total",
        "Chunks that a process was offered",
        lambda row: row.hit_chunks,
    ),
)
_NAMESPACE: tuple[tuple[str, str, Callable[[NamespaceStatus], float]], ...] = (
    ("bytes", "Bytes of L1 that hold chunks of a namespace", lambda row: row.bytes),
    ("chunks", "Chunks of a namespace in L1", lambda row: row.chunks),
    (
        "pinned_chunks",
        "Chunks of a namespace that operators keep",
        lambda row: row.pinned_chunks,
    ),
    ("chunk_tokens", "Tokens of a chunk of a namespace", lambda row: row.chunk_tokens),
    ("idle_seconds", "Since a namespace was last used", lambda row: row.idle_s),
)

_QUOTA: tuple[tuple[str, str, Callable[[QuotaRow], float]], ...] = (
    (
        "held_bytes",
        "Bytes that a tenant holds where it has a quota; of a lower tier as of its last look",
        lambda row: row.held_bytes,
    ),
    ("floor_bytes", "Bytes that others leave to a tenant", lambda row: row.floor_bytes),
    ("limit_bytes", "Most that a tenant may hold; 0 for no limit", lambda row: row.limit_bytes),
)


def _status(status: StatusReply) -> Iterator[Metric]:
    server = status.server
    yield _rows("build_info", "Version of the server", ("version",), [((server.version,), 1)])
    yield _gauge("uptime_seconds", "Since the server was started", server.uptime_s)
    yield _gauge("draining", "1 while the server is about to end", int(server.draining))
    yield _latency(status)
    yield from _engines(status)
    yield from _namespaces(status)
    up = [
        ((row.name,), row.state == "up" and row.silent_s < COPIER_SILENT_S)
        for row in status.copiers
    ]
    yield _rows("copier_up", "1 while a copier works, and answers", ("copier",), up)
    silent = [((row.name,), row.silent_s) for row in status.tiers]
    text = "For how long a tier has had work and none of it ended; from 7 on /readyz says so"
    yield _rows("tier_silent_seconds", text, ("tier",), silent)
    warned = [((row.name,), int(bool(row.warning))) for row in status.tiers]
    text = "1 while a tier that serves says that it may be of little use; status says why"
    yield _rows("tier_warned", text, ("tier",), warned)
    restarts = [((row.name,), row.restarts) for row in status.copiers]
    yield _rows("copier_restarts_total", "Times that another was started", ("copier",), restarts)


def _latency(status: StatusReply) -> Metric:
    text = "Time from a request's receipt to its answer, waits that were asked for included"
    made = HistogramMetricFamily(PREFIX + "request_seconds", text, labels=("op",))
    bounds = status.latency_bounds_us
    none = OpLatency(buckets=(0,) * (len(bounds) + 1), sum_us=0, count=0)
    # STATUS leaves out what was never answered; a server of another version may know others.
    told = {**{op.name: none for op in Op}, **status.latency}
    for op, row in told.items():
        buckets = cumulative(bounds, row.buckets)
        made.add_metric((op,), buckets, row.sum_us / 1e6)
    return made


def _engines(status: StatusReply) -> Iterator[Metric]:
    states = Counter(row.state for row in status.engines)
    counts = [((state,), states[state]) for state in ENGINE_STATES]
    text = "Processes on the side socket, by state; an operator's is one"
    yield _rows("engines", text, ("state",), counts)
    engines = [row for row in status.engines if row.state != "operator"]
    listed = {(short(row.instance), row.client, str(row.pid)): row for row in engines[:MAX_ROWS]}
    unlisted = len(engines) - len(listed) + status.engines_more
    yield _gauge("engines_unlisted", "Processes without series of their own", unlisted)
    for name, text, read in _ENGINE:
        rows = [(key, read(row)) for key, row in listed.items()]
        yield _rows(f"engine_{name}", text, ("engine", "client", "pid"), rows)


def _namespaces(status: StatusReply) -> Iterator[Metric]:
    listed = {(short(row.fingerprint), row.name): row for row in status.namespaces[:MAX_ROWS]}
    unlisted = len(status.namespaces) - len(listed) + status.namespaces_more
    yield _gauge("namespaces_unlisted", "Namespaces without series of their own", unlisted)
    for name, text, read in _NAMESPACE:
        rows = [(key, read(row)) for key, row in listed.items()]
        yield _rows(f"namespace_{name}", text, ("namespace", "model"), rows)
