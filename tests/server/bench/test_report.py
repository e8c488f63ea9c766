import io
import json

from rich.console import Console

from server.bench import report, sizing
from server.bench.figures import Figure

FIGURES = [
    Figure("store_ratio", 0.9123, "", "memcpy 9.10", "≥ 0.85", True, "0.11"),
    Figure("start_s", 1.72, "s", "", "≤ 1.5", False, "5.1"),
    Figure("echo_p50_ms", 0.101, "ms"),
    Figure("idle_rss_mib", 104.3, "MiB"),
]
MACHINE = {
    "cpus": 2,
    "cpu": "Some CPU",
    "load_1min": 0.5,
    "kernel": "6.0",
    "python": "3.11.1",
    "kvkeep": "0.1.0",
    "commit": None,
}


def test_the_document_is_json_with_every_figure() -> None:
    sizes = sizing.choose(sizing.GIB * 24, quick=True)
    document = report.document(FIGURES, MACHINE, sizes, 7, True, {"start_s": [1.7]})
    again = json.loads(json.dumps(document))
    assert again == document
    assert again["schema"] == report.SCHEMA
    assert again["figures"]["store_ratio"] == 0.9123
    assert again["targets"] == {
        "store_ratio": {"target": "≥ 0.85", "met": True},
        "start_s": {"target": "≤ 1.5", "met": False},
    }
    assert again["run"]["seed"] == 7
    assert again["run"]["rounds"] == sizes.rounds


def test_the_table_shows_value_target_verdict_and_peer() -> None:
    out = io.StringIO()
    report.show(Console(file=out, width=140), FIGURES, MACHINE)
    lines = out.getvalue().splitlines()
    row = next(line for line in lines if "store_ratio" in line)
    for text in ("0.912", "memcpy 9.10", "≥ 0.85", "met", "0.11"):
        assert text in row
    assert "missed" in next(line for line in lines if "start_s" in line)
    assert "104 MiB" in next(line for line in lines if "idle_rss_mib" in line)
    assert any("no git checkout" in line for line in lines)


def test_without_a_peer_nothing_is_said_of_one() -> None:
    for figures, is_told in ((FIGURES, True), (FIGURES[2:], False)):
        out = io.StringIO()
        report.show(Console(file=out, width=140), figures, MACHINE)
        assert ("LMCache" in out.getvalue()) == is_told
