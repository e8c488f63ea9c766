import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from server.bench import session, sizing


def start(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "server", "bench", "--quick", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_and_leaves_nothing(short_dir: Path, number: signal.Signals) -> None:
    with start(short_dir) as process:
        deadline = time.monotonic() + 30.0
        while not list(short_dir.glob("kvkeep-bench-*/start-0.sock")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == "bench: stopped"
    assert list(short_dir.iterdir()) == []
    assert not [name for name in os.listdir("/dev/shm") if f"-bench-{process.pid}-" in name]


def test_too_little_memory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sizing, "available_bytes", lambda: 100 << 20)
    assert session.run(as_json=True, quick=True, check=False, seed=1) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "needs 1024 MiB" in err
    assert "100 MiB are free" in err


@pytest.mark.slow
def test_the_document_of_a_quick_run() -> None:
    began = time.monotonic()
    with start(Path("/tmp")) as process:
        out, err = process.communicate(timeout=110)
    assert process.returncode == 0, err
    document = json.loads(out)
    assert document["schema"] == 1
    assert document["run"]["quick"] is True
    for name in (
        "memcpy_gbps",
        "store_gbps",
        "retrieve_gbps",
        "store_ratio",
        "retrieve_ratio",
        "ping_p50_ms",
        "echo_p50_ms",
        "lookup_p50_ms",
        "lookup_cold_p50_ms",
        "start_s",
        "fill_s",
        "idle_rss_mib",
    ):
        assert document["figures"][name] > 0
    assert time.monotonic() - began < 100
