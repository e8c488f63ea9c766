"""``kvkeep warm``: what it refuses and how it ends; tests/e2e/test_warm.py sees it load."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from protocol.messages import WarmStatusReply
from server.cli import cli, warm
from tests.server.cli.cached import Cached
from tests.wire.process import ServerProcess

STATUS = WarmStatusReply(
    listed=12, held=3, loaded=8, loaded_bytes=8 << 20, missed=1, final=True, reason="all is well"
)


def test_its_last_line_and_its_json(capsys: pytest.CaptureFixture[str]) -> None:
    warm._tell(STATUS, 1.25, as_json=False)
    line = "warmed 8 chunks (8 MiB) in 1.2 s, 3 were there: all is well\n"
    assert capsys.readouterr().out == line
    warm._tell(STATUS, 1.25, as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "chunks": 8,
        "bytes": 8 << 20,
        "held": 3,
        "listed": 12,
        "missed": 1,
        "seconds": 1.25,
        "reason": "all is well",
    }


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--bytes", "many"], "bytes='many'"),
        (["--tokens", __file__], "--namespace and --tokens-per-block with it"),
        (["--endpoint", "somewhere"], "INVALID_URL"),
    ],
)
def test_what_makes_no_sense_is_exit_code_2_and_one_line(arguments: list[str], told: str) -> None:
    shown = CliRunner().invoke(cli, ["warm", *arguments])
    assert shown.exit_code == 2
    assert told in shown.output
    assert len(shown.output.splitlines()) == 1


def test_it_waits_for_a_server_as_long_as_it_was_told(short_dir: Path) -> None:
    begun_s = time.monotonic()
    shown = CliRunner().invoke(
        cli, ["warm", "--endpoint", f"ipc://{short_dir}/none", "--wait", "0.5"]
    )
    assert 0.5 <= time.monotonic() - begun_s < 5
    assert shown.exit_code == 1
    assert len(shown.output.splitlines()) == 1
    assert f"not warmed, ipc://{short_dir}/none: no server listens there" in shown.output


def test_settings_of_something_else_do_not_matter(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVKEEP_L1_SIZE", "wrong")
    monkeypatch.setenv("LMCACHE_CONFIG_FILE", "/nowhere")
    url = f"ipc://{short_dir}/none"
    shown = CliRunner().invoke(cli, ["warm", "--endpoint", url, "--wait", "0"])
    assert (shown.exit_code, "no server listens there" in shown.output) == (1, True)


def test_a_server_without_tiers_is_not_waited_for(short_dir: Path, shm_dir: Path) -> None:
    with ServerProcess(short_dir, shm_dir / "a") as server:
        begun_s = time.monotonic()
        shown = CliRunner().invoke(cli, ["warm", "--server", server.url, "--wait", "60"])
        assert time.monotonic() - begun_s < 20
    assert shown.exit_code == 1
    assert "give it --l2" in shown.output


def test_a_namespace_may_be_named_as_for_every_other_command(holding: Cached) -> None:
    def warmed(name: str) -> tuple[int, str]:
        words = ["warm", "--endpoint", holding.server.url, "--namespace", name]
        shown = CliRunner().invoke(cli, words)
        return shown.exit_code, shown.output

    for name in (holding.name, holding.name[:6], "ab" * 16):
        code, said = warmed(name)
        assert (code, "give it --l2" in said) == (1, True), said  # it was understood
    for name in ("nobodys/model", "g" * 32, "abc"):
        code, said = warmed(name)
        assert (code, len(said.splitlines())) == (2, 1), said
        assert f"namespace={name!r}" in said
        assert "named by all 32 hex digits" in said


def test_one_that_ends_before_any_job_began_was_interrupted() -> None:
    assert warm._together([], "interrupted").reason == "interrupted"
    assert warm._together([STATUS, STATUS], "interrupted").reason == "2 chunks were not found"


def test_ctrl_c_while_it_waits_for_a_server_is_one_line(short_dir: Path) -> None:
    url = f"ipc://{short_dir}/none"
    ctrl_c = threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT))
    ctrl_c.start()
    shown = CliRunner().invoke(cli, ["warm", "--endpoint", url, "--wait", "30"])
    ctrl_c.join()
    assert (shown.exit_code, shown.output) == (130, "kvkeep: not warmed: interrupted\n")
