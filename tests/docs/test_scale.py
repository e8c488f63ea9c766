"""docs/scale.md: its options, and every figure, made again by the commands that it shows."""

from __future__ import annotations

import json
import os
import re
from functools import cache
from typing import Any

import pytest
from click.testing import CliRunner

from server.cli.simulate import command
from server.simulate import settings
from tests.repository import tree

PAGE = tree.text("docs/scale.md")
PLAIN = re.sub(r"\s+", " ", PAGE)
WHOLE = os.environ.get("KV_TRACES", "")
SLOW = ("A-1000", "B-1000", "C-1000")

VARIABLES = dict(re.findall(r"^([A-Z]+)=\"(.*)\"$", PAGE, re.M))
COMMANDS = {
    name: line
    for line, name in re.findall(r"^python -m server simulate (.*?) +# (\S+)$", PAGE, re.M)
}
FLEETS = [name for name in COMMANDS if "-" in name and name[-1].isdigit()]
TRACES = [name for name in COMMANDS if name not in FLEETS]


@cache
def document(name: str) -> dict[str, Any]:
    """What a command of the page says."""
    line = COMMANDS[name]
    for variable, value in {**VARIABLES, "KV_TRACES": WHOLE}.items():
        line = line.replace(f"${variable}", value)
    words = [word.replace("tests/", f"{tree.ROOT}/tests/", 1) for word in line.split()]
    done = CliRunner().invoke(command, [*words, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def fleet_row(name: str, said: dict[str, Any]) -> str:
    """A row of the table of fleets."""
    (tier,) = said["tiers"].values()
    rates, nodes = said["rates"], said["settings"]["nodes"]
    per_node = tier["read_gbps_of_a_node_peak"] + tier["write_gbps_of_a_node_peak"]
    cells = (
        name,
        f"{nodes}",
        f"{said['trace']['sessions'] * said['settings']['copies']:,}",
        f"{rates['requests_s']:.1f}, {rates['requests_s_peak']:.1f}",
        f"{said['hit_ratio']:.3f}",
        f"{said['hit_ratio_by_tier']['l1']:.3f}",
        f"{tier['written_bytes'] / 1e12:.1f}",
        f"{tier['promoted_bytes'] / 1e12:.1f}",
        f"{tier['read_gbps']:.2f}, {tier['read_gbps_peak']:.2f}",
        f"{tier['write_gbps']:.2f}, {tier['write_gbps_peak']:.2f}",
        f"{per_node * 8:.1f}",
        f"{rates['waiting_busy']:.1%}".replace("%", " %"),
        f"{said['ttft']['mean_s']:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def trace_row(name: str, said: dict[str, Any]) -> str:
    """A row of the table of whole traces."""
    chunks = said["chunks"]
    missed = ", ".join(
        f"{reason} {count / chunks:.3f}"
        for reason, count in said["miss_chunks"].items()
        if count / chunks >= 0.0005
    )
    below = sum(ratio for tier, ratio in said["hit_ratio_by_tier"].items() if tier != "l1")
    moved = sum(tier["promoted_bytes"] for tier in said["tiers"].values())
    cells = (
        name,
        f"{said['hit_ratio']:.4f}",
        f"{said['hit_ratio_by_tier']['l1']:.4f}",
        f"{below:.4f}",
        missed,
        f"{moved / 1e12:.2f}",
        f"{said['ttft']['mean_s']:.2f}",
        f"{said['ttft']['speedup']:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def test_the_options_are_the_described_ones() -> None:
    described = set(re.findall(r"^\| `(--[a-z0-9-]+)", PAGE, re.M))
    offered = {option for one in command.params for option in one.opts if option[:2] == "--"}
    assert described == offered
    for name, default in (
        ("--read-gbps", f"{settings.READ_GBPS['disk']:g}, a store "),
        ("--write-gbps", f"{settings.WRITE_GBPS['disk']:g}, a store "),
        ("--deadline", f"{settings.DEADLINE_S:g} s"),
    ):
        row = re.search(rf"^\| `{name}.*$", PAGE, re.M)
        assert row is not None
        assert default in row[0]


def test_the_document_is_the_described_one() -> None:
    part = PAGE[PAGE.index("## The document") : PAGE.index("## 10, 100")]
    firsts = " ".join(re.findall(r"^\| (`.*?) \|", part, re.M))
    assert set(re.findall(r"`([a-z_]+)`", firsts)) == set(document("A-10"))
    (row,) = re.findall(r"^\| `miss_chunks` .*$", part, re.M)
    for reason in document("A-10")["miss_chunks"]:
        assert f"`{reason}`" in row


def test_every_command_of_the_page_has_a_row_and_every_row_a_command() -> None:
    rows = re.findall(r"^\| ([A-Z]-\d+|[a-z]+(?:-[a-z0-9]+)*) \| [0-9]", PAGE, re.M)
    assert sorted(rows) == sorted(COMMANDS)
    assert len(FLEETS) == 9


@pytest.mark.parametrize("name", [name for name in FLEETS if name not in SLOW])
def test_the_figures_of_a_fleet(name: str) -> None:
    assert fleet_row(name, document(name)) in PAGE


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SLOW)
def test_the_figures_of_a_thousand_gpus(name: str) -> None:
    row = fleet_row(name, document(name))
    print(row)
    assert row in PAGE


def test_the_arithmetic_by_hand_is_the_simulations() -> None:
    said = document("B-100")
    (tier,) = said["tiers"].values()
    requests = said["requests"]
    read, written = tier["promoted_bytes"] / requests / 1e9, tier["written_bytes"] / requests / 1e9
    assert f"**{read:.2f} GB read** and **{written:.2f} GB written** a request" in PLAIN
    tokens = said["tokens"] / requests
    assert f"{tokens:,.0f} tokens long on average" in PLAIN
    assert f"{said['trace']['working_set_bytes'] / said['trace']['sessions'] / 1e9:.1f} GB" in PLAIN
    a_node = said["rates"]["requests_s"] / said["settings"]["nodes"]
    gbits = a_node * (read + written) * 8
    assert f"{a_node:.3f} × ({read:.2f} + {written:.2f}) × 8 = {gbits:.1f} Gbit/s" in PLAIN


@pytest.mark.skipif(not WHOLE, reason="KV_TRACES names no folder with the public traces")
@pytest.mark.parametrize("name", TRACES)
def test_the_figures_of_whole_traces(name: str) -> None:
    row = trace_row(name, document(name))
    print(row)
    assert row in PAGE
