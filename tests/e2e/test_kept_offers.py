"""Aggressive mode against a real server: what was offered is loaded later, in part, or not at all.

Pools are so small that requests wait with their offers while others run (host contract §5).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from adapter.conformance.coverage.dimensions import Combination
from adapter.conformance.coverage.variants import AGGRESSIVE, variant_of
from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.schedules.draw import Ask
from adapter.conformance.schedules.play import check_equal, check_nothing_left
from adapter.conformance.schedules.reference import Reference
from adapter.conformance.schedules.service import Service, serving
from adapter.conformance.schedules.setups import opened, setup_of
from adapter.conformance.schedules.subject import SoloSubject
from adapter.conformance.schedules.sweep import join

pytestmark = pytest.mark.torch

WAIT_S = 60.0


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving() as one:
        yield one


def long_prompts(count: int) -> list[Ask]:
    rng = random.Random("kept offers")
    return [Ask(tuple(rng.randrange(1, 250) for _ in range(49)), 4) for _ in range(count)]


@pytest.mark.parametrize(
    ("layout", "mode"), [("v2_one", "sync"), ("v2_window", "async"), ("v2_regions", "layerwise")]
)
def test_offers_of_waiting_requests_are_loaded_right_when_their_turn_comes(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, mode: str
) -> None:
    cancelled: list[tuple[int, int, int]] = []
    cancel_load = ConnectorPort.cancel_load

    def noting(self: ConnectorPort, request: Any, start: int, end: int) -> None:
        cancelled.append((request.request_id, start, end))
        cancel_load(self, request, start, end)

    monkeypatch.setattr(ConnectorPort, "cancel_load", noting)
    combination = Combination("E4", "plain", layout, mode, "1")
    seed = next(seed for seed in range(9) if variant_of(combination, seed) is AGGRESSIVE)
    setup, asks = setup_of(combination, seed=seed), long_prompts(4)
    together = threading.Event()  # all of them are there before the first one is computed
    together.set()

    def probe(point: str, request_ids: tuple[int, ...]) -> None:
        together.wait(WAIT_S)

    setup = replace(setup, options=replace(setup.options, probe=probe))
    with opened(setup, tmp_path, None) as plain:
        right = [Reference(plain)(ask) for ask in asks]
    asks = [replace(ask, cache_salt=f"{layout} {mode}") for ask in asks]
    with opened(setup, tmp_path, service.url) as subject:
        assert isinstance(subject, SoloSubject)
        join(subject, setup)
        for ask in asks:
            subject.submit(ask).result(WAIT_S)
            subject.forget_reuse(WAIT_S)
        together.clear()
        handles = [subject.submit(ask) for ask in (*asks, asks[0])]
        subject.cancel(handles.pop())
        together.set()
        found = [handle.result(WAIT_S) for handle in handles]
        for ask, one, wanted in zip(asks, found, right, strict=True):
            check_equal(seed, ask, one, wanted)
        assert sum(one.num_loaded_tokens for one in found) > 0
        prefixes: Any = subject.engine._executor._scheduler
        assert prefixes.prefixes.num_held_over > 0
        subject.forget_reuse(WAIT_S)
        check_nothing_left(seed, subject)
    assert all(start < end for _, start, end in cancelled)
