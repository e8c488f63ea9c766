"""The table of figures says what STATS tells: names taken apart, none twice, one line each."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from protocol.figures import FAMILIES, FIGURES, TIER_FIGURES, Found, Kind, Unit, find


@pytest.mark.parametrize("name", FIGURES)
def test_a_single_figure_is_its_own_family(name: str) -> None:
    assert find(name) == Found(FIGURES[name], name)


@pytest.mark.parametrize("end", TIER_FIGURES)
@pytest.mark.parametrize("tier", ["disk", "disk2", "no", "a_get", "hit_chunks", "0"])
def test_a_tiers_figure_is_told_from_its_name(end: str, tier: str) -> None:
    assert find(f"tier_{tier}_{end}") == Found(TIER_FIGURES[end], f"tier_{end}", "tier", tier)


def test_no_end_of_a_tiers_figure_is_the_end_of_another() -> None:
    pairs = [(one, two) for one in TIER_FIGURES for two in TIER_FIGURES if one != two]
    assert [pair for pair in pairs if f"_{pair[0]}".endswith(f"_{pair[1]}")] == []


@pytest.mark.parametrize(
    ("name", "family", "label", "value"),
    [
        *(
            (f"error_{code.name.lower()}", "error", "code", code.name.lower())
            for code in (ErrorCode.NO_ROOM, ErrorCode.BUSY)
        ),
        ("miss_chunks_cold", "miss_chunks", "reason", "cold"),
        ("complaint_peer_dropped", "complaint", "kind", "peer_dropped"),
        ("copier_pid_GPU-1-2", "copier_pid", "device", "GPU-1-2"),
        ("copier_device_bytes_GPU-1", "copier_device_bytes", "device", "GPU-1"),
        ("arena_bytes_node_1", "arena_bytes_node", "node", "1"),
    ],
)
def test_families_and_their_labels(name: str, family: str, label: str, value: str) -> None:
    assert find(name) == Found(FAMILIES[family][1], family, label, value)


@pytest.mark.parametrize("name", ["", "error", "error_", "tier_up", "tier__up", "tier_x", "new"])
def test_names_of_tomorrow_are_none_of_ours(name: str) -> None:
    assert find(name) is None


def test_each_says_what_it_is_in_one_line_and_its_unit() -> None:
    every = {**FIGURES, **TIER_FIGURES, **{name: one for name, (_, one) in FAMILIES.items()}}
    for name, figure in every.items():
        assert figure.help[0].isalnum()
        assert "\n" not in figure.help
        assert not figure.help.endswith("."), name
        assert (figure.unit is Unit.BYTES) == ("bytes" in name), name
        is_time = name.endswith("_us") and figure.kind is Kind.GAUGE
        assert (figure.unit is Unit.MICROSECONDS) == (is_time or name in ("get_us", "put_us")), name
