"""The runner sees what it looks for: each kind of fault is planted once."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from adapter.conformance.schedules import play as playing
from adapter.conformance.schedules.draw import Shape, draw, repeatable
from adapter.conformance.schedules.play import PlayError, Tally, play, play_again
from tests.adapter.conformance.schedules.fakes import FakeSubject, answer

pytestmark = pytest.mark.torch

SCHEDULE = draw(3, Shape(tokens_per_block=4))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "_SETTLE_S", 0.05)


def test_equal_answers_and_nothing_left() -> None:
    subject, tally = FakeSubject(), Tally()
    play(SCHEDULE, subject, answer, tally)
    assert tally.schedules == 1
    assert tally.requests == subject.num_asked == tally.compared + tally.cancelled
    assert tally.compared > 0


def test_one_wrong_bit_is_seen() -> None:
    for seed in range(20):
        schedule = draw(seed, Shape(tokens_per_block=4))
        if schedule.waves[0].asks[0].cancel_after_s is None:
            with pytest.raises(PlayError, match=f"seed {seed}: logits of token 0 differ"):
                play(schedule, FakeSubject(spoil_at=1), answer, Tally())
            return
    raise AssertionError("no schedule begins with a request that is not cancelled")


@pytest.mark.parametrize("gauge", playing.GAUGES)
def test_what_the_server_still_holds_is_a_leak(gauge: str) -> None:
    subject = FakeSubject()
    subject.values[gauge] = 2
    with pytest.raises(PlayError, match=f"{gauge}=2"):
        play(SCHEDULE, subject, answer, Tally())


def test_a_gauge_that_is_missing_is_no_proof() -> None:
    subject = FakeSubject()
    del subject.values["leases"]
    with pytest.raises(PlayError, match="leases=missing"):
        play(SCHEDULE, subject, answer, Tally())


@pytest.mark.parametrize("name", playing.HELD)
def test_what_a_rank_still_holds_is_a_leak(name: str) -> None:
    subject = FakeSubject(counters=[{"held_pages": 0}, {name: 1}])
    with pytest.raises(PlayError, match=f"rank 1: {name}=1"):
        play(SCHEDULE, subject, answer, Tally())


def test_lost_pages_and_a_silent_server_are_seen() -> None:
    with pytest.raises(PlayError, match="1 pages of the host"):
        play(SCHEDULE, FakeSubject(pages=(7, 8)), answer, Tally())
    subject = FakeSubject()
    subject.values.clear()
    with pytest.raises(PlayError, match="does not answer"):
        play(SCHEDULE, subject, answer, Tally())


def test_a_dead_executor_is_seen() -> None:
    with pytest.raises(PlayError, match="rank 0 died of OSError"):
        play(SCHEDULE, FakeSubject(died_of="OSError()"), answer, Tally())


AGAIN = repeatable(Shape(tokens_per_block=4), "nobody else")


def test_what_is_asked_again_is_loaded_sooner_or_later() -> None:
    subject, tally = FakeSubject(loads_from=3), Tally()
    play_again(AGAIN, subject, answer, tally)
    assert (subject.num_asked, tally.compared, tally.loaded_tokens) == (3, 3, 4)


def test_an_engine_that_never_loads_is_seen() -> None:
    with pytest.raises(PlayError, match=r"nothing was ever loaded: .*; rank 0: \{.*\}; server: \{"):
        play_again(AGAIN, FakeSubject(), answer, Tally())


def test_a_load_of_what_was_not_stored_and_a_wrong_one_are_seen() -> None:
    with pytest.raises(PlayError, match="which has stored none"):
        play_again(AGAIN, FakeSubject(loads_from=1), answer, Tally())
    with pytest.raises(PlayError, match="logits of token 0 differ with 4 tokens loaded"):
        play_again(AGAIN, FakeSubject(loads_from=2, spoil_at=2), answer, Tally())
