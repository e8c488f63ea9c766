"""Rows 13, 16 and 17: memory that cannot be exported, every rank's shard, attention DP."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.options import HostOptions
from adapter.conformance.kit.bench import BLOCK, Bench, same, text
from adapter.connector import KvkeepConnectorScheduler, KvkeepConnectorWorker

pytestmark = pytest.mark.torch


def test_row_13_memory_that_cannot_be_exported_is_staged(bench: Bench) -> None:
    prompt = text(4 * BLOCK + 1, seed=130)
    wanted = bench.expected(prompt, 3)
    with bench.engine(HostOptions(private_pool=True)) as seen:
        seen.store(prompt)
        result = seen.ask(prompt, 3)
    assert result.num_loaded_tokens == 4 * BLOCK
    assert same(result, wanted)


def test_row_17_attention_dp_is_supported_and_a_deferred_request_keeps_its_offer(
    bench: Bench,
) -> None:
    assert KvkeepConnectorScheduler.supports_attention_dp
    assert KvkeepConnectorWorker.supports_attention_dp
    prompt = text(3 * BLOCK + 1, seed=170)
    wanted = bench.expected(prompt, 3)
    skips = iter((True, True, True))
    armed: list[int] = []
    options = HostOptions(epoch="E3", skip_forward=lambda _: bool(armed) and next(skips, False))
    with bench.engine(options) as seen:
        seen.store(prompt)
        armed.append(1)
        result = seen.ask(prompt, 3)  # three iterations without a forward, then it runs
    assert result.num_loaded_tokens == 3 * BLOCK
    assert same(result, wanted)
