"""Every command in every document: run as it stands, or by whom else, or why not.

``executed.PAGES`` has a row for each. Those that run do so in order, page by page, in one shell in
a folder of their own; pages that ask a server have one, with two prompts in it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from server.cli import cli
from tests.docs.executed import LIVE, NEEDS, PAGES
from tests.docs.how import Elsewhere, Not, Run
from tests.docs.scratch import Scratch
from tests.docs.shown import command_lines, every
from tests.docs.unrun import CHECKS, ours, own_words
from tests.repository import tree
from tests.server.cli.cached import FIRST, SECOND, keys_of
from tests.slow.steps import plan
from tests.stores.valkey import required
from tests.wire.client import Engine, make_namespace
from tests.wire.process import ServerProcess


def first_line(command: str) -> str:
    """What stands in the table of one that brings lines along."""
    return command.splitlines()[0]


def shown() -> Iterator[tuple[str, str]]:
    """Each command of each page, once."""
    for page, commands in every().items():
        yield from ((page, command) for command in dict.fromkeys(commands))


def to_run(page: str, with_slow: bool) -> list[tuple[str, Run]]:
    """What runs of a page, in its order, as often as it is shown."""
    found = ((command, PAGES[page].get(first_line(command))) for command in every()[page])
    runs = [(command, how) for command, how in found if isinstance(how, Run)]
    return [(command, how) for command, how in runs if with_slow or not how.is_slow]


def pages() -> Iterator[object]:
    """Those with something to run, and once more those of which a part is slow."""
    for page in (page for page in PAGES if page in every()):
        if quick := to_run(page, with_slow=False):
            yield pytest.param(page, False, id=page)
        if quick != to_run(page, with_slow=True):
            yield pytest.param(
                page, True, id=f"all of {page}", marks=[pytest.mark.slow, pytest.mark.timeout(150)]
            )


def test_there_are_many() -> None:
    assert len(every()) > 20
    rows = [how for page in PAGES.values() for how in page.values()]
    assert len(rows) > 110
    assert sum(isinstance(how, Run) for how in rows) > len(rows) / 2


def test_each_command_has_a_row_and_each_row_a_command() -> None:
    there = {page: {first_line(command) for command in all_} for page, all_ in every().items()}
    for page in {**there, **PAGES}:
        rows, commands = set(PAGES.get(page, {})), there.get(page, set())
        assert commands - rows == set(), (
            f"{page}: new here; say in tests/docs/executed.py who runs it"
        )
        assert rows - commands == set(), f"{page}: no longer here, but in tests/docs/executed.py"


def test_a_new_command_is_noticed() -> None:
    page = (
        "Text.\n\n```console\n$ kvkeep status\n$ kvkeep mend --all &\n```\n\n```\nls \\\n  -l\n```"
    )
    assert list(command_lines(f"{page}\n")) == ["kvkeep status", "kvkeep mend --all", "ls -l"]


@pytest.mark.parametrize(("page", "with_slow"), list(pages()))
def test_the_commands_of_a_page_run(
    page: str, with_slow: bool, tmp_path: Path, short_dir: Path, shm_dir: Path
) -> None:
    required(*NEEDS.get(page, ()))
    (shm_dir / "own").mkdir()
    commands = to_run(page, with_slow)
    if page not in LIVE:
        assert Scratch(tmp_path, short_dir, shm_dir / "own").run(commands) == []
        return
    (tmp_path / "prompts.jsonl").write_text(f"{json.dumps(FIRST)}\n{json.dumps(SECOND)}\n")
    (short_dir / "s").mkdir()
    tier = f"disk:{tmp_path}/tier?size=64M"
    with (
        ServerProcess(short_dir / "s", shm_dir / "a", "--l1-size", "64M", "--l2", tier) as server,
        Engine(server.url, server.side_path, make_namespace(model="my-model")) as engine,
    ):
        engine.register()
        for tokens in (FIRST, SECOND):
            engine.save(keys_of(tokens), list(range(len(tokens) // 32)))
        environ = {"KVKEEP_ENDPOINT": server.url}
        assert Scratch(tmp_path, short_dir, shm_dir / "own", environ).run(commands) == []


@pytest.mark.parametrize(
    ("command", "how", "said"),
    [
        ("false", Run(), "exit code 1"),
        ("echo a", Run(says="b"), "did not say"),
        ("echo a", Run(ready="b"), "did not say"),
        ("exit 3", Run(), "exit code None"),
    ],
)
def test_a_command_that_fails_is_told(
    tmp_path: Path, short_dir: Path, shm_dir: Path, command: str, how: Run, said: str
) -> None:
    (told,) = Scratch(tmp_path, short_dir, shm_dir).run([(command, how)])
    assert said in told


@pytest.mark.parametrize(("page", "command"), list(shown()))
def test_each_command_that_is_not_run_here_is_elsewhere_or_looked_at(
    page: str, command: str
) -> None:
    how = PAGES.get(page, {}).get(first_line(command))
    if isinstance(how, Not):
        CHECKS[how.check](own_words(command) or shlex.split(command))
    elif isinstance(how, Elsewhere):
        is_there(how.where)
    if (own := own_words(command)) is not None:
        ours(own)
        if own[0] == "launch":
            given_settings_are_taken(own[1:])


def is_there(where: str) -> None:
    """A test, a step of ``.ci/run`` or of ``make slow``."""
    kind, _, name = where.partition(" ")
    if kind == ".ci/run":
        assert re.search(rf"^step {name} ", tree.text(kind), re.M), where
    elif kind == "slow":
        assert name in {step.name for step in plan(1, tree.ROOT / "build", quick=False)}, where
    else:
        path, _, name = where.partition("::")
        assert (tree.ROOT / path).exists(), where
        assert not name or f"def {name}(" in tree.text(path), where


def given_settings_are_taken(options: list[str]) -> None:
    """Each option of a launch that names a setting arrives there."""
    told = json.loads(CliRunner().invoke(cli, ["config", "--json", *options]).output)
    sources = {key: value["source"] for key, value in told["settings"].items()}
    named = {word.removeprefix("--") for word in options if word.startswith("--")}
    assert [key for key in named & set(sources) if sources[key] == "default"] == []
