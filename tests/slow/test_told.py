"""What tests printed is found again by the test and the word that it was printed with."""

from __future__ import annotations

from pathlib import Path

from tests.slow.told import MOST_LETTERS, MOST_LINES, read_told

HEADING = "--------------------------------- Captured Out ---------------------------------"


def reported(tmp_path: Path, printed: str) -> dict[str, object]:
    """What is found of a test that printed something, without its name."""
    report = tmp_path / "r.xml"
    text = f"{HEADING}\n{printed}\n"
    report.write_text(
        "<testsuites><testsuite><testcase name='test_a[x]'>"
        f"<system-out>{text}</system-out></testcase><testcase name='test_b'/></testsuite>"
        "</testsuites>",
        encoding="utf-8",
    )
    found = read_told(report)
    assert all(figure.met is None and not figure.target for figure in found.values())
    return {name.removeprefix("test_a[x]: "): one.value for name, one in found.items()}


def test_a_dictionary_gives_a_figure_for_each_of_its_names(tmp_path: Path) -> None:
    found = reported(tmp_path, "{'ratio': 0.95, 'tier_disk_puts': 7}\nTrue {'ratio': 1.0}")
    assert found == {"ratio": 0.95, "tier_disk_puts": 7, "True ratio": 1.0}


def test_words_stay_words(tmp_path: Path) -> None:
    found = reported(tmp_path, "back after 1.2 s\n\n  a brace { alone\n{1, 2}")
    assert found == {"said 1": "back after 1.2 s", "said 2": "a brace { alone", "said 3": "{1, 2}"}


def test_values_that_are_no_numbers_are_told_in_words(tmp_path: Path) -> None:
    assert reported(tmp_path, "misses: {'by': [1, 2], 'none': None}") == {
        "misses by": "[1, 2]",
        "misses none": "None",
    }


def test_it_is_bounded(tmp_path: Path) -> None:
    found = reported(tmp_path, "\n".join(["x" * 1000] * 1000))
    assert len(found) == MOST_LINES
    assert {len(str(value)) for value in found.values()} == {MOST_LETTERS}
