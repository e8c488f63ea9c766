"""Rows 7, 14, 15, 18 and 19: what must be in the key, and what must be read off the engine."""

from __future__ import annotations

import json
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
from adapter.identity import derive
from adapter.serverurl import resolve_server_url
from adapter.trtllm_api import CONNECTOR_MODULES, find_host_module
from protocol.errors import ConfigError
from protocol.keys import ReuseScope
from protocol.messages import Quotas, QuotasReply
from protocol.namespace import fingerprint
from protocol.quotas import QuotaChange, TenantKind
from server import asking
from server.cli import reaching
from tests.adapter.enginerig import write_model
from tests.adapter.test_identity import CONFIG, POOL, SETTINGS, args

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


LATENT = {"kv_lora_rank": 12, "qk_rope_head_dim": 4}


@pytest.mark.parametrize(
    ("config", "changes", "num_ranks", "num_shards"),
    [
        (CONFIG, {"elements": 4 * 2 * 8}, 1, 1),
        (CONFIG, {"elements": 4 * 8}, 4, 4),
        ({"num_hidden_layers": 2, "text_config": CONFIG}, {"elements": 4 * 8}, 4, 4),
        (CONFIG | LATENT, {"elements": 4 * 16, "kv_factor": 1}, 4, 1),
    ],
    ids=["whole", "fewer heads than ranks", "nested", "latent"],
)
def test_row_14_pages_are_read_off_the_pool_and_shared_by_ranks_if_they_are_equal(
    tmp_path: Path, config: dict[str, Any], changes: dict[str, Any], num_ranks: int, num_shards: int
) -> None:
    """Blocks of 4 tokens whatever is configured; a latent is stored once, heads by each rank."""
    folder = write_model(tmp_path / "m")
    (folder / "config.json").write_text(json.dumps(config))
    shape = replace(POOL, **changes).as_cache()
    engine = args(folder, tensor_parallel_size=num_ranks)
    engine.kv_cache_config.tokens_per_block = 32
    namespace, place = derive(engine, shape, SETTINGS, {}, num_ranks - 1)
    assert place.tokens_per_block == namespace.tokens_per_block == 4
    assert namespace.num_shards == num_shards
    assert place.shards == ((num_ranks - 1) if num_shards > 1 else 0,)


def test_row_15_block_size_is_in_the_key(bench: Bench) -> None:
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


@pytest.mark.parametrize("kind", ["bfloat16", "fp8"])
def test_row_15_elements_of_another_type_share_nothing(bench: Bench, kind: str) -> None:
    """The same model, tokens and block size; a page has other bytes, if not another length."""
    prompt = text(3 * BLOCK + 1, seed=74)
    other = KvCacheConfig(tokens_per_block=BLOCK, enable_partial_reuse=False, dtype=kind)
    with bench.engine() as one, bench.engine(cache=other) as two:
        one.store(prompt)
        assert two.store(prompt).num_loaded_tokens == 0
        loaded = [seen.ask(prompt).num_loaded_tokens for seen in (one, two)]
    assert loaded == [3 * BLOCK, 3 * BLOCK]
    assert bench.target.server_url is not None
    side_path = reaching.place(bench.target.server_url).side_path
    with asking.connected(side_path, 10.0, "status") as asker:
        assert [space.chunks for space in asker.status(10.0).namespaces] == [3, 3]


def test_row_15_elements_of_another_type_and_equal_size_are_another_name(tmp_path: Path) -> None:
    """Where a page's length says nothing, the type alone must."""
    folder = write_model(tmp_path / "m")
    names = set()
    for kind in ("float16", "bfloat16"):
        shape = replace(POOL, dtype=kind, element_bytes=2).as_cache()
        names.add(fingerprint(derive(args(folder), shape, SETTINGS, {})[0]))
    assert len(names) == 2


def test_models_of_equal_geometry_and_other_weights_share_nothing(
    bench: Bench, tmp_path: Path
) -> None:  # row 15, and fault B02
    prompt = text(3 * BLOCK + 1, seed=73)
    folder = tmp_path / "one"
    first = Bench(bench.target, write_model_dir(folder, TINY), bench.service)
    with first.engine() as one:
        one.store(prompt)
    config = (folder / "config.json").read_text()
    write_model_dir(folder, replace(TINY, seed=9))  # trained on, and kept under its name
    (folder / "config.json").write_text(config)
    with first.engine() as two:
        assert two.store(prompt).num_loaded_tokens == 0
    write_model_dir(folder, TINY)
    with first.engine() as one:
        assert one.ask(prompt).num_loaded_tokens == 3 * BLOCK


def test_a_salted_requests_chunks_count_for_its_quota(bench: Bench) -> None:
    prompt = text(3 * BLOCK + 1, seed=73)
    change = QuotaChange(
        kind=TenantKind.SALT, tenant=ReuseScope(cache_salt="tenant").tenant(), floor_bytes=1
    )
    assert bench.target.server_url is not None
    side_path = reaching.place(bench.target.server_url).side_path
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
