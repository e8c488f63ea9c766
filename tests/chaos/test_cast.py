"""Incarnations are drawn from the seed, in versions and modes that real engines have."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.chaos.cast import CAST, Place, draw_part, write_models
from tests.chaos.labour import Task

pytestmark = pytest.mark.torch
PLACE = Place("ipc:///s", "/s", "/s.side", Path("models"), 9.0, 0.1, 0.2)


def test_a_part_is_a_function_of_seed_and_number() -> None:
    for role in CAST:
        assert draw_part(role, 1, 2, PLACE) == draw_part(role, 1, 2, PLACE)
    parts = {str(draw_part(role, 1, n, PLACE)) for role in CAST for n in range(30)}
    assert len(parts) > 12
    seeds = {draw_part(CAST[0], 1, n, PLACE).task.seed for n in range(50)}
    assert len(seeds) == 50


def test_the_cast_has_what_a_run_needs() -> None:
    assert len({role.name for role in CAST}) == len(CAST)
    assert any(role.size == 2 for role in CAST)
    assert any(role.is_v2 for role in CAST)
    assert any(len([r for r in CAST if r.kind == role.kind]) > 1 for role in CAST)
    modes = {mode for role in CAST for _, mode in role.modes}
    assert modes == {"sync", "async", "layerwise", "auto"}


def test_tasks_reach_their_process(monkeypatch: pytest.MonkeyPatch) -> None:
    task = draw_part(CAST[2], 3, 1, PLACE).task
    (name,) = task.as_environ()
    monkeypatch.setenv(name, task.as_environ()[name])
    assert Task.of_environ() == task


def test_each_kind_is_a_model_of_its_own(tmp_path: Path) -> None:
    write_models(tmp_path)
    kinds = {role.kind for role in CAST}
    weights = {(tmp_path / kind / "model.safetensors").read_bytes() for kind in kinds}
    assert len(weights) == len(kinds)
