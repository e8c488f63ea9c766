"""A combination that is left out is a failure: docs/trtllm.md says that each one is tested."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

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
