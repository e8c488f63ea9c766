"""What the command line refuses, what the last line says, and that SIGTERM leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.chaos.__main__ import conclusion, main
from tests.chaos.processes import children_of
from tests.wire.process import ROOT, is_alive, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]

END_LIMIT_S = 100.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("--minutes", "0"),
        ("--minutes", "-1"),
        ("--minutes", "nan"),
        ("--minutes", "inf"),
        ("--rate", "0"),
    ],
)
def test_a_run_of_nothing_is_refused(
    name: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([f"{name}={value}"])
    assert end.value.code == 2
    assert f"{name} must be above 0, not {value}" in capsys.readouterr().err


def test_the_last_line_tells_too_little_from_wrong() -> None:
    assert conclusion([], []) == "held: yes"
    assert conclusion(["too few"], []) == "invalid: does not count (nothing was found wrong)"
    assert conclusion([], ["wrong_bytes 1"]) == "held: no (1 wrong)"
    assert conclusion(["too few"], ["wrong_bytes 1"]) == "held: no (1 wrong)"


def test_a_run_ended_by_sigterm_leaves_no_folder_and_no_process(short_dir: Path) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--minutes", "5", "--rate", "5"]
    environ = {**os.environ, "TMPDIR": str(short_dir)}
    with open(short_dir / "log", "wb") as log:
        run = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=log, stderr=log)
    try:
        # Server and copier, the engines' parent and some of them.
        assert wait_until(lambda: len(below(run.pid)) > 4 or run.poll() is not None, 60.0)
        everybody = below(run.pid)
        arenas = {arena for pid in everybody for arena in arena_of(pid)}
        assert len(arenas) == 1, (short_dir / "log").read_text()
        run.send_signal(signal.SIGTERM)
        assert run.wait(END_LIMIT_S) == 128 + signal.SIGTERM, (short_dir / "log").read_text()
    finally:
        run.kill()
        run.wait()
    assert [path.name for path in short_dir.iterdir()] == ["log"]
    assert not arenas.pop().parent.exists()
    assert wait_until(lambda: not any(map(is_alive, everybody)))


def below(pid: int) -> list[int]:
    """Every process that a process started, and that those started."""
    found = children_of(pid)
    return found + [one for child in found for one in below(child)]


def arena_of(pid: int) -> list[Path]:
    """The arena's folder that a process was started with, if it is a server."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except FileNotFoundError:  # an engine that the run has just killed
        return []
    return [Path(words[at + 1]) for at, word in enumerate(words) if word == "--arena-dir"]
