"""Links in the documents resolve, and the commands they name exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repository import tree

DOCUMENTS = list(tree.files(suffix=".md"))
FENCE = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|<img[^>]*\bsrc=\"([^\"]+)\"")


def anchors(document: Path) -> set[str]:
    """List the anchors that headings of a document make, as GitHub forms them."""
    made: set[str] = set()
    for title in re.findall(r"^#{1,6}\s+(.+?)\s*$", FENCE.sub("", tree.text(document)), re.M):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        made.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return made


def targets(document: Path) -> Iterator[str]:
    for first, second in LINK.findall(FENCE.sub("", tree.text(document))):
        target = first or second
        if not re.match(r"[a-z]+:", target):
            yield target


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_relative_links_resolve(document: Path) -> None:
    broken = []
    for target in targets(document):
        path, _, anchor = target.partition("#")
        found = (tree.ROOT / document.parent / path).resolve() if path else tree.ROOT / document
        if not found.exists():
            broken.append(target)
            continue
        headings = anchors(found.relative_to(tree.ROOT)) if found.suffix == ".md" else {anchor}
        if anchor and anchor not in headings:
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_make_targets_exist(document: Path) -> None:
    known = set(re.findall(r"^([a-z][a-z-]*):", tree.text("Makefile"), re.M))
    named = set(re.findall(r"(?:^|`|\$ )make ([a-z][a-z-]*)", tree.text(document), re.M))
    assert named <= known


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_modules_to_run_exist(document: Path) -> None:
    pattern = r"python3? -m ((?:adapter|protocol|server)[\w.]*)"
    for module in re.findall(pattern, tree.text(document)):
        path = tree.ROOT / module.rstrip(".").replace(".", "/")
        runs = path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
        assert runs, f"python -m {module}: no such module"


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_files_named_in_code_spans_exist(document: Path) -> None:
    pattern = r"`((?:adapter|protocol|server|tests|docs|deploy)/[\w./-]+\.(?:py|md|svg|sh))`"
    missing = [p for p in re.findall(pattern, tree.text(document)) if not (tree.ROOT / p).exists()]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_dotted_names_lead_to_modules(document: Path) -> None:
    """``adapter.scheduler`` and the like in code spans lead to a file of that name."""
    pattern = r"`((?:adapter|protocol|server)(?:\.[a-z_]+)+)(?:\.[A-Z]\w*|\(\))?`"
    lost = []
    for name in re.findall(pattern, tree.text(document)):
        path = tree.ROOT / name.replace(".", "/")
        held = tree.ROOT / name.rpartition(".")[0].replace(".", "/")
        is_module = path.is_dir() or path.with_suffix(".py").is_file()
        is_member = held.with_suffix(".py").is_file() and name.rpartition(".")[2] in tree.text(
            held.with_suffix(".py")
        )
        if not is_module and not is_member and name.rpartition(".")[2] not in ("py", "md"):
            lost.append(name)
    assert not lost


def test_readme_names_the_two_commands() -> None:
    assert {"make demo", "make test"} <= set(re.findall(r"make \w+", tree.text("README.md")))


def test_link_check_sees_a_broken_link() -> None:
    assert list(LINK.findall("see [x](docs/none.md) and ![y](z.svg)")) == [
        ("docs/none.md", ""),
        ("z.svg", ""),
    ]


def test_decision_records_are_numbered_and_listed() -> None:
    records = sorted(p.name for p in tree.files("docs/adr", suffix=".md") if p.name[0].isdigit())
    assert [int(name[:4]) for name in records] == list(range(len(records)))
    index = tree.text("docs/adr/README.md")
    assert [name for name in records if name not in index] == []
