"""Sizes that fit, and settings that are put back."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from adapter.conformance.agentic import rig
from adapter.conformance.agentic.rig import Scale
from adapter.conformance.agentic.workload import Workload
from adapter.conformance.host.device import Device
from adapter.worker import KvkeepConnectorWorker

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("block_tokens", [32, 256])
def test_a_token_takes_128_kib_and_everything_has_room(block_tokens: int) -> None:
    scale = Scale(Workload(block_tokens))
    assert scale.token_bytes == 128 * 1024
    assert scale.page_bytes == block_tokens * 128 * 1024
    assert scale.extent_bytes % 4096 == 0
    assert scale.extent_bytes <= 1 << 30
    least = scale.workload.distinct_blocks * scale.page_bytes
    assert least < scale.arena_bytes < least * 1.2
    longest = scale.workload.max_prompt_tokens + scale.workload.answer_tokens
    assert scale.pool_pages * block_tokens > longest


def test_small_pages_keep_the_workload() -> None:
    scale = Scale(Workload(32))
    assert scale.small().workload is scale.workload
    assert scale.small().token_bytes == 64


def test_an_engine_that_cannot_be_brought_up_leaves_the_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "7")
    before = dict(os.environ)
    with (
        pytest.raises(Exception, match="tcp"),
        rig.engine(Scale(Workload(32)).small(), "tcp://10.0.0.1:1", tmp_path / "m"),
    ):
        raise AssertionError("the engine came up")
    assert dict(os.environ) == before


def test_the_time_of_a_load_begins_when_the_pages_were_spoiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = Scale(Workload(32, agents=2, turns=2)).small()
    is_spoiled, gates = True, []
    poison, fill, load = Device.poison, Device._fill, KvkeepConnectorWorker.start_load_kv

    def seen_poison(device: Device, pages: Sequence[Sequence[int]]) -> None:
        nonlocal is_spoiled
        is_spoiled = not any(pages)
        poison(device, pages)

    def slow_fill(device: Device, ids: list[list[int]]) -> None:
        nonlocal is_spoiled
        time.sleep(0.02)
        fill(device, ids)
        is_spoiled = True

    def seen_load(worker: KvkeepConnectorWorker, stream: Any) -> None:
        gates.append(is_spoiled)
        load(worker, stream)

    monkeypatch.setattr(Device, "poison", seen_poison)
    monkeypatch.setattr(Device, "_fill", slow_fill)
    monkeypatch.setattr(KvkeepConnectorWorker, "start_load_kv", seen_load)
    with rig.serving(scale) as url, rig.engine(scale, url, tmp_path / "m") as engine:
        played = engine.play(saves_answers=False, report=lambda done, of: None)
    assert played.is_bit_exact
    assert sum(one.hit_blocks for one in played.seen) > 0
    assert gates
    assert all(gates)
