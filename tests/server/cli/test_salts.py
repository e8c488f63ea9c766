"""A salt off the command line, and the empty one refused."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from server.cli.salts import MAX_SALT_BYTES, salt_options


@click.command()
@salt_options("The salt.")
@click.option("--other", default="o")
def command(salt: str | None, other: str) -> None:
    click.echo(f"{salt!r} {other}")


def ran(*words: str, typed: bytes = b"") -> Result:
    return CliRunner().invoke(command, list(words), input=typed)


def test_each_way(tmp_path: Path) -> None:
    path = tmp_path / "salt"
    path.write_text("tenant a \n")
    assert ran().output == "None o\n"
    assert ran("--salt", "x", "--other", "p").output == "'x' p\n"
    assert ran("--salt-file", str(path)).output == "'tenant a ' o\n"
    assert ran("--salt-file", "-", typed="ä\r\n".encode()).output == "'ä' o\n"
    path.write_text("no newline")
    assert ran("--salt-file", str(path)).output == "'no newline' o\n"


@pytest.mark.parametrize(
    ("words", "typed", "expected"),
    [
        (("--salt", ""), b"", "an empty salt is none"),
        (("--salt-file", "-"), b"\n", "an empty salt is none"),
        (("--salt-file", "-"), b"", "an empty salt is none"),
        (("--salt-file", "-"), b"a\nb\n", "one line"),
        (("--salt-file", "-"), b"a" * (MAX_SALT_BYTES + 1), "one line"),
        (("--salt-file", "-"), b"\xff", "can be read"),
        (("--salt-file", "/nowhere/at/all"), b"", "can be read"),
        (("--salt", "x", "--salt-file", "-"), b"y", "either --salt"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], typed: bytes, expected: str) -> None:
    result = ran(*words, typed=typed)
    assert result.exit_code == 2
    assert expected in result.output
