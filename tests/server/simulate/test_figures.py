from __future__ import annotations

import pytest

from server.simulate.figures import WINDOW_S, Figures
from server.simulate.node import Miss, Outcome


def figures() -> Figures:
    return Figures(["l1", "disk"], 100, 1_000_000, prefill_tokens_s=1000.0, l1_bytes_s=1e9)


def test_counts_and_ratios() -> None:
    found = figures()
    found.count(0.0, 450, Outcome([2, 1], 1, Miss.COLD, 0.5, [2]))
    found.count(60.0, 150, Outcome([0, 0], 1, Miss.DEADLINE, 1.0, [0]))
    found.count(119.0, 100, Outcome([0, 0], 0, None, 0.0, [0]))
    found.count_write("disk", 70.0)
    found.dropped_chunks["disk"] += 3
    said = found.document(seconds=100.0, nodes=2)
    assert (said["requests"], said["chunks"], said["tokens"]) == (3, 5, 700)
    assert said["computed_tokens"] == 150 + 150 + 100
    assert said["token_speedup"] == 1.75
    assert said["hit_ratio"] == 0.6
    assert said["hit_ratio_by_tier"] == {"l1": 0.4, "disk": 0.2}
    assert said["hit_chunks"] == {"l1": 2, "disk": 1}
    assert said["miss_chunks"] == {
        "cold": 1,
        "evicted": 0,
        "deadline": 1,
        "no_room": 0,
        "last_token": 0,
    }
    assert said["loaded_bytes"] == 3_000_000
    disk = said["tiers"]["disk"]
    assert (disk["promoted_bytes"], disk["written_bytes"]) == (2_000_000, 1_000_000)
    assert disk["dropped_bytes"] == 3_000_000
    rates = said["rates"]
    assert (rates["requests_s"], rates["seconds"]) == (0.03, 100.0)
    assert rates["requests_s_peak"] == pytest.approx(2 / WINDOW_S, abs=1e-3)
    assert rates["prefill_busy"] == 0.002
    assert rates["waiting_busy"] == 1.5 / 200


def test_rates_are_of_all_nodes_and_of_one() -> None:
    found = figures()
    for _ in range(3000):
        found.count(30.0, 100, Outcome([0, 1], 0, None, 0.0, [1]))
    disk = found.document(seconds=10.0, nodes=3)["tiers"]["disk"]
    assert disk["read_gbps"] == 0.3
    assert disk["read_gbps_peak"] == 0.05
    assert disk["read_gbps_of_a_node"] == 0.1
    assert disk["read_gbps_of_a_node_peak"] == pytest.approx(0.05 / 3, abs=1e-4)
    assert disk["write_gbps"] == disk["write_gbps_of_a_node_peak"] == 0


def test_time_to_first_token_is_waiting_loading_and_computing() -> None:
    found = figures()
    found.count(0.0, 450, Outcome([2, 1], 1, Miss.COLD, 0.5, [2]))
    found.count(0.0, 1000, Outcome([0, 0], 10, Miss.COLD, 0.0, [0]))
    ttft = found.document(1.0, 1)["ttft"]
    warm = 0.5 + 0.003 + 0.15
    assert ttft["p50_s"] == pytest.approx(warm)
    assert ttft["p99_s"] == 1.0
    assert ttft["mean_s"] == pytest.approx((warm + 1) / 2, abs=1e-4)
    assert ttft["cold_mean_s"] == 0.725
    assert ttft["waited_mean_s"] == 0.25
    assert ttft["speedup"] == pytest.approx(1.45 / (warm + 1), abs=1e-4)


def test_a_trace_of_one_moment_has_rates() -> None:
    found = figures()
    found.count(5.0, 100, Outcome([0, 0], 1, Miss.COLD, 0.0, [0]))
    assert found.document(0.0, 1)["rates"]["requests_s"] == 1.0
