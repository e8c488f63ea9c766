from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adapter.conformance.demo import story
from adapter.conformance.demo.acts import Report
from adapter.conformance.demo.outcome import Outcome
from adapter.conformance.demo.processes import Child, DemoError, Stage


class Seen:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.ended: list[Outcome] = []
        self.logs: list[str] = []
        self.reports: list[tuple[int, int]] = []

    @contextmanager
    def begins(self, title: str) -> Iterator[Report]:
        self.titles.append(title)
        yield lambda done, total: self.reports.append((done, total))

    def watcher(self) -> story.Watcher:
        return story.Watcher(self.begins, self.ended.append, self.logs.append)


def holds(outcome: Outcome, report: Report) -> None:
    report(1, 1)
    outcome.claim("so it is", True)


def breaks(outcome: Outcome, report: Report) -> None:
    outcome.claim("so it is", True)
    raise DemoError("engine (pid 1) ended")


def play(monkeypatch: pytest.MonkeyPatch, *acts: story.Act) -> tuple[list[Outcome], Seen]:
    monkeypatch.setattr(story, "ARENA_BYTES", 1 << 20)
    acted = [(f"act {number}", act) for number, act in enumerate(acts)]
    monkeypatch.setattr(story, "_acts", lambda on, scale: acted)
    seen = Seen()
    return story.play(story.QUICK, seen.watcher()), seen


def test_acts_are_played_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes, seen = play(monkeypatch, holds, holds)
    assert seen.titles == ["act 0", "act 1"]
    assert seen.ended == outcomes
    assert seen.reports == [(1, 1), (1, 1)]
    assert all(outcome.held and outcome.seconds > 0 for outcome in outcomes)
    assert seen.logs == []


def test_an_error_ends_the_story(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes, seen = play(monkeypatch, holds, breaks, holds)
    assert seen.titles == ["act 0", "act 1"]
    assert [outcome.held for outcome in outcomes] == [True, False, False]
    assert outcomes[1].error == "engine (pid 1) ended"
    assert outcomes[2].claims == []


def test_a_claim_that_fails_does_not_end_it_and_logs_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def writes(outcome: Outcome, report: Report) -> None:
        outcome.claim("so it is", False)

    outcomes, seen = play(monkeypatch, writes, holds)
    assert [outcome.held for outcome in outcomes] == [False, True]
    assert len(seen.logs) == 1


def test_nothing_is_left_when_an_act_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[tuple[int, Path]] = []

    def acts(on: Stage, scale: story.Scale) -> list[tuple[str, story.Act]]:
        def starts(outcome: Outcome, report: Report) -> None:
            child = Child(on, "child", ["-c", "input()"])
            left.append((child.pid, on.folder))
            raise KeyboardInterrupt

        return [("act", starts)]

    monkeypatch.setattr(story, "ARENA_BYTES", 1 << 20)
    monkeypatch.setattr(story, "_acts", acts)
    with pytest.raises(KeyboardInterrupt):
        story.play(story.QUICK, Seen().watcher())
    ((pid, folder),) = left
    assert not Path(f"/proc/{pid}").exists()
    assert not folder.exists()
