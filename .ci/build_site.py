"""Build the documents as a site: ``build_site.py build/site``, from the repository's root.

The pages of docs/ are copied to a folder beside the site, and what they link to outside docs/ with
them, below ``tree/``, so that no link leaves the site. Links to folders become plain text. Then
Sphinx builds it, with every warning an error: a page that is in no part of `PARTS`, a link or an
anchor that leads nowhere. At last the pages are looked at: none may fetch from another host.
"""

import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What the site's menu has, part by part; a page that docs/ has not (yet) is passed over.
PARTS = {
    "Begin": "quickstart ten-minutes concepts faq scope from-lmcache",
    "Operate": "deployment configuration operations runbook observability tenants events security",
    "Lower tiers": "tiers/disk tiers/mooncake tiers/valkey tiers/s3 tiers/encryption",
    "Engines": "trtllm conformance cuda",
    "How it works": "architecture protocol glossary adr/README",
    "Evidence": "benchmarks scale demo chaos restarts soak fuzzing measured/README",
}
FENCE = re.compile(r"(^ *(?:```|~~~).*?^ *(?:```|~~~)$)", re.M | re.S)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
FETCH = re.compile(
    r"<(?:script|img|iframe|source|embed|object)\b[^>]*?\b(?:src|data)=\"(?:https?:)?//[^\"]*\""
    r"|<link\b[^>]*?\brel=\"(?:stylesheet|preload|icon|preconnect)[^>]*?href=\"(?:https?:)?//[^\"]*\""
    r"|@import\s+[^;]*//[^;]*|url\(\s*[\"']?(?:https?:)?//[^)]*"
)


def place(path: str) -> str:
    """Name the place on the site of a file of the repository."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"tree/{path}"


def target_of(path: str, target: str) -> str:
    """Name the file of the repository to which a link on a page leads; '' beyond it."""
    if re.match(r"[a-z]+:", target) or not target:
        return ""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def turned(path: str, text: str) -> str:
    """Have a page's links lead to where the files are on the site."""
    here = posixpath.dirname(place(path))

    def link(found: re.Match[str]) -> str:
        mark, words, target, anchor = found.groups()
        to = target_of(path, target)
        if not to:
            return found[0]
        if (ROOT / to).is_dir():
            return str(words)
        return f"{mark}[{words}]({posixpath.relpath(place(to), here or '.')}{anchor or ''})"

    parts = FENCE.split(text)
    return "".join(part if n % 2 else LINK.sub(link, part) for n, part in enumerate(parts))


def linked(path: str, text: str) -> Iterator[str]:
    """Yield the files outside docs/ that a page links to."""
    for _, _, target, _ in LINK.findall(FENCE.sub("", text)):
        to = target_of(path, target)
        if to and not to.startswith("docs/") and (ROOT / to).is_file():
            yield to


def menu(pages: set[str]) -> str:
    """Write the menu, which the first page carries unseen."""
    lines = []
    for part, names in PARTS.items():
        there = [name for name in names.split() if f"{name}.md" in pages]
        lines += ["", "```{toctree}", ":hidden:", f":caption: {part}", "", *there, "```"]
    others = sorted(p.removesuffix(".md") for p in pages if p.startswith(("tree/", "adr/0")))
    lines += ["", "```{toctree}", ":hidden:", ":caption: Files", "", *others, "```", ""]
    return "\n".join(lines)


def assemble(into: Path) -> None:
    """Copy what the site is made of into a new folder."""
    shutil.rmtree(into, ignore_errors=True)
    waiting = [
        p.relative_to(ROOT).as_posix() for p in sorted((ROOT / "docs").rglob("*")) if p.is_file()
    ]
    done: set[str] = set()
    while waiting:
        path = waiting.pop(0)
        if path in done:
            continue
        done.add(path)
        copy = into / place(path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".md"):
            text = (ROOT / path).read_text(encoding="utf-8")
            waiting += linked(path, text)
            copy.write_text(turned(path, text), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / path, copy)
    pages = {place(path) for path in done if path.endswith(".md")}
    with (into / "index.md").open("a", encoding="utf-8") as file:
        file.write(menu(pages))


def fetches(site: Path) -> list[str]:
    """List what pages or styles of a site would load from other hosts."""
    return [
        f"{path.relative_to(site)}: {found}"
        for path in sorted(site.rglob("*"))
        if path.suffix in (".html", ".css")
        for found in FETCH.findall(path.read_text(encoding="utf-8"))
    ]


def main() -> None:
    """Build the site into the folder that is named; exit 1 with what is wrong."""
    site = Path(sys.argv[1])
    pages = site.with_name(f"{site.name}-pages")
    assemble(pages)
    shutil.rmtree(site, ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-b", "html"]
    state = site.with_name(f"{site.name}-state")
    done = subprocess.run(
        [*command, "-c", str(ROOT / ".ci/site"), "-d", str(state), str(pages), str(site)],
        check=False,
    )
    if done.returncode:
        raise SystemExit("the site was not built: see above")
    if loaded := fetches(site):
        raise SystemExit("the site fetches from elsewhere:\n" + "\n".join(loaded))
    count = sum(1 for _ in site.rglob("*.html"))
    sys.stdout.write(f"{site}/index.html: {count} pages\n")


if __name__ == "__main__":
    main()
