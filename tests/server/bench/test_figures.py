import dataclasses
from typing import Any

import pytest

from server.bench.figures import Bandwidth, Figure, Measured, figures, missed
from server.bench.samples import Latency, Transfer


def bandwidth(ratio: float, share: float = 0.0) -> Bandwidth:
    one = Transfer(10 * ratio, 10.0, "copyto", ratio, ratio - 0.01)
    return Bandwidth(one, one, share)


def latency(p50_ms: float) -> Latency:
    return Latency(p50_ms, 2 * p50_ms, 100)


def measured(**changes: Any) -> Measured:
    good = Measured(
        warm={0: bandwidth(0.9), 50: bandwidth(0.75, 0.5), 80: bandwidth(0.3, 0.8)},
        single=bandwidth(0.4),
        cold=bandwidth(0.2),
        fill_s=1.2,
        fill_bytes=1 << 30,
        ping=latency(0.2),
        echo=latency(0.11),
        lookup=latency(0.5),
        lookup_echo=latency(0.15),
        lookup_cold=latency(6.0),
        hashing=latency(5.0),
        start_s=0.7,
        idle_rss_mib=100.0,
        idle_main_rss_mib=60.0,
        heavy=(),
    )
    return dataclasses.replace(good, **changes)


def by_name(**changes: Any) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures(measured(**changes))}


def test_all_met() -> None:
    assert missed(figures(measured())) == []
    assert len(by_name()) == len(figures(measured())), "no two figures share a name"


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        (
            {"warm": {0: bandwidth(0.84), 50: bandwidth(0.7), 80: bandwidth(0.1)}},
            {"store_ratio", "retrieve_ratio"},
        ),
        (
            {"warm": {0: bandwidth(0.85), 50: bandwidth(0.69), 80: bandwidth(0.1)}},
            {"store_50_load_ratio", "retrieve_50_load_ratio"},
        ),
        ({"ping": latency(0.23)}, {"ping_p50_ms"}),
        ({"lookup": latency(0.61)}, {"lookup_p50_ms"}),
        ({"lookup_cold": latency(7.6)}, {"lookup_cold_p50_ms"}),
        ({"start_s": 1.51}, {"start_s"}),
        ({"idle_rss_mib": 121.0}, {"idle_rss_mib"}),
        ({"idle_main_rss_mib": 81.0}, {"idle_main_rss_mib"}),
        ({"heavy": ("libtorch.so",)}, {"heavy_libraries"}),
    ],
)
def test_each_target_is_missed_by_itself(changes: dict[str, Any], names: set[str]) -> None:
    assert {figure.name for figure in missed(figures(measured(**changes)))} == names


def test_a_slow_machine_is_judged_by_its_echo() -> None:
    found = by_name(lookup=latency(1.4), lookup_echo=latency(0.5))
    assert found["lookup_p50_ms"].met


def test_what_has_no_target_has_no_verdict() -> None:
    found = by_name()
    for name in ("store_80_load_ratio", "store_1_page_ratio", "store_cold_ratio", "fill_s"):
        assert found[name].met is None


def test_memcpy_is_the_fastest_of_both_directions() -> None:
    slow, fast = Transfer(5, 6.0, "memmove", 0.9, 0.9), Transfer(5, 12.0, "copyto", 0.9, 0.9)
    warm = {0: Bandwidth(slow, fast, 0.0)}
    figure = by_name(warm=warm)["memcpy_gbps"]
    assert figure.value == 12.0
    assert "copyto" in figure.beside


def test_the_load_that_was_reached_is_told() -> None:
    assert "loop 50%" in by_name()["store_50_load_gbps"].beside
