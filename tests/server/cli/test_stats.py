"""``kvkeep stats``: a table, a JSON object, and one line when nobody answers."""

from __future__ import annotations

import json
import socket
from pathlib import Path

from click.testing import CliRunner

from server.cli import cli
from server.cli.stats import table
from tests.wire.process import ServerProcess


def test_it_shows_the_counters_of_a_live_server(short_dir: Path, shm_dir: Path) -> None:
    with ServerProcess(short_dir, shm_dir / "a") as server:
        shown = CliRunner().invoke(cli, ["stats", "--endpoint", server.url])
        assert shown.exit_code == 0
        lines = dict(line.split() for line in shown.output.splitlines())
        assert lines["arena_bytes"] == "67,108,864"
        # The endpoint may come from the environment, as for launch.
        shown = CliRunner().invoke(cli, ["stats", "--json"], env={"KVKEEP_ENDPOINT": server.url})
        assert json.loads(shown.output)["arena_bytes"] == 64 << 20


def test_nobody_there_is_exit_code_1_and_one_line(short_dir: Path) -> None:
    shown = CliRunner().invoke(cli, ["stats", "--endpoint", f"ipc://{short_dir}/none"])
    assert shown.exit_code == 1
    assert shown.output.count("\n") == 1
    assert f"no answer from ipc://{short_dir}/none: no server listens there" in shown.output
    assert f"{short_dir}/none.side does not exist" in shown.output


def test_a_closed_port_and_a_dead_server_are_told_apart(short_dir: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(short_dir)}
    shown = CliRunner().invoke(cli, ["stats", "--endpoint", "tcp://localhost:9"], env=environ)
    assert f"{short_dir}/kvkeep/tcp-9.side does not exist" in shown.output
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(f"{short_dir}/s.side")
    shown = CliRunner().invoke(cli, ["stats", "--endpoint", f"ipc://{short_dir}/s"])
    assert shown.exit_code == 1
    assert f"any more: nobody has its side socket {short_dir}/s.side open" in shown.output


def test_a_wrong_url_is_exit_code_2() -> None:
    shown = CliRunner().invoke(cli, ["stats", "--endpoint", "somewhere"])
    assert shown.exit_code == 2
    assert "ipc:///absolute/path" in shown.output
    assert "INVALID_URL: endpoint: server URL 'somewhere'" in shown.output


def test_columns_line_up() -> None:
    assert table({"a": 1, "long_name": 12_345}) == "a               1\nlong_name  12,345"
    assert table({}) == ""
