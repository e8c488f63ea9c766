"""The adapter's CPU per iteration follows new tokens, not the length of what is there."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from tests.benchmarks import bench_adapter

ACTIVE, CYCLES = 24, 4


def test_a_prompt_of_sixteen_times_the_length_costs_the_same_per_step() -> None:
    """Whatever looks at all tokens or pages of a request would cost about sixteen times as much."""
    short = bench_adapter.measure(ACTIVE, 512, CYCLES, "256M")
    long = bench_adapter.measure(ACTIVE, 8192, CYCLES, "256M")
    assert short["saved_chunks"] >= ACTIVE * 16
    assert long["saved_chunks"] >= ACTIVE * 256
    assert long["least"] < 1.8 * short["least"], (short, long)


def test_the_command_writes_what_it_shows(tmp_path: Path) -> None:
    path = tmp_path / "made" / "adapter.json"
    arguments = ["--active", "4", "--tokens", "256", "--cycles", "1", "--json", str(path)]
    result = CliRunner().invoke(bench_adapter.main, arguments)
    assert result.exit_code == 0, result.output
    document = json.loads(path.read_text())
    assert document["steps"] == 32
    assert document["us_per_request_and_step"].keys() == {"128", "256"}
    assert "ratio of doubled length" in result.output
