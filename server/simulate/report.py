"""A simulation as a table for people.

Must not know: how it was found. Runs in: the process of the command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from server.sizes import format_size

_WIDTH = 26


def table(document: dict[str, Any]) -> str:
    """Lines of name and value.

    Args:
        document: from ``replay.run``.
    """
    rows = [*_what(document), *_hits(document), *_tiers(document), *_times(document)]
    return "\n".join(f"{name:<{_WIDTH}}{value}".rstrip() for name, value in rows)


def _what(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    trace, settings = document["trace"], document["settings"]
    yield (
        "trace",
        f"{trace['requests']:,} requests of {trace['sessions']:,} sessions in "
        f"{trace['seconds']:,.0f} s; {format_size(trace['working_set_bytes'])} of KV",
    )
    yield (
        "replayed",
        f"{settings['copies']} x over {settings['nodes']} nodes, by {settings['route']}",
    )
    yield (
        "chunk",
        f"{settings['chunk_tokens']:,} tokens, {format_size(settings['chunk_bytes'])}",
    )
    yield "l1", f"{_size(settings, settings['l1_chunks'])} a node"
    for tier in settings["tiers"]:
        where = "for all nodes" if tier["shared"] else "a node"
        yield (
            tier["name"],
            f"{_size(settings, tier['chunks'])} {where}, {tier['policy']}, "
            f"read {tier['read_gbps']:g} and write {tier['write_gbps']:g} GB/s a node",
        )


def _size(settings: dict[str, Any], chunks: int) -> str:
    return format_size(chunks * settings["chunk_bytes"])


def _hits(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "", ""
    yield "hit ratio", f"{document['hit_ratio']:.4f} of {document['chunks']:,} chunks"
    for source, ratio in document["hit_ratio_by_tier"].items():
        yield f"  {source}", f"{ratio:.4f}"
    for reason, count in document["miss_chunks"].items():
        if count:
            yield f"missed: {reason}", f"{count / document['chunks']:.4f}"


def _tiers(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, tier in document["tiers"].items():
        yield "", ""
        for key in ("promoted", "written", "dropped"):
            yield f"{name} {key}", format_size(tier[f"{key}_bytes"])
        for way in ("read", "write"):
            yield (
                f"{name} {way} GB/s",
                f"{tier[f'{way}_gbps']:.3f} in all, {tier[f'{way}_gbps_peak']:.3f} in the busiest "
                f"minute; {tier[f'{way}_gbps_of_a_node']:.3f} and "
                f"{tier[f'{way}_gbps_of_a_node_peak']:.3f} a node",
            )


def _times(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    ttft, rates = document["ttft"], document["rates"]
    yield "", ""
    yield (
        "requests a second",
        f"{rates['requests_s']:.3f}, {rates['requests_s_peak']:.3f} in the busiest minute",
    )
    yield "prefill busy", f"{rates['prefill_busy']:.1%} of one engine a node"
    if document["tiers"]:
        yield (
            "waiting for tiers",
            f"{rates['waiting_busy']:.1%} of one engine a node, "
            f"{ttft['waited_mean_s']:.3f} s a request",
        )
    yield (
        "modelled TTFT",
        f"mean {ttft['mean_s']:.3f} s, p50 {ttft['p50_s']:.3f}, p99 {ttft['p99_s']:.3f}; "
        f"without a cache {ttft['cold_mean_s']:.3f}: {ttft['speedup']:.2f} x",
    )
    yield "prompt / computed tokens", f"{document['token_speedup']:.2f} x"
