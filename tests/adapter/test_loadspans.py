"""When a load's span ends: with its hook, its forward, or its arrival; once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adapter.loadspans import MAX_OPEN, LoadSpans
from adapter.metadata import LoadOrder
from adapter.tracing import Tracer
from tests.adapter.test_tracing import Sink


def order(number: int, is_async: bool = False) -> LoadOrder:
    return LoadOrder(
        request_id=10 + number,
        key=number,
        lease=bytes([number]) * 16,
        epoch=bytes(16),
        slots=b"",
        num_shards=1,
        pages=np.zeros((1, 3, 1), np.int32),
        is_async=is_async,
    )


def spans(is_beside: bool) -> tuple[LoadSpans, Sink]:
    sink = Sink()
    tracer = Tracer(sink, 1.0)
    for number in range(1, 4):
        tracer.begin(number, 10 + number, 1)
    return LoadSpans(tracer, is_beside), sink


def test_a_load_that_is_awaited_ends_with_its_hook() -> None:
    loads, sink = spans(is_beside=False)
    loads.begin([order(1)])
    assert sink.spans == []
    loads.begun()
    assert [dict(one.attributes) for one in sink.spans] == [
        {"kvkeep.chunks": 3, "kvkeep.in_background": False}
    ]
    loads.begin([order(1)])  # the metadata came again
    loads.begun()
    loads.launched()
    assert len(sink.spans) == 1


def test_one_beside_the_forward_ends_when_that_was_launched() -> None:
    loads, sink = spans(is_beside=True)
    loads.begin([order(1)])
    loads.begun()
    assert sink.spans == []
    loads.launched()
    assert len(sink.spans) == 1


@pytest.mark.parametrize("is_beside", [True, False])
def test_one_in_the_background_ends_when_its_request_arrived(is_beside: bool) -> None:
    loads, sink = spans(is_beside)
    loads.begin([order(1, True), order(2, True)])
    loads.begun()
    loads.launched()
    loads.arrived([])
    assert sink.spans == []
    loads.arrived([12, 99])
    assert len(sink.spans) == 1
    loads.arrived([11])
    assert len(sink.spans) == 2


def test_a_failure_ends_all_that_are_open() -> None:
    loads, sink = spans(is_beside=False)
    loads.begin([order(1), order(2, True)])
    loads.failed(ValueError("lost"))
    assert [one.failed for one in sink.spans] == ["ValueError: lost"] * 2
    loads.begun()
    loads.arrived([12])
    assert len(sink.spans) == 2


def test_what_was_loaded_is_told_at_the_requests_root() -> None:
    loads, sink = spans(is_beside=False)
    loads.begin([order(1)])
    loads.begun()
    loads._tracer.finish(1)
    assert sink.spans[-1].attributes["kvkeep.chunks_loaded"] == 3
    assert sink.spans[-1].attributes["kvkeep.outcome"] == "loaded"


def test_loads_that_never_arrive_are_not_kept_for_ever() -> None:
    loads, sink = spans(is_beside=False)
    for number in range(MAX_OPEN + 3):
        one = order(number % 3 + 1, True)
        loads.begin([replace(one, lease=number.to_bytes(16, "big"))])
    assert [one.failed for one in sink.spans[:2]] == ["its end was not seen"] * 2
    assert len(loads._open) == MAX_OPEN
