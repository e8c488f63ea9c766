"""The demo as a person runs it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
COMMAND = [sys.executable, "-m", "adapter.conformance.demo", "--quick"]


def leftovers(pid: int) -> set[str]:
    folders = {Path("/dev/shm"), Path(tempfile.gettempdir())}
    return {str(p) for folder in folders for p in folder.glob(f"kvkeep-demo-{pid}-*")}


@pytest.mark.slow
def test_the_quick_demo_holds(tmp_path: Path, root: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "demo.json"
    command = [*COMMAND, "--json", str(path)]
    with subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        out, err = run.communicate(timeout=240)
    assert run.returncode == 0, out + err
    assert "all 8 held" in out
    content = json.loads(path.read_text())
    assert content["held"]
    replayed = content["acts"][6]["figures"]
    assert (replayed["hit_blocks"], replayed["full_blocks"]) == (99, 2934)
    assert not leftovers(run.pid)


def test_an_interrupt_leaves_nothing_behind(root: Path) -> None:
    pytest.importorskip("torch")
    demo = subprocess.Popen(
        COMMAND, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert demo.stdout is not None
    line = demo.stdout.readline()
    while "launch a server" not in line:
        assert line, "it ended before its first act"
        line = demo.stdout.readline()
    deadline_s = time.monotonic() + 10
    while not (children := _children(demo.pid)) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert children
    assert leftovers(demo.pid)
    os.kill(demo.pid, signal.SIGINT)
    _, told = demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert "interrupted" in told
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert not leftovers(demo.pid)


def test_unknown_options_are_refused(root: Path) -> None:
    run = subprocess.run(
        [*COMMAND, "--loud"], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 2
    assert "--loud" in run.stderr


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]
