"""The documents as a site: each page has its place, links stay inside, nothing is fetched."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest

from tests.repository import tree


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_site", tree.ROOT / ".ci/build_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site = load()


def pages() -> set[str]:
    return {str(path.relative_to("docs")) for path in tree.files("docs", suffix=".md")}


def test_every_page_is_in_the_menu_once() -> None:
    menu = [f"{name}.md" for names in site.PARTS.values() for name in names.split()]
    assert len(menu) == len(set(menu))
    written_later = {"ten-minutes.md"}
    assert (
        set(menu) - written_later
        == {page for page in pages() if not page.startswith("adr/0") and page != "index.md"}
        - written_later
    )


def test_the_first_page_leads_to_every_other() -> None:
    text = tree.text("docs/index.md")
    linked = {target.partition("#")[0] for _, _, target, _ in site.LINK.findall(text)}
    alone = {page for page in pages() if page not in linked and not page.startswith("adr/0")}
    assert alone - {"index.md", "ten-minutes.md"} == set()


@pytest.mark.parametrize(
    ("page", "text", "to"),
    [
        ("docs/a.md", "[x](b.md#y)", "[x](b.md#y)"),
        ("docs/a.md", "[x](../deploy/README.md)", "[x](tree/deploy/README.md)"),
        ("docs/adr/a.md", "[x](../b.md) and [y](https://z/)", "[x](../b.md) and [y](https://z/)"),
        ("deploy/README.md", "[x](../docs/a.md#b)", "[x](../../a.md#b)"),
        ("deploy/README.md", "![x](systemd)", "x"),
        ("docs/a.md", "[x](#y)", "[x](#y)"),
        ("docs/a.md", "```\n[x](../deploy/README.md)\n```", "```\n[x](../deploy/README.md)\n```"),
    ],
)
def test_links_lead_to_where_files_are_on_the_site(page: str, text: str, to: str) -> None:
    assert site.turned(page, text) == to


def test_the_site_has_the_pages_and_what_they_link_to(tmp_path: Path) -> None:
    site.assemble(tmp_path / "pages")
    there = {str(p.relative_to(tmp_path / "pages")) for p in (tmp_path / "pages").rglob("*.md")}
    assert there >= pages() | {"tree/README.md", "tree/deploy/README.md"}
    assert (tmp_path / "pages/tree/tests/node/client.mjs").is_file()
    first = (tmp_path / "pages/index.md").read_text()
    assert first.startswith(site.turned("docs/index.md", tree.text("docs/index.md")))
    in_menu = re.findall(r"^[\w/-]+$", first.partition("```{toctree}")[2], re.M)
    assert {f"{name}.md" for name in in_menu} == there - {"index.md"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", '<script async src="https://x/y.js">'),
        ("a.html", '<img alt="" src="//x/y.png">'),
        ("a.html", '<link rel="stylesheet" href="https://x/y.css">'),
        ("a.css", "@import 'https://x/y.css';"),
        ("a.css", "src: url(https://x/y.woff)"),
    ],
)
def test_what_would_be_fetched_is_found(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert len(site.fetches(tmp_path)) == 1
    (tmp_path / name).write_text('<a href="https://x/">x</a><img src="y.png"> url(y.woff)')
    assert site.fetches(tmp_path) == []


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages/index.md").write_text("# A b\n\n[x](#a-b), [x](#b), [y](z.md)\n")
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-b", "dummy"]
    done = subprocess.run(
        [*command, "-c", tree.ROOT / ".ci/site", tmp_path / "pages", tmp_path / "out"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert re.findall(r"not found.*'(\S+)' \[myst.xref_missing\]", done.stderr) == ["b", "z.md"]


@pytest.mark.parametrize("path", list(tree.files("docs", suffix=".svg")), ids=str)
def test_pictures_are_ours_for_light_and_dark_and_say_what_they_show(path: Path) -> None:
    text = tree.text(path)
    root = ET.fromstring(text)
    assert root.get("aria-label")
    assert "prefers-color-scheme: dark" in text
    assert set(re.findall(r"https?://[^\"]*", text)) == {"http://www.w3.org/2000/svg"}
    used = {name for names in re.findall(r'class="([^"]+)"', text) for name in names.split()}
    styled = set(re.findall(r"^ *\.(\w+) \{", text.partition("@media")[0], re.M))
    assert used <= styled
    assert any(path.name in tree.text(page) for page in tree.files("docs", suffix=".md"))
