"""The clock of layers that take time as a device's do."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.forward import ForwardEntry
from tests.benchmarks.bench_layerwise import _OVERSLEPT_S, TimedModel

pytestmark = pytest.mark.torch

LAYER_S = 0.002
LAYERS = 8


def entry(num_tokens: int) -> ForwardEntry:
    return ForwardEntry(0, num_tokens, [1] * num_tokens, ((0,),), True, True, None)


def test_layers_take_their_time_whatever_a_sleep_adds() -> None:
    model = TimedModel(16, num_layers=LAYERS)
    model.layer_s = LAYER_S
    begin_s = time.perf_counter()
    for layer in range(LAYERS):
        model.layer(layer, [entry(8), entry(1)])
    assert time.perf_counter() - begin_s >= LAYERS * LAYER_S - _OVERSLEPT_S


def test_a_layer_that_came_late_takes_its_time_from_then_on() -> None:
    model = TimedModel(16, num_layers=LAYERS)
    model.layer_s = LAYER_S
    model.layer(0, [entry(8)])
    time.sleep(5 * LAYER_S)  # it waited for its bytes
    begin_s = time.perf_counter()
    model.layer(1, [entry(8)])
    assert time.perf_counter() - begin_s >= LAYER_S - _OVERSLEPT_S


def test_a_generated_token_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    model = TimedModel(16, num_layers=LAYERS)
    model.layer_s = LAYER_S
    model.layer(0, [entry(1), entry(1)])
    assert slept == []
    model.layer(0, [entry(2)])
    assert len(slept) == 1
