"""A finding can be played again, by its seed and index, its bytes or its steps; and is small."""

from __future__ import annotations

import json

import pytest

from tests.fuzz import corpus, workers
from tests.fuzz.__main__ import main
from tests.fuzz.batches import DecoderFuzz, Stock
from tests.fuzz.plants import PLANTS, plant
from tests.fuzz.replay import FORMS, read, replay
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


@pytest.mark.parametrize(
    "spec",
    [
        *(
            "",
            "bogus",
            "decode:1",
            "decode:1:2:3",
            "decode:x:1",
            "sequence:1:-1",
            "input:request:xy",
        ),
        *("input:nobody:00", "steps:{", "steps:[]", 'steps:{"steps": 1}', 'steps:{"steps": [[1]]}'),
        *(
            'steps:{"steps": [["_end", 1, 2, 3, 4, 5]]}',
            'steps:{"steps": [["join", "x", 2, 3, 4, 5]]}',
        ),
    ],
)
def test_what_is_no_reproducer_is_refused_with_the_forms(
    spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--replay", spec])
    assert end.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert all(form in said for form in FORMS)


@pytest.mark.parametrize(
    ("name", "value"), [("--jobs", "0"), ("--executions", "-1"), ("--sequences", "-1")]
)
def test_a_count_that_is_none_is_refused(
    name: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, value])
    assert end.value.code == 2
    assert f"{name} must be " in capsys.readouterr().err


def test_every_verb_of_the_corpus_may_be_replayed() -> None:
    text = corpus.SEQUENCES.read_text(encoding="ascii")
    for line in text.splitlines():
        if not line.startswith("#"):
            read(f"steps:{line}")


def test_figures_have_a_line_of_their_own_without_the_answers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    counts = ["--executions", "1000", "--sequences", "3", "--jobs", "1"]
    assert main([*counts, "--seed", "8"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["decode"]["slowest_wall_ms"] > 0
    assert last["sequence"]["sequences"] == 3
    assert "answers" not in last["sequence"]
