"""Schedules repeat, share beginnings, and crowd around block boundaries."""

from __future__ import annotations

import pytest

from adapter.conformance.schedules.draw import Ask, Shape, draw, repeatable

SHAPE = Shape(tokens_per_block=16)


def test_a_seed_is_a_schedule() -> None:
    assert draw(7, SHAPE) == draw(7, SHAPE)
    assert draw(7, SHAPE) != draw(8, SHAPE)


def test_what_hundred_schedules_hold() -> None:
    asks = [ask for seed in range(100) for wave in draw(seed, SHAPE).waves for ask in wave.asks]
    assert all(1 <= len(ask.prompt) <= 64 and ask.max_new_tokens >= 1 for ask in asks)
    assert all(0 <= token < SHAPE.vocab_size for ask in asks for token in ask.prompt)
    rests = [len(ask.prompt) % 16 for ask in asks]
    assert {0, 1, 15} <= set(rests)
    assert sum(ask.cancel_after_s is not None for ask in asks) > 20
    assert sum(bool(ask.stop_ids) for ask in asks) > 20
    assert len({ask.cache_salt for ask in asks}) == 3
    beginnings = [ask.prompt[:16] for ask in asks if len(ask.prompt) >= 16]
    assert len(set(beginnings)) < len(beginnings) / 2


def test_talks_fill_a_block_with_generated_tokens_and_read_it() -> None:
    schedules = [draw(seed, SHAPE) for seed in range(100)]
    talks = [talk for schedule in schedules for talk in schedule.talks]
    assert 10 < sum(bool(schedule.talks) for schedule in schedules) < 40
    assert len(talks) > sum(bool(schedule.talks) for schedule in schedules)
    for talk in talks:
        first, second = talk.first, talk.second(range(100, 100 + talk.first.max_new_tokens))
        num_filled = (len(first.prompt) + first.max_new_tokens - 1) // 16
        # The block that the answer fills is whole in the second turn, which goes on behind it.
        assert num_filled == len(first.prompt) // 16 + 1 <= (len(second.prompt) - 1) // 16
        assert second.prompt[: len(first.prompt)] == first.prompt
        assert len(second.prompt) <= SHAPE.max_blocks * 16
        assert (first.cancel_after_s, first.stop_ids) == (None, frozenset())
        assert second.cache_salt == first.cache_salt


@pytest.mark.parametrize(("size", "answer"), [(4, 2), (4, 6), (16, 28), (16, 40), (64, 28)])
def test_answers_of_any_length_leave_room_for_a_second_turn(size: int, answer: int) -> None:
    shape = Shape(tokens_per_block=size, max_new_tokens=answer, talk=1.0)
    talks = [talk for seed in range(50) for talk in draw(seed, shape).talks]
    assert len(talks) >= 50
    for talk in talks:
        begun = len(talk.first.prompt)
        num_tokens = begun + talk.first.max_new_tokens
        assert (num_tokens - 1) // size > begun // size
        assert num_tokens < num_tokens + len(talk.tail) <= shape.max_blocks * size


def test_no_talk_where_no_answer_fills_a_block() -> None:
    for shape in (
        Shape(tokens_per_block=16, max_blocks=1, talk=1.0),
        Shape(tokens_per_block=16, max_new_tokens=60, talk=1.0),
        Shape(tokens_per_block=16, max_new_tokens=1, talk=1.0),
        Shape(tokens_per_block=16, talk=0.0),
    ):
        assert not any(draw(seed, shape).talks for seed in range(20))


def test_families_have_other_texts() -> None:
    one = {ask.prompt[:16] for ask in draw(1, SHAPE).waves[0].asks}
    other = Shape(tokens_per_block=16, family=1)
    assert one.isdisjoint({ask.prompt[:16] for ask in draw(1, other).waves[0].asks})


def test_what_is_to_be_asked_again_leaves_a_token_behind_whole_blocks() -> None:
    one = repeatable(SHAPE, "a")
    assert len(one.prompt) == 3 * 16 + 1
    assert (one.cache_salt, one.cancel_after_s) == ("a", None)
    assert repeatable(SHAPE, "b").prompt == one.prompt


def test_a_request_is_told_without_its_whole_prompt() -> None:
    told = str(Ask(tuple(range(900)), 3, stop_ids=frozenset({5}), cache_salt="(a)"))
    assert told.startswith("900 tokens [0, 1, 2, 3, …], max_new_tokens=3, ")
    assert "cache_salt='(a)'" in told
    assert len(told) < 200
    assert str(Ask((1, 2), 3)).startswith("2 tokens [1, 2], max_new_tokens=3, ")
