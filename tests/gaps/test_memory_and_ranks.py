"""Rows 13, 16 and 17: memory that cannot be exported, every rank's shard, attention DP."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from adapter.conformance.host.errors import HostError
from adapter.conformance.host.llm_args import KvCacheConfig
from adapter.conformance.host.options import HostOptions
from adapter.conformance.kit.bench import BLOCK, Bench, same, text
from adapter.conformance.schedules.service import Service
from adapter.connector import KvkeepConnectorScheduler, KvkeepConnectorWorker
from tests.e2e.ranked import WAIT_S, split
from tests.wire.process import wait_until

pytestmark = pytest.mark.torch


#: Memory that no other process can map, and what the arguments say of it.
UNEXPORTABLE: dict[str, tuple[HostOptions, dict[str, Any]]] = {
    "managed": (HostOptions(private_pool=True), {"use_uvm": True}),
    "v2": (
        HostOptions(epoch="E3", layout="v2", private_pool=True),
        {"use_kv_cache_manager_v2": True},
    ),
}


@pytest.mark.parametrize("kind", UNEXPORTABLE)
def test_row_13_memory_that_cannot_be_exported_is_staged(bench: Bench, kind: str) -> None:
    prompt = text(4 * BLOCK + 1, seed=130)
    wanted = bench.expected(prompt, 3)
    options, changes = UNEXPORTABLE[kind]
    cache = KvCacheConfig(tokens_per_block=BLOCK, enable_partial_reuse=False, **changes)
    with bench.engine(options, cache=cache) as seen:
        seen.store(prompt)
        result = seen.ask(prompt, 3)
    assert result.num_loaded_tokens == 4 * BLOCK
    assert same(result, wanted)


def test_row_16_every_rank_has_its_part_or_nobody_loads(model: Path, service: Service) -> None:
    prompt = text(4 * BLOCK + 1, seed=160)
    with split(model, None, 2) as plain:
        wanted = plain.submit(prompt, 3).result(WAIT_S)
    with split(model, service.url, 2) as other, split(model, service.url, 2) as job:
        # The leader's part is stored, the other's is not: the leader alone would find it.
        job.delay(1, 3.0, "STORE.before")
        assert same(job.submit(prompt, 3).result(WAIT_S), wanted)
        assert wait_until(lambda: job.stats(0).passes.get("COMMIT.after", 0) > 0, 2.0)
        early = other.submit(prompt, 3).result(WAIT_S)
        assert (early.num_loaded_tokens, same(early, wanted)) == (0, True)
        job.forget_reuse(WAIT_S)
        result = job.submit(prompt, 3).result(WAIT_S)
        assert (result.num_loaded_tokens, same(result, wanted)) == (4 * BLOCK, True)
        job.forget_reuse(WAIT_S)
        # And a load that one rank cannot do is an error, not a prompt computed on nothing.
        assert job.call(1, "tests.e2e.rankpoints:lose_extents") > 0
        with pytest.raises(HostError):
            job.submit(prompt, 3).result(WAIT_S)
        job.wait_dead(15.0)
        assert "LoadError" in str(job.job.causes)


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
    with bench.engine(HostOptions(epoch="E4")) as seen:  # where it is safe, no batch waits
        mark = seen.log.mark()
        result = seen.ask(prompt, 3)
        answers = [call.answer for call in seen.log.since(mark, "get_num_new_matched_tokens")]
    assert answers == [(3 * BLOCK, True)]
    assert same(result, wanted)


def test_every_row_has_its_test() -> None:
    folder = Path(__file__).parent
    found = {
        int(number)
        for file in folder.glob("test_*.py")
        for number in re.findall(r"^def test_row_(\d\d)_", file.read_text(encoding="utf-8"), re.M)
    }
    assert found == set(range(1, 20))
