"""What ``make slow`` takes for a success, and what not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fuzz import branches
from tests.fuzz.judged import read_branches, read_fuzz, read_plants


def missed(figures: dict[str, Any]) -> set[str]:
    return {name for name, figure in figures.items() if figure.met is False}


def document(**changes: Any) -> dict[str, Any]:
    decode = {
        "executions": 10_000_000,
        "growth_mib": 1.0,
        "per_core_second": 1,
        "slowest_wall_ms": 1,
    }
    sequence = {
        "sequences": 200_000,
        "fewest_messages": 20,
        "dispatched_share": 0.9,
        "growth_mib": 1.0,
        "per_core_second": 1,
    }
    for part in (decode, sequence):
        part.update({name: value for name, value in changes.items() if name in part})
    figures = {"decode": decode, "sequence": sequence}
    return {"figures": figures, "finding": changes.get("finding")}


def test_a_whole_run_without_findings_holds() -> None:
    assert missed(read_fuzz(document(), quick=False)) == set()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"executions": 9_999_999}, "decoder executions"),
        ({"sequences": 7}, "sequences"),
        ({"fewest_messages": 19}, "fewest messages of a sequence"),
        ({"dispatched_share": 0.49}, "messages that reached dispatch"),
        ({"growth_mib": 40.0}, "memory grown, MiB"),
        ({"finding": {"what": "x"}}, "findings"),
    ],
)
def test_what_is_missed(change: dict[str, Any], name: str) -> None:
    assert missed(read_fuzz(document(**change), quick=False)) == {name}


def test_counts_of_a_short_run_are_not_judged() -> None:
    assert missed(read_fuzz(document(executions=5, sequences=5), quick=True)) == set()


def test_a_plant_that_is_not_found_is_missed() -> None:
    plants = {str(n): {"seconds": 1.0} for n in range(10)}
    assert missed(read_plants({"figures": {"plants": plants}})) == set()
    plants["3"]["seconds"] = None  # type: ignore[assignment]
    plants["4"]["seconds"] = 121.0
    assert missed(read_plants({"figures": {"plants": plants}})) == {"3 found, s", "4 found, s"}


def test_a_branch_that_is_lost_is_missed() -> None:
    counts = {"strict": 1, "strict_all": 1, "core": 1, "core_all": 2, "excused": 1}
    assert missed(read_branches({**counts, "lost": 0})) == set()
    assert missed(read_branches({**counts, "lost": 1})) == {"branches neither reached nor excused"}


def test_every_excuse_names_a_line_that_is_there_and_a_reason() -> None:
    for (file, text), reason in branches.excused().items():
        lines = (branches.ROOT / file).read_text(encoding="utf-8").splitlines()
        assert text in {line.strip() for line in lines}, (file, text)
        assert len(reason) > 15


def test_a_branch_that_was_not_taken_is_a_gap_unless_its_end_did_not_run_either() -> None:
    entry = {"missing_lines": [3], "missing_branches": [[1, 3], [2, 5]]}
    found = branches.gaps({"files": {"protocol/codec.py": entry, "server/core/index.py": entry}})
    assert [(gap.line, gap.to) for gap in found] == [(3, 0), (2, 5)]
