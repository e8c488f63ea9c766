"""P12: ``del llm`` in a process that lives on: the pool is held until nobody can read it any more.

The server may stand still, be replaced, or be gone for good while the engine says farewell; the
process is not held up by it, another engine in it goes on, and nothing stays behind.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapter import keeper
from server.asking import stats
from tests.adapter.enginerig import EngineRig, write_model
from tests.adapter.hostlike import tokens
from tests.faults.test_b17_a_restarted_server_is_noticed import Servers
from tests.wire.process import wait_until

PROMPT = tokens(30)
DELETE_LIMIT_S = 6.0


@pytest.fixture
def servers(short_dir: Path, shm_dir: Path) -> Iterator[Servers]:
    made = Servers(short_dir, shm_dir / "a", None)
    yield made
    made.now.process.send_signal(signal.SIGCONT)
    made.now.kill()


class Deleted:
    """An engine that was in use and to which nobody refers any more."""

    def __init__(self, url: str, model: Path, accident: Any) -> None:
        self.others = set(keepers())  # of engines of other tests, whose server is not coming back
        rig = EngineRig(url, model).register()
        rig.run_saved(PROMPT)
        assert rig.run(PROMPT).offered == 28
        running = rig.worker._running
        assert running is not None
        self.memory = weakref.ref(running.memory)
        self.engine = weakref.ref(rig.scheduler._engine)
        del running
        accident()
        began_s = time.monotonic()
        del rig
        gc.collect()
        self.took_s = time.monotonic() - began_s
        assert self.engine() is None

    def is_pool_held(self) -> bool:
        gc.collect()
        return self.memory() is not None

    def is_over(self) -> bool:
        return not self.is_pool_held() and not set(keepers()) - self.others


def keepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kvkeep-keeper"]


def sessions(servers: Servers) -> int:
    return stats(servers.now.side_path, 5.0)["sessions"]


def test_p12_a_server_that_answers(servers: Servers, tmp_path: Path) -> None:
    gone = Deleted(servers.now.url, write_model(tmp_path / "m"), lambda: None)
    assert gone.took_s < DELETE_LIMIT_S
    assert wait_until(gone.is_over, 5)
    assert sessions(servers) == 0


def test_p12_a_server_that_stands_still(servers: Servers, tmp_path: Path) -> None:
    gone = Deleted(
        servers.now.url,
        write_model(tmp_path / "m"),
        lambda: os.kill(servers.now.pid, signal.SIGSTOP),
    )
    assert gone.took_s < DELETE_LIMIT_S
    time.sleep(3)
    assert gone.is_pool_held()
    os.kill(servers.now.pid, signal.SIGCONT)
    assert wait_until(gone.is_over, 15)
    assert sessions(servers) == 0


def test_p12_a_stopped_server_that_is_replaced(servers: Servers, tmp_path: Path) -> None:
    gone = Deleted(
        servers.now.url,
        write_model(tmp_path / "m"),
        lambda: os.kill(servers.now.pid, signal.SIGSTOP),
    )
    assert gone.is_pool_held()
    servers.replace()
    assert wait_until(gone.is_over, 10)
    assert sessions(servers) == 0


def test_p12_a_server_that_never_comes_back(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "GONE_NS", 1_000_000_000)
    gone = Deleted(servers.now.url, write_model(tmp_path / "m"), servers.now.kill)
    assert gone.took_s < DELETE_LIMIT_S
    assert wait_until(gone.is_over, 10)


def test_p12_a_lost_side_connection_does_not_lose_the_farewell(
    servers: Servers, tmp_path: Path
) -> None:
    """The new connection ends the session of the old one, although it registers nothing itself."""
    rig = EngineRig(servers.now.url, write_model(tmp_path / "m")).register()
    link = rig.worker.link
    assert link is not None
    os.kill(servers.now.pid, signal.SIGSTOP)
    assert not link.close(0.3)
    visit = link._keeper._visit
    assert visit is not None
    visit._side._socket.shutdown(2)
    assert wait_until(lambda: link._keeper._visit is not visit, 5)
    os.kill(servers.now.pid, signal.SIGCONT)
    assert wait_until(lambda: not sessions(servers), 15)
    assert link.close(5)
    rig.close()


def test_p12_another_engine_of_the_process_goes_on(servers: Servers, tmp_path: Path) -> None:
    model = write_model(tmp_path / "m")
    rig = EngineRig(servers.now.url, model).register()
    try:
        gone = Deleted(servers.now.url, model, lambda: None)
        assert wait_until(lambda: not gone.is_pool_held(), 5)
        assert rig.run(PROMPT).offered == 28
        assert sessions(servers) == 1
        servers.replace()
        assert wait_until(lambda: rig.run(PROMPT).offered == 28, 10)
        assert wait_until(lambda: not rig.stats().get("parties_awaited"), 10), rig.stats()
    finally:
        rig.close()
