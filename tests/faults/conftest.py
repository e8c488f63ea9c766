"""Servers and bystanders for fault tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.adapter.enginerig import launched
from tests.faults.bystander import Bystander, engaged, stats
from tests.wire.client import make_namespace
from tests.wire.process import ServerProcess


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with launched("--l1-size", "64M", "--extent-size", "1M") as process:
        yield process


@pytest.fixture
def own_server(short_dir: Path, shm_dir: Path) -> Iterator[ServerProcess]:
    """A server that the test may kill, stop or fill."""
    sizes = ("--l1-size", "32M", "--extent-size", "4M")
    with ServerProcess(short_dir, shm_dir / "a", *sizes) as process:
        yield process


@pytest.fixture
def copying(own_server: ServerProcess) -> Iterator[Callable[[], bool]]:
    """Says whether that server has a copy in flight."""
    with engaged(own_server, make_namespace(model="watcher")) as watcher:
        yield lambda: stats(watcher)["copies_in_flight"] > 0


@pytest.fixture
def bystander(server: ServerProcess) -> Iterator[Bystander]:
    made = Bystander(server)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Busy cores must not turn hits into misses; the budget's own test sets it back."""
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")
    monkeypatch.setenv("TRTLLM_KVKEEP_HELD_PAGES_PERCENT", "50")
