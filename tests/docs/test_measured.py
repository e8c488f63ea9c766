"""docs/measured/README.md against the records beside it: each is told of, with what held in it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.repository import tree
from tests.slow.steps import plan

FOLDER = tree.ROOT / "docs/measured"
PAGE = tree.text("docs/measured/README.md")
PART = PAGE[PAGE.index("## Which record shows what") :]
ROWS = re.findall(r"^\| [^|]+ \| `([^`|]+)` \| (?:`([^`]+)`)?[^|]*\|$", PART, re.M)
#: Without their number, of which there is one for each round, and one for each guard.
MANY = re.compile(r"^(property tests,|restarts) ")


def steps(name: str) -> dict[str, Any]:
    """The steps of a record by name; none of one that is a single program's."""
    document = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return {step["name"]: step for step in document.get("steps", [])}


def test_every_record_is_told_of_and_every_one_told_of_is_there() -> None:
    told = set(re.findall(r"`((?:issue|bench|fuzz)\w*-[\w-]+)`", PART))
    assert told == {path.stem for path in FOLDER.glob("*.json")}, "docs/measured/README.md: a row"


@pytest.mark.parametrize(("name", "step"), ROWS, ids=str)
def test_what_a_row_names_held(name: str, step: str) -> None:
    assert not step or steps(name)[step]["held"] is True


def test_every_step_is_shown_or_named_as_not_shown() -> None:
    lacking = PART[PART.index("**No record yet") : PART.index("Kept for their history")]
    named = set(re.findall(r"`([^`]+)`", lacking)) - {"restarts"}
    shown = {step for _, step in ROWS if step}
    assert named & shown == set()
    names = {step.name for step in plan(1, tree.ROOT / "build", quick=False)}
    assert {one for one in names if not MANY.match(one)} == {
        one for one in named | shown if not MANY.match(one)
    }
