"""Every step of ``run.sh``, on the simulated device here and on a GPU where there is one."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import __main__ as runner
from tests.gpu.step import NEVER, STEPS
from tests.slow.figure import Figure


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", STEPS)
def test_the_step_works_on_the_simulated_device(name: str) -> None:
    ended = runner.run(name, "simulated", ["--quick", "--seed", "7"], 110.0)
    assert ended["held"], ended["said"]
    assert ended["figures"]
    judged = [title for title, one in ended["figures"].items() if one["met"] is not None]
    assert all(title.endswith(NEVER) for title in judged), "a simulation measures nothing"


@pytest.mark.gpu
@pytest.mark.parametrize("name", STEPS)
def test_the_step_holds_on_a_gpu(name: str) -> None:
    ended = runner.run(name, "cuda", ["--quick", "--seed", "7"], 110.0)
    assert ended["held"], ended["said"]


@pytest.mark.parametrize("name", STEPS)
def test_each_step_is_a_module(name: str) -> None:
    module = importlib.import_module(f"tests.gpu.{name}")
    assert callable(module.measure)
    assert module.__doc__
    assert module.__doc__.startswith(f"Step ``{name}``")


def test_a_step_that_takes_too_long_is_ended_with_all_it_started() -> None:
    ended = runner.run("deaths", "simulated", ["--quick"], 2.0)
    assert not ended["held"]
    assert ended["seconds"] < 30
    assert "killed after 2 s" in ended["said"][-1]
    assert runner.run("deaths", "simulated", [], 0.5)["said"] == ["no time was left for it"]


def test_a_step_that_raises_says_why() -> None:
    ended = runner.run("torture", "simulated", ["--seed", "nonsense"], 30.0)
    assert ended["exit_code"] == 2
    assert any("nonsense" in line for line in ended["said"])


def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **change: Any) -> tuple[int, Any]:
    """A run whose one step ended in some way: exit code, and the document."""

    def run(name: str, device: str, further: list[str], limit_s: float) -> dict[str, Any]:
        figures = {"rate": {"value": 1.0, "target": ">= 2", "met": False}}
        ended = {"name": name, "seconds": 1.0, "exit_code": 0, "held": True, "met": False}
        return {**ended, "figures": figures, "said": [], **change}

    monkeypatch.setattr(runner, "run", run)
    path = tmp_path / "gpu.json"
    arguments = ["--device", "simulated", "--only", "rates", "--json", str(path)]
    check = ["--check"] if change.get("check") else []
    return runner.main([*arguments, *check]), json.loads(path.read_text())


def test_a_missed_target_is_shown_and_fails_only_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = played(tmp_path, monkeypatch)
    assert (code, document["held"]) == (0, True)
    shown = capsys.readouterr().out
    assert "target >= 2: MISSED" in shown
    assert shown.startswith("SIMULATED DEVICE")
    assert played(tmp_path, monkeypatch, check=True)[0] == 1
    code, document = played(tmp_path, monkeypatch, held=False, said=["this is why"])
    assert (code, document["held"]) == (1, False)
    assert "| this is why" in capsys.readouterr().out


def test_nothing_is_run_after_doctor_found_that_it_cannot_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, *further: Any) -> dict[str, Any]:
        figures = {"doctor's exit code": {"value": 1, "target": "0", "met": False}}
        ended = {"name": name, "seconds": 1.0, "exit_code": 0, "held": True, "met": False}
        return {**ended, "figures": figures, "said": []}

    monkeypatch.setattr(runner, "run", run)
    path = tmp_path / "gpu.json"
    assert runner.main(["--device", "cuda", "--json", str(path)]) == 1
    document = json.loads(path.read_text())
    assert [one["name"] for one in document["steps"]] == ["facts"]
    assert document["held"] is False
    assert "no step beyond" in capsys.readouterr().out


def test_wrong_pages_fail_a_step(monkeypatch: pytest.MonkeyPatch, simulated: object) -> None:
    from tests.gpu import facts, step

    wrong = {"ring: wrong_pages": Figure(3, "0", False)}
    monkeypatch.setattr(facts, "measure", lambda ground, is_quick: wrong)
    assert step.main(["facts", "simulated"]) == 1
    rate = {"rate": Figure(0.1, ">= 0.9", False)}
    monkeypatch.setattr(facts, "measure", lambda ground, is_quick: rate)
    assert step.main(["facts", "simulated"]) == 0
