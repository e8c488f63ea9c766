import dataclasses
import weakref

import pytest

from adapter.conformance.host.llm_args import KvCacheConfig, KvCacheConnectorConfig, LlmArgs

NAMED = KvCacheConnectorConfig(
    connector_module="m", connector_scheduler_class="S", connector_worker_class="W"
)


def test_the_object_is_keyed_by_identity_only() -> None:
    left, right = LlmArgs("model"), LlmArgs("model")
    assert left == right
    assert weakref.ref(left)() is left
    with pytest.raises(TypeError, match="unhashable"):
        hash(left)
    with pytest.raises(dataclasses.FrozenInstanceError):
        left.model = "other"  # type: ignore[misc]


def test_defaults_are_the_real_ones() -> None:
    cache = LlmArgs("model").kv_cache_config
    assert cache == KvCacheConfig()
    assert (cache.tokens_per_block, cache.enable_block_reuse, cache.dtype) == (32, True, "auto")
    assert cache.enable_partial_reuse
    assert not cache.use_kv_cache_manager_v2


@pytest.mark.parametrize(
    "field", ["connector_module", "connector_scheduler_class", "connector_worker_class"]
)
def test_all_three_names_are_required(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(NAMED, **{field: None})


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(ValueError, match="preset 'lmcache'"):
        KvCacheConnectorConfig(connector="lmcache")
