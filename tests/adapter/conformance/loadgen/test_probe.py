import threading
import time
from pathlib import Path

import pytest

from adapter.conformance.loadgen.engine import LoadgenError
from adapter.conformance.loadgen.probe import first_answer_ns
from tests.wire.process import ServerProcess


def test_a_running_server_answers(server: ServerProcess) -> None:
    before = time.monotonic_ns()
    assert before < first_answer_ns(server.url, 10.0) < time.monotonic_ns()


def test_a_server_that_starts_later_is_found(short_dir: Path, shm_dir: Path) -> None:
    found: list[int] = []
    probe = threading.Thread(
        target=lambda: found.append(first_answer_ns(f"ipc://{short_dir}/s", 30.0))
    )
    probe.start()
    began = time.monotonic_ns()
    with ServerProcess(short_dir, shm_dir / "arena"):
        probe.join(30.0)
    assert found
    assert found[0] > began


def test_nobody_comes(short_dir: Path) -> None:
    with pytest.raises(LoadgenError, match="nobody listens"):
        first_answer_ns(f"ipc://{short_dir}/s", 0.05)
