"""Steps of the tiers: what is there to be run, and what they say without the traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slow.tiersteps import ROOT, TRACES, apart, stores, tier_steps


def test_without_traces_two_steps_say_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TRACES, raising=False)
    lacking = {step.name: step.lacks for step in tier_steps(1, tmp_path, quick=False) if step.lacks}
    assert set(lacking) == {"tiers sessions", "simulate"}
    assert len(set(lacking.values())) == 1
    (line,) = set(lacking.values())
    assert TRACES in line
    assert "\n" not in line
    page = "docs/scale.md"
    assert page in line
    assert TRACES in (ROOT / page).read_text(encoding="utf-8")
    monkeypatch.setenv(TRACES, str(tmp_path / "none"))
    assert len([step for step in tier_steps(1, tmp_path, quick=False) if step.lacks]) == 2
    monkeypatch.setenv(TRACES, str(tmp_path))
    assert not any(step.lacks for step in tier_steps(1, tmp_path, quick=False))


def test_the_short_run_has_the_programs(tmp_path: Path) -> None:
    names = [step.name for step in tier_steps(1, tmp_path, quick=True)]
    assert names == ["chaos tiers", "disk beside fio", "lookup beside a tier"]


def test_every_test_of_servers_with_tiers_has_a_step(tmp_path: Path) -> None:
    """And only one: what is named here is left out elsewhere."""
    steps = tier_steps(1, tmp_path, quick=False)
    words = [word for step in steps for word in step.command if word.startswith("tests/")]
    assert len(words) == len(set(words))
    files = {str(path.relative_to(ROOT)) for path in ROOT.glob("tests/e2e/test_tiers*.py")}
    assert files
    assert files <= set(words)
    assert all((ROOT / word).exists() for word in words)
    assert set(stores()) < set(apart()) < set(words)
