"""The workload against the figures that were published with its definition."""

from __future__ import annotations

import itertools

import pytest

from adapter.conformance.agentic.workload import VOCAB_SIZE, Workload, blocks

PER_TURN = (0.733, 0.625, 0.727, 0.786, 0.824, 0.850, 0.870, 0.885, 0.897, 0.906, 0.914, 0.921)
CUMULATIVE = {1: 0, 12: 0.733, 24: 0.667, 48: 0.728, 72: 0.782, 96: 0.820, 120: 0.847, 144: 0.867}


@pytest.mark.parametrize("block_tokens", [32, 256])
def test_agentic_144_is_the_defined_one(block_tokens: int) -> None:
    workload = Workload(block_tokens)
    order = workload.order()
    counts, hits = blocks(order, block_tokens), workload.expected_hits(saves_answers=False)
    assert (len(order), sum(counts), sum(hits)) == (144, 3096, 2684)
    for turn, ratio in enumerate(PER_TURN):
        part = slice(12 * turn, 12 * turn + 12)
        assert round(sum(hits[part]) / sum(counts[part]), 3) == ratio
    sums = list(itertools.accumulate(hits)), list(itertools.accumulate(counts))
    for after, ratio in CUMULATIVE.items():
        assert round(sums[0][after - 1] / sums[1][after - 1], 3) == ratio
    cold = sum(turn.num_tokens for turn in order)
    warm = cold - sum(hits) * block_tokens
    assert round(cold / warm, 3) == 6.545
    if block_tokens == 256:
        assert (cold, warm) == (811_008, 123_904)


def test_answers_saved_too() -> None:
    workload = Workload(32)
    hits = sum(workload.expected_hits(saves_answers=True))
    assert round(hits / 3096, 3) == 0.952
    cold = sum(turn.num_tokens for turn in workload.order())
    assert round(cold / (cold - hits * 32), 1) == 14.4


def test_the_variant_with_short_answers() -> None:
    workload = Workload(32, 48, 3, system_blocks=16, message_halves=5, answer_halves=1)
    order = workload.order()
    hits = workload.expected_hits(saves_answers=False)
    assert (sum(hits), sum(blocks(order, 32))) == (2624, 3024)


def test_tokens_are_equal_where_they_should_be_and_nowhere_else() -> None:
    workload = Workload(32, agents=3, turns=2)
    order = workload.order()
    first = [workload.message(turn) for turn in order[:3]]
    assert [len(tokens) for tokens in first] == [turn.num_tokens for turn in order[:3]]
    shared = workload.system_tokens
    assert first[0][:shared] == first[1][:shared] == first[2][:shared]
    assert len({tuple(tokens[shared:]) for tokens in first}) == 3
    for turn in order[3:]:
        before = order[turn.agent]
        prompt = workload.message(before) + workload.answer(before) + workload.message(turn)
        assert len(prompt) == turn.num_tokens
    assert all(0 <= token < VOCAB_SIZE for token in first[0])
    assert workload.max_prompt_tokens == order[-1].num_tokens
    assert workload.message(order[0]) == workload.message(order[0])


def test_room_for_all_distinct_blocks() -> None:
    workload = Workload(32)
    assert workload.distinct_blocks == 4 + 12 * 36


def test_odd_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="valid are even"):
        Workload(33)
