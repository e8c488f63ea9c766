"""The command line: help, names, and no heavy import before it is needed."""

from __future__ import annotations

import subprocess
import sys

from click.testing import CliRunner

from server.cli import COMMANDS, cli
from tests.wire.process import ROOT


def test_help_names_every_command_and_the_options_of_launch() -> None:
    runner = CliRunner()
    result = runner.invoke(cli, ["--help"])
    assert result.exit_code == 0
    assert all(name in result.output for name in COMMANDS)
    result = runner.invoke(cli, ["launch", "--help"])
    assert result.exit_code == 0
    for option in ("--endpoint", "--l1-size", "--arena-dir", "--extent-size", "--log-level"):
        assert option in result.output
    assert "cgroup" not in result.output


def test_an_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(cli, ["lunch"])
    assert result.exit_code == 2
    assert "lunch" in result.output


def test_help_imports_neither_numerics_nor_sockets() -> None:
    script = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from server.cli import cli\n"
        "CliRunner().invoke(cli, ['launch', '--help'])\n"
        "print([name for name in ('numpy', 'zmq', 'torch', 'rich') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_the_server_needs_no_heavy_packages() -> None:
    script = (
        "import sys\n"
        "import server.app\n"
        "heavy = ('torch', 'cupy', 'rich', 'adapter', 'asyncio')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
