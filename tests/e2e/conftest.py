"""A combination that is left out is a failure: docs/trtllm.md says that each one is tested.

``TRTLLM_CONFORMANCE_DEVICE=simulated`` runs all of these tests on a simulated CUDA device.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest

from tests.adapter.conformance.host.ondevice import default_machine

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
