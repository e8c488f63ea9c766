"""Engines whose process ends without a word to the connector: quickly, quietly, nothing left.

Host contract rule 14: do not rely on ``shutdown``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapter.enginerig import launched, write_model
from tests.wire.process import ROOT, ServerProcess

EXIT_LIMIT_S = 8.0

CHILD = """
import os, sys, threading, time
from pathlib import Path
from tests.adapter.enginerig import EngineRig
from tests.adapter.hostlike import tokens

url, model, way = sys.argv[1:]
rig = EngineRig(url, Path(model)).register()
rig.run_saved(tokens(22))
assert rig.run(tokens(22)).offered == 20


def go_on():
    count = 0
    while True:
        rig.run(tokens(22, seed=count % 50))
        count += 1


if way == "busy":  # as a host whose executor is a daemon thread
    rig.scheduler._desk._channel.hand_over()
    threading.Thread(target=go_on, daemon=True).start()
elif way == "dropped":
    del rig
elif way == "forked":
    child = os.fork()
    if child == 0:
        assert rig.run(tokens(22)).offered == 0
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert rig.run(tokens(22)).offered == 20
print("leaving", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with launched() as process:
        yield process


@pytest.mark.parametrize("way", ["idle", "busy", "dropped", "forked", "stopped"])
def test_an_interpreter_that_ends(server: ServerProcess, tmp_path: Path, way: str) -> None:
    model = write_model(tmp_path / "m")
    with subprocess.Popen(
        # From 3.12 on Python warns of a fork beside threads, which is what is tried here.
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            CHILD,
            server.url,
            str(model),
            way,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TRTLLM_KVKEEP_QUERY_BUDGET_MS": "1000"},
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        said = child.stdout.readline()
        assert said == "leaving\n", said + child.stdout.read()
        if way == "stopped":  # the farewell is not answered
            server.process.send_signal(signal.SIGSTOP)
        begin_s = time.monotonic()
        try:
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.wait(EXIT_LIMIT_S) == 0
        finally:
            server.process.send_signal(signal.SIGCONT)
            child.kill()
        assert time.monotonic() - begin_s < EXIT_LIMIT_S
        assert "Traceback" not in child.stdout.read()
