"""The figures of a run: value, what stands beside it, target, verdict, the nearest peer's figure.

Purpose: one place that says what each figure means and when it is good. Must not know: how it was
measured or is shown. Runs in: the benchmark's process.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.bench.samples import Latency, Transfer

LOADS = (0, 50, 80)
"""Shares of the loop thread's time, in percent, that other clients' control traffic takes."""

_PLAIN_NAMES = {"copyto": "np.copyto", "memmove": "ctypes.memmove"}

RATIO_TARGET = 0.85
LOADED_RATIO_TARGET = 0.7
LOOKUP_TARGET_MS = 0.6
LOOKUP_ECHO_TARGET = 3.0
COLD_TARGET = 1.5
PING_ECHO_TARGET = 2.0
START_TARGET_S = 1.5
IDLE_TARGET_MIB = 120.0
IDLE_MAIN_TARGET_MIB = 80.0


@dataclass(frozen=True)
class Figure:
    """One line of the report.

    Attributes:
        name: as in docs/benchmarks.md.
        value: measured.
        unit: of ``value``; empty for ratios.
        beside: what it is to be read against, measured in the same run.
        target: in words; empty when the figure is for information.
        met: verdict, or None without a target.
        peer: LMCache's figure for the same, measured apart (docs/benchmarks.md); may be empty.
    """

    name: str
    value: float
    unit: str
    beside: str = ""
    target: str = ""
    met: bool | None = None
    peer: str = ""


@dataclass(frozen=True)
class Bandwidth:
    """Stores and retrieves under one condition.

    Attributes:
        store: pool to arena.
        retrieve: arena to pool.
        loop_share: share of one CPU that the server's loop thread used meanwhile, 0..1.
    """

    store: Transfer
    retrieve: Transfer
    loop_share: float


@dataclass(frozen=True)
class Measured:
    """Everything a run took down.

    Attributes:
        warm: 32 pages a request on warm slots, by load in percent.
        single: 1 page a request.
        cold: first pass over a new arena.
        fill_s: from the first STORE until that arena was full.
        fill_bytes: what it took to fill it.
        ping: PING through the adapter's channel.
        echo: a bare echo of as many bytes.
        lookup: LOOKUP of 4096 held blocks, hashes ready.
        lookup_echo: a bare echo of as many bytes.
        lookup_cold: from a Python list never hashed before.
        hashing: list to int32 and hashing alone, of as fresh a list.
        start_s: from exec to the first PING that was answered.
        idle_rss_mib: all processes of the server.
        idle_main_rss_mib: its main process.
        heavy: libraries mapped that should not be.
    """

    warm: dict[int, Bandwidth]
    single: Bandwidth
    cold: Bandwidth
    fill_s: float
    fill_bytes: int
    ping: Latency
    echo: Latency
    lookup: Latency
    lookup_echo: Latency
    lookup_cold: Latency
    hashing: Latency
    start_s: float
    idle_rss_mib: float
    idle_main_rss_mib: float
    heavy: tuple[str, ...]


def figures(measured: Measured) -> list[Figure]:
    """Judges a run.

    Args:
        measured: what it took down.

    Returns:
        One figure per line of the report, in order.
    """
    return [*_bandwidth(measured), *_latency(measured), *_footprint(measured)]


def missed(found: list[Figure]) -> list[Figure]:
    """Those that have a target and missed it."""
    return [figure for figure in found if figure.met is False]


def _bandwidth(measured: Measured) -> list[Figure]:
    idle = measured.warm[0]
    fastest = max((idle.store, idle.retrieve), key=lambda one: one.memcpy_gbps)
    lines = [
        Figure("memcpy_gbps", fastest.memcpy_gbps, "GB/s", _PLAIN_NAMES[fastest.memcpy_method])
    ]
    for load, found in measured.warm.items():
        lines += _pair(_under(load), found, _ratio_target(load), load)
    lines += _pair("_1_page", measured.single, None, None)
    lines += _pair("_cold", measured.cold, None, None)
    return lines


def _under(load: int) -> str:
    return f"_{load}_load" if load else ""


def _ratio_target(load: int) -> float | None:
    return {0: RATIO_TARGET, 50: LOADED_RATIO_TARGET}.get(load)


def _pair(suffix: str, found: Bandwidth, target: float | None, load: int | None) -> list[Figure]:
    lines = []
    peers = {"store": "0.11", "retrieve": "0.30"} if load == 0 else {}
    for direction, one in (("store", found.store), ("retrieve", found.retrieve)):
        beside = f"memcpy {one.memcpy_gbps:.2f}"
        if load:
            beside += f", loop {found.loop_share:.0%}"
        lines.append(Figure(f"{direction}{suffix}_gbps", one.gbps, "GB/s", beside))
        lines.append(
            Figure(
                f"{direction}{suffix}_ratio",
                one.ratio,
                "",
                f"lower quartile {one.ratio_low:.2f}",
                "" if target is None else f"≥ {target:g}",
                None if target is None else one.ratio >= target,
                peers.get(direction, ""),
            )
        )
    return lines


def _latency(measured: Measured) -> list[Figure]:
    ping, echo = measured.ping.p50_ms, measured.echo.p50_ms
    lookup, lookup_echo = measured.lookup.p50_ms, measured.lookup_echo.p50_ms
    cold, hashing = measured.lookup_cold.p50_ms, measured.hashing.p50_ms
    return [
        Figure(
            "ping_p50_ms",
            ping,
            "ms",
            f"echo {echo:.3f}",
            f"≤ {PING_ECHO_TARGET:g} × echo",
            ping <= PING_ECHO_TARGET * echo,
            "0.35–0.61",
        ),
        Figure("echo_p50_ms", echo, "ms"),
        Figure(
            "lookup_p50_ms",
            lookup,
            "ms",
            f"echo {lookup_echo:.3f}",
            f"≤ {LOOKUP_TARGET_MS:g} or ≤ {LOOKUP_ECHO_TARGET:g} × echo",
            lookup <= max(LOOKUP_TARGET_MS, LOOKUP_ECHO_TARGET * lookup_echo),
            "23.3",
        ),
        Figure("lookup_echo_p50_ms", lookup_echo, "ms"),
        Figure(
            "lookup_cold_p50_ms",
            cold,
            "ms",
            f"list + hashing {hashing:.2f}",
            f"≤ {COLD_TARGET:g} × list + hashing",
            cold <= COLD_TARGET * hashing,
            "23.3",
        ),
        Figure("hashing_p50_ms", hashing, "ms"),
    ]


def _footprint(measured: Measured) -> list[Figure]:
    heavy = ", ".join(measured.heavy) or "none"
    return [
        Figure(
            "start_s",
            measured.start_s,
            "s",
            "exec to first PING",
            f"≤ {START_TARGET_S:g}",
            measured.start_s <= START_TARGET_S,
            "5.1–5.7",
        ),
        Figure("fill_s", measured.fill_s, "s", f"{measured.fill_bytes / (1 << 20):.0f} MiB stored"),
        Figure(
            "idle_rss_mib",
            measured.idle_rss_mib,
            "MiB",
            "all processes",
            f"≤ {IDLE_TARGET_MIB:g}",
            measured.idle_rss_mib <= IDLE_TARGET_MIB,
            "394",
        ),
        Figure(
            "idle_main_rss_mib",
            measured.idle_main_rss_mib,
            "MiB",
            "main process",
            f"≤ {IDLE_MAIN_TARGET_MIB:g}",
            measured.idle_main_rss_mib <= IDLE_MAIN_TARGET_MIB,
        ),
        Figure(
            "heavy_libraries",
            float(len(measured.heavy)),
            "",
            heavy,
            "0: no torch, no CUDA",
            not measured.heavy,
        ),
    ]
