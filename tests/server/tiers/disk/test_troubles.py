"""Troubles are counted each time and told now and then."""

from __future__ import annotations

import pytest

from server.tiers.disk.troubles import AGAIN_S, Troubles


def test_told_at_once_then_seldom(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    troubles = Troubles("disk2", lambda: now_s[0])
    for _ in range(5):
        troubles.tell("read errors", "Input/output error")
    troubles.tell("write errors", "Read-only file system")
    now_s[0] = AGAIN_S
    troubles.tell("read errors", "Input/output error")
    assert [record.message for record in caplog.records] == [
        "tier disk2: read errors: Input/output error (1 so far)",
        "tier disk2: write errors: Read-only file system (1 so far)",
        "tier disk2: read errors: Input/output error (6 so far)",
    ]
    troubles.count("evicted", 100)
    assert (troubles.of("read errors"), troubles.of("nothing")) == (6, 0)
    assert troubles.line() == "evicted 100, read errors 6, write errors 1"
