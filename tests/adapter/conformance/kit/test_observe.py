"""Calls are noted with what went in and came out, and reach the connector unchanged."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

pytest.importorskip("torch")

from adapter.conformance.kit.observe import Log, observed, place

pytestmark = pytest.mark.torch


class Request:
    request_id = 7


class Scheduler:
    supports_attention_dp = True

    def __init__(self, llm_args: Any) -> None:
        self.args = llm_args

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        return computed + 1, False

    def request_finished(self, request: Any, pages: list[int]) -> bool:
        raise OSError("no")


def test_calls_are_noted_and_handed_on() -> None:
    log = Log()
    with observed(Scheduler, Scheduler, log) as (module, name, _):
        made = getattr(importlib.import_module(module), name)("args")
        assert made.args == "args"
        assert type(made).supports_attention_dp is True
        assert not hasattr(made, "wait_for_initialization")
        mark = log.mark()
        assert made.get_num_new_matched_tokens(Request(), 4) == (5, False)
        with pytest.raises(OSError, match="no"):
            made.request_finished(Request(), [1, 2])
    query, finished = log.since(mark)
    assert (query.request_id, query.detail, query.answer) == (7, (4,), (5, False))
    assert (finished.detail, finished.answer) == (((1, 2),), None)
    assert isinstance(finished.error, OSError)
    assert log.of("request_finished") == [finished]
    with pytest.raises(ImportError):
        importlib.import_module(module)


def test_whoever_wants_to_acts_before_the_connector_does() -> None:
    log, order = Log(), list[str]()
    log.before = lambda hook: order.append(f"before {hook}")

    class Noting(Scheduler):
        def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
            order.append("called")
            return 0, False

    name, scheduler, _ = place("placed_by_a_test", Noting, Scheduler, log)
    made = getattr(importlib.import_module(name), scheduler)("args")
    made.get_num_new_matched_tokens(Request(), 4)
    assert order == ["before get_num_new_matched_tokens", "called"]
    assert [call.hook for call in log.of()] == ["get_num_new_matched_tokens"]
    del sys.modules[name]
