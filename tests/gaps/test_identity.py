"""Rows 7, 14, 15, 18 and 19: what must be in the key, and what must be read off the engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

from adapter import modelfiles
from adapter.conformance.host.llm_args import KvCacheConfig, LlmArgs
from adapter.conformance.host.requests import Multimodal
from adapter.conformance.host.weights import TINY, write_model_dir
from adapter.conformance.kit import checks_offers
from adapter.conformance.kit.bench import BLOCK, Bench, same, text
from adapter.conformance.kit.verdict import Outcome
from adapter.serverurl import resolve_server_url
from adapter.trtllm_api import CONNECTOR_MODULES, find_host_module
from protocol.errors import ConfigError
from protocol.keys import ReuseScope
from protocol.messages import Quotas, QuotasReply
from protocol.quotas import QuotaChange, TenantKind
from server import asking
from server.cli import reaching

pytestmark = pytest.mark.torch


def test_row_07_salt_adapter_and_media_are_in_the_key(bench: Bench) -> None:
    verdict = checks_offers.keeps_tenants_apart(bench)
    assert verdict.outcome is Outcome.HELD, verdict.evidence
    prompt = text(3 * BLOCK + 1, seed=70)
    one = Multimodal(hashes=((1,) * 8,), positions=(4,), lengths=(8,))
    other = replace(one, hashes=((1,) * 7 + (2,),))
    unknown = replace(one, hashes=None)
    with bench.engine() as seen:
        seen.store(prompt, multimodal=one)
        loaded = [
            seen.store(prompt, multimodal=media).num_loaded_tokens
            for media in (one, other, unknown, None)
        ]
    assert loaded == [3 * BLOCK, 0, 0, 0]


@pytest.mark.parametrize(
    ("config", "kv_factor", "tensor_parallel", "elements"),
    [
        ({"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}, 2, 1, 128),
        ({"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}, 2, 4, 64),
        ({"text_config": {"num_attention_heads": 4, "hidden_size": 64}}, 2, 1, 64),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 8}, 1, 4, 576),
    ],
    ids=["grouped", "fewer heads than ranks", "nested, no head_dim", "latent"],
)
def test_row_14_the_width_of_a_token_follows_the_model(
    config: dict[str, Any], kv_factor: int, tensor_parallel: int, elements: int
) -> None:
    assert modelfiles.elements_per_token(config, kv_factor, tensor_parallel) == elements


def test_row_15_block_size_and_dtype_are_in_the_key(bench: Bench) -> None:
    prompt = text(4 * BLOCK + 1, seed=71)
    wanted = bench.expected(prompt, 3)
    smaller = KvCacheConfig(tokens_per_block=BLOCK // 2, enable_partial_reuse=False)
    with bench.engine() as one, bench.engine(cache=smaller) as two:
        one.store(prompt)
        cold = two.store(prompt, 3)
        warm = two.store(prompt, 3)
        again = one.store(prompt, 3)
    assert (cold.num_loaded_tokens, warm.num_loaded_tokens) == (0, 4 * BLOCK)
    assert again.num_loaded_tokens == 4 * BLOCK
    assert all(same(result, wanted) for result in (cold, warm, again))


def test_row_18_both_places_of_the_interface_and_of_the_url() -> None:
    asked = []

    def old_host(name: str) -> ModuleType:
        asked.append(name)
        if name != CONNECTOR_MODULES[1]:
            raise ImportError(name)
        return ModuleType(name)

    found, why = find_host_module(old_host)
    assert found is not None
    assert (found.__name__, why) == (CONNECTOR_MODULES[1], "")
    assert asked == list(CONNECTOR_MODULES)
    args = LlmArgs(model="m")
    reaches_ranks = {"TRTLLM_KVKEEP_SERVER_URL": "ipc:///run/a.sock"}
    assert resolve_server_url(args, reaches_ranks).url == "ipc:///run/a.sock"
    both = {**reaches_ranks, "LMCACHE_SERVER_URL": "tcp://localhost:5555"}
    assert resolve_server_url(args, both).url == "ipc:///run/a.sock"


def test_row_19_a_chunk_that_is_no_multiple_of_a_block_is_refused_at_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_CHUNK_TOKENS", str(BLOCK + BLOCK // 2))
    with pytest.raises(ConfigError, match=f"valid are {BLOCK}, {2 * BLOCK}"), bench.engine():
        pass
    monkeypatch.setenv("TRTLLM_KVKEEP_CHUNK_TOKENS", str(2 * BLOCK))
    prompt = text(5 * BLOCK + 1, seed=72)
    with bench.engine() as seen:
        seen.store(prompt)
        assert seen.ask(prompt).num_loaded_tokens == 4 * BLOCK  # two whole chunks


def test_models_of_equal_geometry_and_other_weights_share_nothing(
    bench: Bench, tmp_path: Path
) -> None:  # row 15, and fault B02
    prompt = text(3 * BLOCK + 1, seed=73)
    twin = Bench(bench.target, write_model_dir(tmp_path / "twin", replace(TINY, seed=9)), None)
    with bench.engine() as one, twin.engine() as two:
        one.store(prompt)
        assert two.store(prompt).num_loaded_tokens == 0
        assert one.ask(prompt).num_loaded_tokens == 3 * BLOCK


def test_a_salted_requests_chunks_count_for_its_quota(bench: Bench) -> None:
    prompt = text(3 * BLOCK + 1, seed=73)
    change = QuotaChange(
        kind=TenantKind.SALT, tenant=ReuseScope(cache_salt="tenant").tenant(), floor_bytes=1
    )
    assert bench.service is not None
    side_path = reaching.place(bench.service.url).side_path
    with (
        bench.engine() as seen,
        asking.connected(side_path, 10.0, "quota") as asker,
    ):
        asker.ask(Quotas(change=change), 10.0)
        seen.store(prompt, cache_salt="tenant")
        seen.store(prompt)
        (row,) = asker.expect(Quotas(), QuotasReply, 10.0).quotas
        (space,) = asker.status(10.0).namespaces
    assert space.chunks == 6
    assert row.held_bytes * 2 == space.bytes
