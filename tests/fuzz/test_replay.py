"""A finding can be played again, by its seed and index, its bytes or its steps; and is small."""

from __future__ import annotations

from tests.fuzz import workers
from tests.fuzz.__main__ import main
from tests.fuzz.batches import DecoderFuzz, Stock
from tests.fuzz.plants import PLANTS, plant
from tests.fuzz.replay import replay
from tests.fuzz.report import reproducer


def test_a_message_is_made_again_from_its_index() -> None:
    seen = [DecoderFuzz(3, Stock([])).message(index) for index in (0, 40, 77, 999)]
    assert DecoderFuzz(3, Stock([])).message(77) == seen[2]
    assert DecoderFuzz(4, Stock([])).message(77) != seen[2]
    assert len(set(seen)) == 4


def test_a_finding_of_a_decoder_is_played_again() -> None:
    planted = plant(PLANTS["duplicate-key"])
    try:
        found = workers.piece("decode", 5, 0, 40)["finding"]
        assert found is not None
        assert "twice" in found["what"]
        assert "twice" in replay(f"decode:{found['seed']}:{found['index']}")
        assert "twice" in replay(found["small"])
        assert len(found["small"]) < 1200
        assert f"decode:{found['seed']}:{found['index']}" in reproducer(found)
    finally:
        planted.undo()
    assert replay(found["small"]) == ""


def test_a_finding_of_a_sequence_is_played_again() -> None:
    planted = plant(PLANTS["double-reply"])
    try:
        found = workers.piece("sequence", 5, 0, 40)["finding"]
        assert found is not None
        assert replay(f"sequence:{found['seed']}:{found['index']}")
        assert replay(found["small"])
        assert found["small"].count("[") <= 10  # a few steps of more than twenty
        assert main(["--replay", found["small"]]) == 1
    finally:
        planted.undo()
    assert main(["--replay", found["small"]]) == 0
