"""Rules that no linter knows: length of files, a twin for each, nothing left undone or private."""

import re
from pathlib import Path

import pytest

from tests.repository import tree

MAX_LINES = 450
SOURCES = list(tree.files(*tree.PACKAGES, suffix=".py"))

# Sources that have no test of the same name, each with the reason. A package's __init__ and
# __main__ need none: the first is imported by each test beside it, the second by whoever runs it.
WITHOUT_TWIN: dict[str, str] = {}

# Sources over the length, each with the reason.
LONG = {"protocol/messages.py": "every message of the wire, one declaration after the other"}

# Written in pieces, so that this file does not hold what it looks for.
PRIVATE = re.compile(
    "|".join(
        (
            r"(?<![\w.])/" + r"work/",
            r"(?<![\w.])/" + r"farm/",
            r"/" + r"root/",
            r"/" + r"home/(?!you\b|user\b)\w+",
            r"\." + r"library\b",
            r"/tmp/" + r"brief",
            "before" + "-stop",
        )
    )
)
UNDONE = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
PICKLE = re.compile(r"^\s*(?:import|from) pickle\b|\bpickle\.loads?\(", re.M)


def twin(source: Path) -> Path:
    return Path("tests") / source.parent / f"test_{source.name}"


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_source_has_a_twin(source: Path) -> None:
    if source.name in ("__init__.py", "__main__.py"):
        return
    expected = twin(source).is_file() or (tree.ROOT / twin(source)).is_file()
    assert expected != (str(source) in WITHOUT_TWIN), f"{twin(source)} or a reason, not both"


def test_reasons_name_files_that_exist() -> None:
    assert [path for path in WITHOUT_TWIN if not (tree.ROOT / path).is_file()] == []


def test_no_file_is_too_long() -> None:
    code = [*tree.files(*tree.PACKAGES, "tests", ".ci", suffix=".py")]
    lengths = {str(path): tree.text(path).count("\n") for path in code}
    assert {path: n for path, n in lengths.items() if n > MAX_LINES}.keys() == LONG.keys()


def test_no_catch_all_modules() -> None:
    names = {"utils.py", "util.py", "common.py", "helpers.py", "helper.py", "misc.py"}
    assert [str(path) for path in SOURCES if path.name in names] == []


def test_nothing_private_or_undone() -> None:
    found = []
    for path in tree.files():
        if path.suffix in (".jsonl", ".png", ".whl"):
            continue
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if PRIVATE.search(line) or (path.suffix == ".py" and UNDONE.search(line)):
                found.append(f"{path}:{number}: {line.strip()[:80]}")
    assert found == []


def test_pickle_stays_in_the_conformance_host() -> None:
    holders = [str(path) for path in SOURCES if PICKLE.search(tree.text(path))]
    assert [path for path in holders if not path.startswith("adapter/conformance/")] == []


@pytest.mark.parametrize(
    "line",
    [
        "cd /" + "work/main",
        "see /tmp/" + "brief/x",
        "/" + "root/.cache",
        "x = 1  # TO" + "DO: more",
    ],
)
def test_patterns_see_what_they_are_for(line: str) -> None:
    assert PRIVATE.search(line) or UNDONE.search(line)


def test_every_module_says_what_it_is() -> None:
    silent = [str(p) for p in SOURCES if not tree.text(p).lstrip().startswith(('"""', 'r"""'))]
    assert silent == []
