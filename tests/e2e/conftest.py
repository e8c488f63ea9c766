"""A combination that is left out is a failure: docs/trtllm.md says that each one is tested.

``TRTLLM_CONFORMANCE_DEVICE=simulated`` runs all of these tests on a simulated CUDA device.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.adapter.conformance.host.ondevice import default_machine
from tests.adapter.enginerig import launched
from tests.wire.process import ServerProcess

_NEVER_SKIPPED = ("test_combinations", "test_refused")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and item.path.name.startswith(_NEVER_SKIPPED):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} may not be skipped: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def machine() -> Iterator[None]:
    yield from default_machine()


@pytest.fixture(scope="module")
def patient() -> Iterator[None]:
    """Two busy cores must not turn hits into misses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")
        patch.setenv("TRTLLM_KVKEEP_HELD_PAGES_PERCENT", "50")
        yield


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with launched() as process:
        yield process


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny one, in a folder as engines read it."""
    from adapter.conformance.host.weights import TINY, write_model_dir  # needs torch

    return write_model_dir(tmp_path_factory.mktemp("model"), TINY)
