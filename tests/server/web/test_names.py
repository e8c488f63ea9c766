"""Every figure of STATS has one place in Prometheus, and no two the same."""

from __future__ import annotations

import re

import pytest

from protocol.figures import FAMILIES, FIGURES, TIER_FIGURES, Kind
from server.web.names import place

EVERY = [*FIGURES, *(f"{name}_x1" for name in FAMILIES), *(f"tier_d_{end}" for end in TIER_FIGURES)]


@pytest.mark.parametrize(
    ("name", "family", "label", "value", "scale"),
    [
        ("requests", "kvkeep_requests", "", "", 1),
        ("loop_burst_p99_us", "kvkeep_loop_burst_p99_seconds", "", "", 1e-6),
        ("loop_bursts_over_300_us", "kvkeep_loop_long_bursts", "", "", 1),
        ("error_no_room", "kvkeep_errors", "code", "no_room", 1),
        ("complaint_peer_dropped", "kvkeep_complaints", "kind", "peer_dropped", 1),
        ("miss_chunks_tier_error", "kvkeep_miss_chunks", "reason", "tier_error", 1),
        ("tier_a_get_get_us", "kvkeep_tier_get_seconds", "tier", "a_get", 1e-6),
        ("tier_disk_used_bytes", "kvkeep_tier_used_bytes", "tier", "disk", 1),
        ("arena_bytes_node_1", "kvkeep_arena_node_bytes", "node", "1", 1),
        ("copier_device_bytes_GPU-1", "kvkeep_copier_device_bytes", "device", "GPU-1", 1),
    ],
)
def test_places(name: str, family: str, label: str, value: str, scale: float) -> None:
    placed = place(name)
    assert placed is not None
    assert (placed.family, placed.label, placed.value, placed.scale) == (
        family,
        label,
        value,
        scale,
    )


def test_no_two_figures_share_a_place() -> None:
    places = [place(name) for name in EVERY]
    assert all(placed is not None for placed in places)
    assert len({placed.family for placed in places if placed is not None}) == len(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_names_follow_the_rules_of_prometheus(name: str) -> None:
    placed = place(name)
    assert placed is not None
    assert re.fullmatch(r"kvkeep_[a-z][a-z0-9_]*", placed.family)
    assert not placed.family.endswith(
        ("_total", "_us", "_ms", "_count", "_sum", "_bucket", "_info")
    )
    if placed.scale != 1:
        assert placed.family.endswith("_seconds")
    if name in FIGURES:
        assert placed.is_counter == (FIGURES[name].kind is Kind.COUNTER)


def test_a_figure_of_a_later_server_has_no_place() -> None:
    assert place("of_tomorrow") is None
