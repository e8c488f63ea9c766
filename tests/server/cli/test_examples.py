"""Each command has a line that fits and examples that are commands; the helps show them."""

from __future__ import annotations

import re
import shlex

import click
import pytest
from click.testing import CliRunner

from server.cli import COMMANDS, cli
from server.cli.examples import EXAMPLES, FIRST, SUMMARIES


def test_every_command_has_both() -> None:
    assert set(SUMMARIES) == set(EXAMPLES) == set(COMMANDS)


def test_the_first_help_cuts_nothing_off_and_says_how_to_begin() -> None:
    said = CliRunner().invoke(cli, ["--help"]).output
    assert "..." not in said.partition("Commands:")[2]
    for name, summary in SUMMARIES.items():
        assert re.search(rf"^  {name} +{re.escape(summary)}$", said, re.M), name
    for line in FIRST:
        assert f"\n    {line}\n" in said
        assert line.split()[1] in COMMANDS


@pytest.mark.parametrize(("name", "example"), [(n, one) for n in EXAMPLES for one in EXAMPLES[n]])
def test_each_example_is_one_of_its_command_and_is_shown(name: str, example: str) -> None:
    program, *words = shlex.split(example)
    assert (program, words[0]) == ("kvkeep", name)
    done = CliRunner().invoke(cli, [*words, "--help"])
    assert done.exit_code == 0, done.output
    assert f"    {example}\n" in CliRunner().invoke(cli, [name, "--help"]).output


def options() -> list[tuple[str, click.Option]]:
    found = []
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        below = command.commands.values() if isinstance(command, click.Group) else [command]
        found += [
            (one.name or name, option)
            for one in below
            for option in one.params
            if isinstance(option, click.Option) and not option.hidden
        ]
    return found


@pytest.mark.parametrize(("name", "option"), options(), ids=str)
def test_every_option_says_what_it_is(name: str, option: click.Option) -> None:
    assert option.help, f"{name} {option.opts[0]}"
