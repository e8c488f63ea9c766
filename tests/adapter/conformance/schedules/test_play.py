"""The runner sees what it looks for: each kind of fault is planted once."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from adapter.conformance.schedules import play as playing
from adapter.conformance.schedules.draw import Ask, Shape, draw, repeatable
from adapter.conformance.schedules.leaks import of_host
from adapter.conformance.schedules.play import (
    NothingLoadedError,
    PlayError,
    Tally,
    play,
    play_again,
)
from tests.adapter.conformance.schedules.fakes import FakeHandle, FakeSubject, answer

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


def test_the_second_turn_of_a_talk_goes_on_from_the_right_answer() -> None:
    shape = Shape(tokens_per_block=16, talk=1.0)
    schedule = draw(3, shape)
    asked: list[Ask] = []

    class Noting(FakeSubject):
        def submit(self, ask: Ask) -> FakeHandle:
            asked.append(ask)
            return super().submit(ask)

    tally, num_talks = Tally(), len(schedule.talks)
    play(schedule, Noting(), answer, tally)
    seconds = [talk.second(answer(talk.first).tokens) for talk in schedule.talks]
    assert asked[-num_talks:] == seconds
    assert asked[-2 * num_talks : -num_talks] == [talk.first for talk in schedule.talks]
    with pytest.raises(PlayError, match="logits of token 0 differ"):
        play(schedule, FakeSubject(spoil_at=tally.requests), answer, Tally())


def test_one_wrong_bit_is_seen() -> None:
    for seed in range(20):
        schedule = draw(seed, Shape(tokens_per_block=4))
        if schedule.waves[0].asks[0].cancel_after_s is None:
            with pytest.raises(PlayError, match=f"seed {seed}: logits of token 0 differ"):
                play(schedule, FakeSubject(spoil_at=1), answer, Tally())
            return
    raise AssertionError("no schedule begins with a request that is not cancelled")


def test_what_is_left_behind_is_told_after_a_while() -> None:
    subject = FakeSubject()
    subject.values["leases"] = 2
    with pytest.raises(PlayError, match=r"seed 3: left behind: leases=2"):
        play(SCHEDULE, subject, answer, Tally())
    play(SCHEDULE, subject, answer, Tally(), of_host)


AGAIN = repeatable(Shape(tokens_per_block=4), "nobody else")


def test_what_is_asked_again_is_loaded_sooner_or_later() -> None:
    subject, tally = FakeSubject(loads_from=3), Tally()
    play_again(AGAIN, subject, answer, tally)
    assert (subject.num_asked, tally.compared, tally.loaded_tokens) == (3, 3, 4)


def test_an_engine_that_never_loads_is_seen() -> None:
    with pytest.raises(
        NothingLoadedError, match=r"nothing was ever loaded: .*; rank 0: \{.*\}; server: \{"
    ):
        play_again(AGAIN, FakeSubject(), answer, Tally())


def test_a_load_of_what_was_not_stored_and_a_wrong_one_are_seen() -> None:
    with pytest.raises(PlayError, match="which has stored none"):
        play_again(AGAIN, FakeSubject(loads_from=1), answer, Tally())
    with pytest.raises(PlayError, match="logits of token 0 differ with 4 tokens loaded"):
        play_again(AGAIN, FakeSubject(loads_from=2, spoil_at=2), answer, Tally())
