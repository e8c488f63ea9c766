import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from adapter.conformance.demo import report
from adapter.conformance.demo.outcome import Outcome


def made(*, held: bool = True, hook_ms: float = 1.25) -> Outcome:
    outcome = Outcome("kill [engine] A", summary="12 blocks, 3.4 MB", seconds=2.0)
    outcome.claim("it went on", held)
    outcome.figures |= {"longest_hook_ms": hook_ms, "hits": [1, 2]}
    return outcome


def shown(*outcomes: Outcome) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=140)
    for outcome in outcomes:
        report.say(console, outcome)
    console.print(report.table(outcomes))
    console.print(report.verdict(outcomes, 61.4))
    return stream.getvalue()


def test_what_held_is_shown_with_its_figures() -> None:
    told = shown(made())
    for part in ("✓", "kill [engine] A", "it went on", "12 blocks, 3.4 MB", "1.2 ms", "2.0 s"):
        assert part in told
    assert "all 1 held, in 61 s" in told
    assert "✗" not in told


def test_what_did_not_hold_cannot_be_overlooked() -> None:
    failed = Outcome("replay", error="engine (pid 7) ended (exit code 1)", seconds=0.1)
    told = shown(made(held=False), failed, Outcome("look"))
    assert "not so: it went on" in told
    assert "engine (pid 7) ended (exit code 1)" in told
    assert "3 of 3 did not hold: kill [engine] A; replay; look" in told
    assert told.count("✗") == 4  # a line and a row each
    assert told.count("–") == 2  # not played


def test_a_hook_over_the_limit_is_coloured() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=140, force_terminal=True, color_system="standard")
    console.print(report.table([made(hook_ms=50.1)]))
    console.print(report.table([made(hook_ms=49.9)]))
    assert "\x1b[33m50.1 ms" in stream.getvalue()
    assert "\x1b[33m49.9 ms" not in stream.getvalue()


def test_the_bar_takes_reports_and_leaves_no_trace() -> None:
    stream = io.StringIO()
    with report.bar(Console(file=stream, width=80), "[act]") as told:
        told(1, 2)
    assert "act" not in stream.getvalue()


def test_everything_is_in_the_json(tmp_path: Path) -> None:
    outcomes = [made(), made(held=False)]
    path = tmp_path / "new" / "demo.json"
    report.write_json(path, report.document(outcomes, 61.4321, True))
    content = json.loads(path.read_text())
    assert (content["held"], content["quick"], content["seconds"]) == (False, True, 61.432)
    first, second = content["acts"]
    assert first["held"]
    assert not second["held"]
    assert first["figures"] == {"longest_hook_ms": 1.25, "hits": [1, 2]}
    assert second["claims"] == [{"text": "it went on", "held": False}]


@pytest.mark.parametrize("quick", [True, False])
def test_a_run_that_held_says_so(quick: bool) -> None:
    assert report.document([made()], 1.0, quick)["held"] is True
