"""The reference of the settings is the page in docs, and has all of them."""

from __future__ import annotations

from click.testing import CliRunner

from server.cli import cli
from server.cli.reference import markdown
from server.lmcachenames import FLAGS
from server.schema import SETTINGS
from tests.repository import tree


def test_the_page_is_what_the_command_writes() -> None:
    written = CliRunner().invoke(cli, ["config", "--reference"])
    assert written.exit_code == 0
    assert written.output == markdown()
    assert tree.text("docs/configuration.md") == markdown(), (
        "run: python -m server config --reference > docs/configuration.md"
    )


def test_nothing_is_missing() -> None:
    lines = markdown().splitlines()
    for setting in SETTINGS.values():
        [row] = [line for line in lines if line.startswith(f"| `--{setting.key}`")]
        assert f"`{setting.variable}`" in row
        assert setting.valid in row
        assert row.count(" | ") == 5
    for flag in FLAGS:
        assert [line for line in lines if line.startswith(f"| `--{flag}` |")]
