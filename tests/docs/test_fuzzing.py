"""docs/fuzzing.md names every option, only steps that there are, and what a finding looks like."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fuzz.__main__ import main
from tests.fuzz.report import reproducer
from tests.repository import tree
from tests.slow.steps import plan

PAGE = tree.text("docs/fuzzing.md")


def test_the_options_are_the_described_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = set(re.findall(r"^  (--[a-z]+)", capsys.readouterr().out, re.M))
    assert set(re.findall(r"^\| `(--[a-z]+)", PAGE, re.M)) == shown


def test_a_finding_is_shown_as_described() -> None:
    found = {
        "what": "x: y",
        "part": "sequence",
        "seed": 5,
        "index": 17,
        "small": 'steps:{"for": 1}',
    }
    lines = reproducer(found).splitlines()
    assert lines[0] == "FOUND x: y"
    assert "    python -m tests.fuzz --replay sequence:5:17" in lines
    assert "    python -m tests.fuzz --replay sequence:5:17" in PAGE
    assert lines[-1].startswith("    python -m tests.fuzz --replay 'steps:")


def test_a_short_run_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fuzz.json"
    counts = ["--executions", "2000", "--sequences", "3", "--jobs", "1", "--json", str(path)]
    assert main([*counts, "--seed", "8"]) == 0
    assert "seed 8" in capsys.readouterr().out
    assert '"finding": null' in path.read_text(encoding="utf-8")


def test_the_steps_of_make_slow_are_there(tmp_path: Path) -> None:
    names = {step.name for step in plan(1, tmp_path, quick=False)}
    assert set(re.findall(r"`(fuzz(?: \w+)?)`", PAGE)) <= names
