"""The benchmark for three agents and three turns, through everything that is real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from adapter.conformance.agentic import curve
from adapter.conformance.agentic.__main__ import main
from adapter.conformance.agentic.outcome import Outcome
from adapter.conformance.agentic.rig import Scale
from adapter.conformance.agentic.run import run
from adapter.conformance.agentic.workload import Workload
from adapter.conformance.demo.processes import DemoError

pytestmark = pytest.mark.torch


def test_every_count_is_the_expected_one() -> None:
    titles: list[str] = []
    last: list[tuple[int, int]] = []

    def begins(title: str) -> object:
        titles.append(title)
        return lambda done, total: last.append((done, total))

    scale = Scale(Workload(32, agents=2, turns=3)).small()
    outcome = run(scale, begins)  # type: ignore[arg-type]
    assert outcome.wrong() == []
    assert len(titles) == 3
    assert last.count((6, 6)) == 3
    assert outcome.summary.load_s > 0
    assert outcome.summary.query_s > 0
    assert outcome.answers_summary.hits > outcome.summary.hits


def test_the_command_writes_figures_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, picture = tmp_path / "agentic.json", tmp_path / "agentic.png"
    assert main(["--quick", "--json", str(figures), "--png", str(picture)]) == 0
    document = json.loads(figures.read_text())
    assert (document["blocks"], document["hits"], document["bit_exact"]) == (72, 47, True)
    assert document["restart_ratio"] == 1.0
    assert picture.exists() == curve.can_draw()
    said = capsys.readouterr().out
    assert "as expected" in said


def test_a_wrong_block_size_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--block-tokens", "33"]) == 2
    assert "valid are even numbers" in capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--quick"]])
@pytest.mark.parametrize("kib", ["0", "-1"])
def test_a_token_without_kv_is_one_line(
    kib: str, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--token-kib", kib, *more]) == 2
    assert "--token-kib must be at least 1" in capsys.readouterr().out


def test_a_block_that_no_file_of_the_cache_holds_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--token-kib", str(32 << 10)]) == 2
    assert "lower --token-kib or --block-tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "path", "why"),
    [
        ("--json", "missing/x.json", "there is no folder"),
        ("--png", "missing/x.png", "there is no folder"),
        ("--png", "x.txt", "does not end in .png"),
        ("--json", ".", "cannot be written"),
    ],
)
def test_what_could_not_be_written_is_said_before_anything_runs(
    option: str,
    path: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--quick", option, path]) == 2
    assert why in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_the_size_of_a_token_is_set_in_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    scales: list[Scale] = []

    def seen(scale: Scale, begins: object) -> Outcome:
        scales.append(scale)
        raise DemoError("seen enough")

    monkeypatch.setattr("adapter.conformance.agentic.__main__.run", seen)
    assert main(["--block-tokens", "256", "--token-kib", "16"]) == 2
    assert main([]) == 2
    assert main(["--quick", "--token-kib", "16"]) == 2
    assert main(["--quick"]) == 2
    sizes = [(scale.token_bytes, scale.page_bytes) for scale in scales]
    assert sizes == [
        (16 << 10, 4 << 20),
        (128 << 10, 4 << 20),
        (16 << 10, 16 << 15),
        (64, 64 << 5),
    ]
    assert [scale.workload.agents for scale in scales] == [12, 12, 3, 3]
