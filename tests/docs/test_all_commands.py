"""Every command in every document: run by a test, or of a program that this page says who runs.

Commands of ours are read by the program itself, so that an option that is gone is noticed wherever
it is shown; most pages' commands are run besides, each by the test of its page.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache

import pytest
from click.testing import CliRunner

from server.cli import COMMANDS, cli
from tests.repository import tree

#: Who runs what is not ours to read by its command line: a test, or the reason why nobody does.
FOREIGN = {
    "docker": "no Docker engine here: docs/deployment.md says so; tests/deploy/test_container.py",
    "systemd-sysusers": "tests/deploy/test_systemd.py",
    "systemd-tmpfiles": "tests/deploy/test_systemd.py",
    "install": "tests/deploy/test_systemd.py",
    "python3": "the step wheel of .ci/run makes an environment and installs into it",
    "pip": "the step wheel of .ci/run, tests/deploy/test_preset.py",
    "/opt/kvkeep/bin/python": "the step wheel of .ci/run",
    "apt-get": "the step tools of .ci/run",
    "bash": "tests/gpu/test_run_sh.py",
    "ssh": "another machine",
    "trtllm-serve": "no TensorRT-LLM here: tests/deploy/test_tensorrt_llm.py reads its files",
    "valkey-server": "tests/stores/valkey.py",
    "mooncake_master": "tests/stores/mooncake.py",
    "mooncake_client": "tests/stores/mooncake.py",
    "make": "tests/repository/test_documents.py sees the targets; .ci/run and make slow run them",
}
SHELL = ("", "console", "sh", "bash")
#: First words of lines in blocks that show something else than commands.
SHOWN = (
    r"FOUND|again:|kvkeep ready:|warmed |[0-9a-f]{20,}|scrape_configs:|M = |user kvkeep "
    r"|FLEET=|ANY=|CODING="
)


def blocks(page: str) -> Iterator[str]:
    for indent, language, text in re.findall(r"^( *)```(\w*)\n(.*?)^ *```$", page, re.M | re.S):
        if language in SHELL and not re.match(rf" *(?:{SHOWN})", text):
            yield re.sub(rf"^{indent}", "", text, flags=re.M).replace("\\\n", " ")


def command_lines(page: str) -> Iterator[str]:
    """Yield each command of a page's blocks, without its prompt, comment and description."""
    for block in blocks(page):
        for line in block.splitlines():
            line = re.sub(r"(?<=\S)\s{2,}\S.*$", "", re.sub(r"\s#\s.*$", "", line))
            line = line.strip().removeprefix("$ ").removesuffix(" &")
            if line and not re.match(SHOWN, line):
                yield from line.split(" && ")


@cache
def every() -> tuple[tuple[str, tuple[str, ...]], ...]:
    found = []
    for path in tree.files(suffix=".md"):
        if path.parts[0] in ("docs", "README.md", "deploy"):
            found += [
                (str(path), tuple(shlex.split(line))) for line in command_lines(tree.text(path))
            ]
    return tuple(dict.fromkeys(found))


def ours(words: tuple[str, ...]) -> list[str] | None:
    """Words behind the program's name of a command of kvkeep's own, else None."""
    if words[0] == "kvkeep":
        return list(words[1:])
    if words[0] in ("python", ".venv/bin/python") and words[1:3] == ("-m", "server"):
        return list(words[3:])
    return None


def of_module(words: tuple[str, ...]) -> bool:
    return words[0] in ("python", ".venv/bin/python") and ours(words) is None


def test_there_are_many() -> None:
    assert len(every()) > 90
    assert len({page for page, _ in every()}) > 20


@pytest.mark.parametrize(("page", "words"), [e for e in every() if ours(e[1]) is not None])
def test_each_command_of_ours_is_one_with_these_options(page: str, words: tuple[str, ...]) -> None:
    own = ours(words)
    assert own
    assert own[0] in COMMANDS, page
    done = CliRunner().invoke(cli, [*own, "--help"])
    assert done.exit_code == 0, (page, done.output)
    if own[0] == "launch":
        told = json.loads(CliRunner().invoke(cli, ["config", "--json", *own[1:]]).output)
        sources = {key: value["source"] for key, value in told["settings"].items()}
        named = {word.removeprefix("--") for word in own if word.startswith("--")}
        assert [key for key in named & set(sources) if sources[key] == "default"] == []


@pytest.mark.parametrize(("page", "words"), [e for e in every() if of_module(e[1])])
def test_each_module_that_is_run_knows_its_options(page: str, words: tuple[str, ...]) -> None:
    if words[1] != "-m":
        assert words[1] == "build/hit.py"  # tests/docs/test_quickstart.py runs it
        return
    path = tree.ROOT / words[2].replace(".", "/")
    sources = sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
    text = "\n".join(source.read_text(encoding="utf-8") for source in sources)
    assert '__name__ == "__main__"' in text or (path / "__main__.py").is_file(), page
    for option in (word for word in words[3:] if word.startswith("--")):
        assert f'"{option}"' in text, (page, option)


@pytest.mark.parametrize(
    ("page", "words"), [e for e in every() if ours(e[1]) is None and not of_module(e[1])]
)
def test_each_other_program_is_run_by_somebody(page: str, words: tuple[str, ...]) -> None:
    assert words[0] in FOREIGN, page
    for path in re.findall(r"tests/[\w/]+\.py", FOREIGN[words[0]]):
        assert (tree.ROOT / path).is_file(), path


def test_what_is_named_is_shown_somewhere() -> None:
    assert set(FOREIGN) - {words[0] for _, words in every()} == set()
