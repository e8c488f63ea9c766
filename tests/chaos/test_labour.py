"""Errors are followed to what they came of; an engine repeats its own prompts, not the newest."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from adapter.copy import LoadError
from protocol.errors import ErrorCode
from tests.chaos.labour import Labour, Task, causes

pytestmark = pytest.mark.torch


def task(**changes: Any) -> Task:
    values: dict[str, Any] = {
        "kind": "k",
        "seed": 1,
        "num_layers": 2,
        "head_bytes": 32,
        "windows": (0, 0),
        "width": 6,
        "rate": 9.0,
        "fresh": 0.1,
        "again": 0.5,
        "wire": "/s",
        "side": "/s.side",
    }
    return Task(**{**values, **changes})


def test_an_error_is_followed_to_its_cause() -> None:
    error = RuntimeError("executor")
    error.__cause__ = LoadError(ErrorCode.COPY_FAILED, "slot")
    assert [type(one) for one in causes(error)] == [RuntimeError, LoadError]
    assert causes(None) == []


def test_failed_offers_are_told_apart_from_other_failures() -> None:
    engine: Any = None
    labour = Labour(engine, task())
    offer, other = LoadError(ErrorCode.COPY_FAILED, "slot"), RuntimeError("no")
    for error in (offer, other):
        labour._take((_Failed(error), 0, False, 10))  # type: ignore[arg-type]
    counts = labour.figures()["counts"]
    assert (counts["failed_offers"], counts["failed_requests"]) == (1, 1)
    assert "slot" in labour.figures()["errors"][0]


class _Failed:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def result(self, limit_s: float) -> Any:
        raise self._error


def test_prompts_are_asked_again_by_their_own_engine() -> None:
    engine: Any = None
    labour = Labour(engine, task())
    drawn = [labour._prompt() for _ in range(400)]
    again = [at for at, prompt in enumerate(drawn) if prompt in drawn[:at]]
    assert 100 < len(again) < 250
    assert min(again) >= 60
    never = Labour(engine, task(again=0.0, fresh=1.0))
    assert len({never._prompt() for _ in range(200)}) == 200
