"""The command: a small sweep, the document it prints, and what it exits with."""

from __future__ import annotations

import io
import json

import pytest

pytest.importorskip("torch")

from rich.console import Console

from adapter.conformance.schedules import __main__ as command
from adapter.conformance.schedules.play import PlayError, Tally
from adapter.conformance.schedules.sweep import Sweep

pytestmark = pytest.mark.torch

SMALL = ["--count", "1", "--mode", "sync", "--ranks", "1", "--seed", "5"]


def test_one_schedule_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*SMALL, "--json"]) == 0
    shown = capsys.readouterr()
    result = json.loads(shown.out)
    assert (result["seed"], result["schedules"], result["errors"]) == (5, 1, [])
    assert list(result["modes"]) == ["sync"]
    assert result["modes"]["sync"]["compared"] > 0
    assert "seed 5" in shown.err


def test_an_error_is_told_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[range] = []

    def run(self: object, combination: object, seeds: range, tally: Tally) -> None:
        asked.append(seeds)
        if len(asked) == 1:
            raise PlayError("E9-some: seed 5: logits differ")
        if len(asked) == 2:
            raise RuntimeError("of something else")
        tally.schedules += len(seeds)

    monkeypatch.setattr(Sweep, "run", run)
    assert command.main(["--count", "40", *SMALL[2:], "--json"]) == 1
    out = capsys.readouterr().out
    seeds = {seed for one in asked for seed in one}
    assert len(seeds) == sum(len(one) for one in asked) == 40
    result = json.loads(out)
    assert result["schedules"] == 40 - len(asked[0]) - len(asked[1])
    assert result["errors"][0] == "E9-some: seed 5: logits differ"
    assert "of something else" in result["errors"][1]


def test_pools_may_lie_on_a_simulated_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*SMALL, "--device", "simulated", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["device"], result["errors"]) == ("simulated", [])
    assert result["modes"]["sync"]["loaded_tokens"] > 0


@pytest.mark.parametrize("arguments", [["--count", "0"], ["--count", "-1"], ["--device", "tpu"]])
def test_what_would_play_nothing_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)


def test_the_table_shows_counts_and_errors() -> None:
    tally = Tally(schedules=3, compared=41, errors=["E9-some: seed 5: logits differ"])
    out = io.StringIO()
    Console(file=out, width=160).print(command._table(command.document(5, 1.0, {"sync": tally})))
    for part in ("3 schedules, seed 5", "sync", "41", "E9-some: seed 5: logits differ"):
        assert part in out.getvalue()


def test_a_seed_is_drawn_and_shown_when_none_is_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sweep, "run", lambda *_: None)
    assert command.main(["--count", "1", "--mode", "async", "--ranks", "1"]) == 0
    first = capsys.readouterr().err.split("\n")[0]
    assert command.main(["--count", "1", "--mode", "async", "--ranks", "1"]) == 0
    assert first.startswith("seed ")
    assert first != capsys.readouterr().err.split("\n")[0]


def test_the_document_adds_up_modes() -> None:
    tallies = {"sync": Tally(schedules=2, errors=["a"]), "async": Tally(schedules=3)}
    result = command.document(9, 1.23, tallies)
    assert (result["schedules"], result["errors"], result["seconds"]) == (5, ["a"], 1.2)
    assert result["modes"]["async"]["schedules"] == 3


@pytest.mark.parametrize("arguments", [["--mode", "fast"], ["--count", "x"], ["--no-such"]])
def test_wrong_arguments_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)
    assert "usage" in capsys.readouterr().err
