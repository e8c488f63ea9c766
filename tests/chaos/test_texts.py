"""Prompts share beginnings, differ at their ends, and are the same for every engine."""

from __future__ import annotations

import random

from tests.chaos.texts import VOCAB_SIZE, Library


def test_prompts_are_a_function_of_the_numbers() -> None:
    one, other = Library(), Library()
    rngs = random.Random(5), random.Random(5)
    assert [one.draw(rngs[0]) for _ in range(50)] == [other.draw(rngs[1]) for _ in range(50)]


def test_most_begin_with_a_trunk_and_few_are_new() -> None:
    library, rng = Library(), random.Random(1)
    size = library.trunk_blocks * library.block
    drawn = [library.draw(rng) for _ in range(1000)]
    known = set(library._trunks)
    shared = sum(prompt[:size] in known for prompt in drawn)
    assert 900 < shared < 980
    assert all(library.block <= len(prompt) <= library.longest for prompt in drawn)
    assert all(0 < token < VOCAB_SIZE for prompt in drawn for token in prompt)


def test_ends_differ() -> None:
    library, rng = Library(fresh=0.0), random.Random(2)
    drawn = [library.draw(rng) for _ in range(500)]
    assert len(set(drawn)) > 490
    assert len({len(prompt) % library.block for prompt in drawn}) == library.block
