from collections.abc import Iterator
from dataclasses import replace

import pytest

from adapter.conformance.demo import acts
from adapter.conformance.demo.acts import MAX_NEW_TOKENS, Asked, TextActs
from adapter.conformance.demo.cast import Answer
from adapter.conformance.demo.outcome import Outcome
from adapter.conformance.demo.processes import DemoError, Stage, stage

GOOD = Answer(
    name="L1",
    tokens=[1] * MAX_NEW_TOKENS,
    num_device_tokens=0,
    num_loaded_tokens=32,
    num_computed_tokens=8,
    num_logits=MAX_NEW_TOKENS,
    logits_equal=True,
    seconds=0.1,
)


@pytest.fixture
def on() -> Iterator[Stage]:
    with stage(1 << 20) as made:
        yield made


def nothing(done: int, total: int) -> None:
    """Takes reports."""


def test_a_hit_is_exact_only_if_all_of_it_came_from_the_server() -> None:
    assert Asked(GOOD, 32).is_exact
    assert not Asked(GOOD, 48).is_exact
    assert not Asked(GOOD, 16).is_exact
    assert not Asked(replace(GOOD, num_device_tokens=16), 32).is_exact


def test_acts_need_the_acts_before_them(on: Stage) -> None:
    text = TextActs(on, 2)
    with pytest.raises(DemoError, match="no server"):
        text.engine_a(Outcome("a"), nothing)
    with pytest.raises(DemoError, match="no engine B"):
        text.open_offer(Outcome("offer"), nothing)


@pytest.mark.slow
@pytest.mark.torch
def test_the_reference_reuses_nothing_and_answers_are_held_against_it(on: Stage) -> None:
    pytest.importorskip("torch")
    text = TextActs(on, 2)
    outcome = Outcome("reference")
    text.reference(outcome, nothing)
    assert outcome.held
    assert outcome.figures["requests"] == 4
    answer = replace(GOOD, tokens=text._answers["L1"])
    assert text._equal([answer])
    assert not text._equal([answer, replace(answer, logits_equal=False)])
    assert not text._equal([replace(answer, num_logits=MAX_NEW_TOKENS - 1)])
    wrong = [answer.tokens[0] + 1, *answer.tokens[1:]]
    assert not text._equal([replace(answer, tokens=wrong)])
    # What is asked next is the conversation with the answer in it.
    assert text._longer[0].tokens[len(text._prompts[0].tokens) :][:MAX_NEW_TOKENS] == tuple(
        answer.tokens
    )


def test_limits_are_those_of_the_design() -> None:
    assert acts.HOOK_LIMIT_MS == 50.0
    assert acts.BOUNDED_S <= 5.0
