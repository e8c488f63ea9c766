"""The command line: help, names, and no heavy import before it is needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from protocol import __version__
from server.cli import COMMANDS, cli, launch
from server.lmcachenames import FLAGS
from server.schema import SETTINGS
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
    assert "--arena-at-exit" in result.output
    assert "cgroup" not in result.output
    for said in ("absolute", "1M to 16T", "64K to 1G", "4096 bytes", "WARNING", "[default:"):
        assert said in " ".join(result.output.split())


def test_an_unknown_command_is_refused() -> None:
    result = CliRunner().invoke(cli, ["lunch"])
    assert result.exit_code == 2
    assert "No such command 'lunch': did you mean launch?" in result.output
    result = CliRunner().invoke(cli, ["qqq"])
    assert result.exit_code == 2
    assert "there are bench, clear" in result.output


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


def run(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "server", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, **(environ or {})},
        check=False,
    )


def test_version_is_said() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"kvkeep {__version__}\n")


def test_a_slip_in_an_option_is_told_with_the_right_one() -> None:
    done = run("launch", "--l1-sise", "3G")
    assert done.returncode == 2
    assert "--l1-size" in done.stderr


def test_a_wrong_variable_is_named_and_a_slip_in_its_name_too() -> None:
    done = run("launch", environ={"KVKEEP_L1_SIZE": "20X"})
    assert done.returncode == 2
    assert "KVKEEP_L1_SIZE: l1-size='20X': expected a number" in done.stderr
    done = run("launch", environ={"KVKEEP_L1_SIZE": "20X", "KVKEEP_L1SIZE": "20G"})
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "KVKEEP_L1SIZE in the environment is no setting" in done.stderr
    assert "did you mean KVKEEP_L1_SIZE?" in done.stderr


def test_flags_of_lmcache_are_taken_and_named_where_they_mean_nothing() -> None:
    flags = ["--host", "localhost", "--port", "5555", "--l1-size-gb", "1023T"]
    flags += ["--chunk-size", "256", "--eviction-policy", "LRU", "--max-workers", "2"]
    done = run("launch", *flags)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert [line.split()[1] for line in lines[:3]] == [
        "--chunk-size",
        "--eviction-policy",
        "--max-workers",
    ]
    assert "l1-size='1023TG'" in lines[3]
    done = run("launch", "--l1-size", "1G", "--l1-size-gb", "2")
    assert done.returncode == 2
    assert "l1-size='1G': expected one of this and 2G" in done.stderr


def test_the_options_are_those_of_the_schema_and_of_lmcache() -> None:
    options = {name for one in launch.command.params for name in one.opts}
    assert options == {f"--{key}" for key in [*SETTINGS, *FLAGS]}


@pytest.mark.parametrize("module", ["click", "server.cli.launch", "server.app"])
def test_ctrl_c_before_it_serves_makes_no_traceback(module: str) -> None:
    """SIGINT exactly when a module is about to be read."""
    script = (
        "import os, signal, sys\n"
        "class Trap:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Trap())\n"
        "sys.argv = ['kvkeep', 'launch', '--l1-size', '64M']\n"
        "from server.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr.strip() == ""
