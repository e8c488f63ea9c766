"""A short run of both fuzzers in each check: the corpus, then a fresh seed, which is printed."""

from __future__ import annotations

import random
import time

import pytest

from tests.fuzz import corpus, workers
from tests.fuzz.play import SequenceFuzz
from tests.fuzz.report import reproducer

SEED = random.SystemRandom().randrange(1 << 31)
SECONDS = 5.0


def test_the_corpus_finds_nothing() -> None:
    messages, sequences = corpus.play_all(SequenceFuzz(0))
    assert messages > 100
    assert sequences > 60


@pytest.mark.parametrize(("part", "size"), [("decode", 5), ("sequence", 25)])
def test_a_fresh_seed_finds_nothing(part: str, size: int) -> None:
    print(f"seed {SEED}")
    ends_s, first = time.monotonic() + SECONDS, 0
    while time.monotonic() < ends_s:
        piece = workers.piece(part, SEED, first, first + size)
        assert piece["finding"] is None, reproducer(piece["finding"])
        first += size
    assert first > size


def test_most_messages_of_sequences_reach_a_handler() -> None:
    piece = workers.piece("sequence", 4, 0, 40)
    assert piece["finding"] is None
    assert piece["good"] / piece["messages"] > 0.5
    assert piece["fewest"] >= 20
    served = {name for name, number in piece["answers"].items() if number}
    assert {"10/0", "12/0", "13/0", "20/0", "21/0", "2/0", "1/0"} <= served


def test_a_part_sums_its_pieces() -> None:
    total, finding = workers.run("sequence", 9, 6, jobs=1)
    assert finding is None
    assert total.done == 6
    assert total.messages >= 6 * 20
    assert sum(map(len, total.memory.values())) == 1
