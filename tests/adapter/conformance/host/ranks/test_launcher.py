"""The launcher: ranks end with it, and it ends with whoever started the job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.ranks.launcher import GRACE_MS
from tests.adapter.conformance.host.ranks import jobs
from tests.wire.process import ROOT, is_alive, wait_until

pytestmark = pytest.mark.torch

STARTER = """
import sys
from pathlib import Path
from adapter.conformance.host.ranks.engines import TensorParallelEngine
from tests.adapter.conformance.host.ranks import jobs, test_job
engine = TensorParallelEngine(jobs.llm_args(Path(sys.argv[1])), 32, 2)
print(engine.job._pid, *test_job.pids(engine.job), flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("victim", ["starter", "launcher"])
def test_no_rank_is_left_whoever_dies(tmp_path: Path, victim: str) -> None:
    model = jobs.model_dir(tmp_path / "m")
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(model)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert starter.stdout is not None
    launcher, *ranks = (int(word) for word in starter.stdout.readline().split())
    assert len(ranks) == 2
    if victim == "starter":
        starter.kill()
    else:
        os.kill(launcher, signal.SIGKILL)
    gone = wait_until(lambda: not any(is_alive(pid) for pid in ranks), GRACE_MS / 1000 + 10)
    starter.communicate("\n", timeout=20)
    assert gone
    assert wait_until(lambda: not is_alive(launcher), 10)
