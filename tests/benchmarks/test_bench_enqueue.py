"""The measurement of queued loads runs, and finds each way of loading."""

from __future__ import annotations

import json

from click.testing import CliRunner

from tests.benchmarks import bench_enqueue


def test_each_way_of_loading_is_measured() -> None:
    result = CliRunner().invoke(bench_enqueue.main, ["--json", "--rounds", "2"])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.output)
    assert len(figures) == 3 * len(bench_enqueue.SIZES)
    assert all(it["page_us"] > 0 for it in figures.values())
    assert CliRunner().invoke(bench_enqueue.main, ["--rounds", "1"]).output.count("\n") == 10
