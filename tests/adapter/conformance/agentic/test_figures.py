"""Ratios and modelled times."""

from __future__ import annotations

import pytest

from adapter.conformance.agentic.figures import TOKENS_PER_S, Seen, summarize


def test_ratios_and_speed_ups() -> None:
    seen = [
        Seen(turn=0, num_tokens=60, num_blocks=6, hit_blocks=0, query_s=0.5),
        Seen(turn=0, num_tokens=60, num_blocks=6, hit_blocks=3, load_s=0.002, query_s=0.001),
        Seen(turn=1, num_tokens=80, num_blocks=8, hit_blocks=7, load_s=0.004, query_s=0.001),
    ]
    summary = summarize(seen, 10)
    assert (summary.blocks, summary.hits, summary.ratio) == (20, 10, 0.5)
    assert summary.per_turn == [0.25, 0.875]
    assert summary.cumulative == [0, 0.25, 0.5]
    assert summary.ttft_speedup_modelled == pytest.approx(2.0)
    # A query that finds nothing takes its time as well.
    assert summary.load_s == pytest.approx(0.006)
    assert summary.query_s == pytest.approx(0.502)
    measured = 200 / TOKENS_PER_S / (100 / TOKENS_PER_S + 0.508)
    assert summary.ttft_speedup_measured_load == pytest.approx(measured)
