from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adapter.conformance.demo import acts
from adapter.conformance.demo.acts import MAX_NEW_TOKENS, Asked, TextActs
from adapter.conformance.demo.cast import ARENA_BYTES, Answer
from adapter.conformance.demo.outcome import Outcome
from adapter.conformance.demo.processes import DemoError, Stage, stage
from protocol.extents import RECORDS_OFFSET_BYTES, unpack_header

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


@pytest.mark.slow
@pytest.mark.torch
def test_wrong_bytes_in_the_cache_do_not_go_unnoticed() -> None:
    """The control: every hit is there, every byte of it is wrong, and the act says so."""
    pytest.importorskip("torch")
    with stage(ARENA_BYTES) as on:
        text = TextActs(on, 2)
        played = []
        for act in (text.launch, text.reference, text.engine_a):
            played.append(Outcome(act.__name__))
            act(played[-1], nothing)
        assert all(outcome.held for outcome in played), played
        assert spoil(on.arena_dir) > 0
        outcome = Outcome("cold_engine")
        text.cold_engine(outcome, nothing)
    by_text = {claim.text: claim.held for claim in outcome.claims}
    assert not by_text["logits equal the reference, bit for bit"]
    assert not outcome.held
    assert int(str(outcome.figures["hits"])) > 0


def spoil(arena_dir: Path) -> int:
    """Turns over one bit of each byte behind the records; the number of bytes that were not 0."""
    num_bytes = 0
    for path in arena_dir.glob("*.extent"):
        path.chmod(0o600)
        geometry, _ = unpack_header(path.read_bytes()[:RECORDS_OFFSET_BYTES])
        content = np.memmap(path, mode="r+", offset=geometry.data_offset_bytes)
        num_bytes += int(np.count_nonzero(content))
        content ^= 0x20
        content.flush()
    return num_bytes


def test_limits_are_those_of_the_design() -> None:
    assert acts.HOOK_LIMIT_MS == 50.0
    assert acts.BOUNDED_S <= 5.0
