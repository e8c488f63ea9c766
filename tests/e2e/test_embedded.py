"""Embedded mode: an engine with no service beside it has hits, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adapter.embedded import SETTINGS_PREFIX
from tests.adapter.enginerig import SIZE, EngineRig, write_model
from tests.adapter.hostlike import tokens
from tests.adapter.responder import until
from tests.wire.process import ROOT

WAIT_S = 60.0
URL = "inproc://"
NAME = f"kvkeep-inproc-{os.geteuid()}"


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, short_dir: Path, tmp_path: Path) -> Path:
    """The folder in which private servers get theirs; pytest has its own by then."""
    monkeypatch.setattr("tempfile.tempdir", str(short_dir))
    monkeypatch.setenv("TMPDIR", str(short_dir))
    monkeypatch.setenv(f"{SETTINGS_PREFIX}L1_SIZE", "32M")
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")
    monkeypatch.setenv("TRTLLM_KVKEEP_HELD_PAGES_PERCENT", "50")
    return short_dir


def servers_of(pid: int) -> list[int]:
    """Private servers that a process started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            words = (path / "cmdline").read_bytes().split(b"\0")
        except (OSError, IndexError, ValueError):
            continue
        if parent == pid and b"server" in words and b"launch" in words:
            found.append(int(path.name))
    return found


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def leftovers(home: Path) -> list[str]:
    folders = [path.name for path in home.glob("kvkeep-inproc-*")]
    return folders + [n for n in os.listdir("/dev/shm") if n.startswith(f"{NAME}-{os.getpid()}-")]


def test_a_rig_hits_what_it_saved_itself(home: Path, tmp_path: Path) -> None:
    before = set(servers_of(os.getpid()))
    rig = EngineRig(URL, write_model(tmp_path / "m")).register()
    try:
        assert rig.worker.link is not None
        assert rig.worker.link.wait_joined(WAIT_S) is not None
        [pid] = set(servers_of(os.getpid())) - before
        text = tokens(6 * SIZE + 1, seed=5)
        assert rig.run_saved(text).offered == 0
        assert rig.run_hit(text, 6 * SIZE).offered == 6 * SIZE
    finally:
        rig.close()
    assert not is_running(pid)
    assert leftovers(home) == []


KILLED = """
import sys, time
from pathlib import Path
from tests.adapter.enginerig import SIZE, EngineRig
from tests.adapter.hostlike import tokens
rig = EngineRig("inproc://", Path(sys.argv[1])).register()
assert rig.worker.link.wait_joined(60) is not None
rig.run_saved(tokens(6 * SIZE + 1, seed=5))
print("saved", flush=True)
time.sleep(600)
"""


def test_the_server_of_a_killed_engine_ends_by_itself(home: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "m")
    engine = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(model)], cwd=ROOT, stdout=subprocess.PIPE
    )
    try:
        assert engine.stdout is not None
        assert engine.stdout.readline() == b"saved\n"
        [pid] = servers_of(engine.pid)
        [folder] = [path.name for path in home.glob("kvkeep-inproc-*")]
        assert folder in os.listdir("/dev/shm")
    finally:
        engine.kill()
        engine.wait(WAIT_S)
        if engine.stdout is not None:
            engine.stdout.close()
    until(lambda: not is_running(pid), 15)
    assert folder not in os.listdir("/dev/shm")
    assert list((home / folder).iterdir()) == []


@pytest.mark.torch
def test_an_engine_loads_what_it_forgot_to_the_bit(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from adapter.conformance.host.weights import TINY, write_model_dir
    from tests.e2e.torchhost import BLOCK, engine, prompt, same

    model = write_model_dir(tmp_path, TINY)
    text = prompt(5 * BLOCK + 3, seed=9)
    with engine(model, None) as plain:
        expected = plain.submit(text, 4).result(WAIT_S)
    with engine(model, URL) as host:
        assert host.connector.worker.link.wait_joined(WAIT_S) is not None
        assert same(host.submit(text, 4).result(WAIT_S), expected)
        deadline_s, loaded = time.monotonic() + WAIT_S, 0
        while loaded < 5 * BLOCK:
            assert time.monotonic() < deadline_s
            host.forget_reuse(WAIT_S)
            again = host.submit(text, 4).result(WAIT_S)
            assert same(again, expected)
            loaded = again.num_loaded_tokens
    assert leftovers(home) == []


@pytest.mark.torch
@pytest.mark.parametrize("is_adp", [False, True], ids=["tensor-parallel", "attention-dp"])
def test_all_ranks_reach_the_private_server_of_the_first(
    home: Path, tmp_path: Path, is_adp: bool
) -> None:
    pytest.importorskip("torch")
    from adapter.conformance.host.ranks.engines import AttentionDpEngine, TensorParallelEngine
    from adapter.conformance.host.weights import TINY, write_model_dir
    from tests.e2e.torchhost import BLOCK, llm_args, prompt, same

    args = llm_args(write_model_dir(tmp_path, TINY), URL)
    text = prompt(5 * BLOCK + 3, seed=9)
    kind = AttentionDpEngine if is_adp else TensorParallelEngine
    with kind(args, 64, 2) as job:
        expected = job.submit(text, 4).result(WAIT_S)
        deadline_s, loaded = time.monotonic() + WAIT_S, 0
        while loaded < 5 * BLOCK:
            assert time.monotonic() < deadline_s
            job.forget_reuse(WAIT_S)
            # Under attention DP another rank than the one that stored it.
            again = job.submit(text, 4, **({"rank": 1} if is_adp else {})).result(WAIT_S)
            assert same(again, expected)
            loaded = again.num_loaded_tokens
    assert leftovers(home) == []
