"""Every legal combination is an engine that the host accepts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")

from adapter.config import ENV_HELD_PERCENT, ENV_LOAD_MODE
from adapter.conformance.coverage.combine import combinations, legal_combinations
from adapter.conformance.coverage.dimensions import Combination
from adapter.conformance.coverage.variants import AGGRESSIVE, variant_of
from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.llm_args import KvCacheConnectorConfig, LlmArgs
from adapter.conformance.host.support import settle
from adapter.conformance.host.weights import write_model_dir
from adapter.conformance.schedules.draw import Ask
from adapter.conformance.schedules.setups import opened, setup_of
from adapter.conformance.schedules.subject import SoloSubject
from tests.adapter.conformance.host import connectors
from tests.adapter.conformance.kit import foreign

pytestmark = pytest.mark.torch

PLAIN = Combination("E3", "plain", "v2_window", "sync", "1")
EARLY = Combination("E4", "plain", "v2_one", "sync", "1")
LAYOUTS = [
    one
    for one in legal_combinations()
    if (one.lifecycle, one.mode, one.ranks) == ("plain", "auto", "1")
]


@pytest.mark.parametrize("seed", range(4))
def test_no_combination_is_refused_by_the_host(seed: int) -> None:
    for combination in legal_combinations():
        setup = setup_of(combination, seed=seed)
        args = LlmArgs(
            model="unread",
            kv_cache_config=setup.cache,
            max_num_tokens=setup.max_num_tokens,
            tensor_parallel_size=setup.size,
            enable_attention_dp=setup.is_adp,
        )
        settled = settle(args, setup.options, setup.size)
        assert settled.epoch == combination.epoch
        assert setup.environ[ENV_LOAD_MODE] == combination.mode


@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3])
def test_prompts_and_answers_fit_model_and_pool(seed: int | None) -> None:
    for setup in (setup_of(one, seed=seed) for one in combinations()):
        shape = setup.shape
        longest = shape.max_blocks * shape.tokens_per_block + shape.max_new_tokens
        longest += setup.options.headroom
        assert longest <= setup.config.max_position_embeddings
        assert -(-longest // shape.tokens_per_block) <= setup.num_blocks


@pytest.mark.parametrize("combination", LAYOUTS, ids=lambda one: f"{one.epoch}-{one.layout}")
def test_each_layout_comes_up_and_answers(combination: Combination, tmp_path: Path) -> None:
    setup = setup_of(combination)
    args = LlmArgs(
        model=write_model_dir(tmp_path, setup.config),
        kv_cache_config=setup.cache,
        max_num_tokens=setup.max_num_tokens,
    )
    with HostEngine(args, setup.num_blocks, options=setup.options) as host:
        assert host.cache.tokens_per_block == setup.shape.tokens_per_block
        assert host.submit([1, 2, 3], 2).result(60).tokens


def test_what_computes_otherwise_has_a_reference_of_its_own() -> None:
    def key(layout: str, ranks: str = "1") -> object:
        return setup_of(Combination("E3", "plain", layout, "sync", ranks)).reference_key

    layouts = ("v1", "v1_mla", "v1_fp8", "v1_bs32", "v1_bs64", "v1_bs128", "v2_groups", "v2_window")
    assert len({key(layout) for layout in layouts}) == len(layouts)
    assert key("v1") == key("v1_private") == key("v2_one") == key("v2_regions")
    assert key("v1_mla") == key("v2_mla")
    assert key("v2_fp8") not in {key(layout) for layout in layouts}
    assert len({key("v1", ranks) for ranks in ("1", "tp2", "tp4")}) == 3
    assert key("v2_one", "adp2") == key("v2_one")


def test_the_reference_has_no_cache(tmp_path: Path) -> None:
    setup = replace(setup_of(PLAIN), environ={"TRTLLM_KVKEEP_LOAD_MODE": "no such mode"})
    ask = Ask(tuple(range(1, 50)), 2)
    with opened(setup, tmp_path, None) as subject:
        assert isinstance(subject, SoloSubject)
        assert subject.engine.llm_args.kv_connector_config is None
        first = subject.submit(ask).result(60)
        again = subject.submit(ask).result(60)
        assert subject.engine.stats().num_computed_tokens == 2 * (49 + 1)
    assert first.tokens == again.tokens


def test_settings_last_as_long_as_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_LOAD_MODE, "auto")
    monkeypatch.delenv(ENV_HELD_PERCENT, raising=False)
    with opened(setup_of(PLAIN), tmp_path, f"ipc://{tmp_path}/nobody.sock"):
        assert (os.environ[ENV_LOAD_MODE], os.environ[ENV_HELD_PERCENT]) == ("sync", "50")
    assert os.environ[ENV_LOAD_MODE] == "auto"
    assert ENV_HELD_PERCENT not in os.environ
    with opened(setup_of(PLAIN), tmp_path, None):
        assert os.environ[ENV_LOAD_MODE] == "auto"


def test_models_are_written_once(tmp_path: Path) -> None:
    for _ in range(2):
        with opened(setup_of(PLAIN), tmp_path, None):
            pass
    assert len(list(tmp_path.iterdir())) == 1


def test_an_engine_with_drafts_says_so_in_its_arguments(tmp_path: Path) -> None:
    for life, said in (("drafts", True), ("plain", False)):
        setup = setup_of(Combination("E2", life, "v1", "sync", "1"))
        with opened(setup, tmp_path, f"ipc://{tmp_path}/nobody.sock") as subject:
            assert isinstance(subject, SoloSubject)
            assert (subject.engine.llm_args.speculative_config is not None) is said
            assert bool(subject.engine.options.num_drafts) is said


@pytest.mark.parametrize(
    ("module", "kind", "is_played"), [(connectors, "Recording", True), (foreign, "Folder", False)]
)
def test_other_connectors_are_asked_early_if_they_take_offers_back(
    module: ModuleType,
    kind: str,
    is_played: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"folder://{tmp_path}/of-{kind}"
    monkeypatch.setitem(connectors.CALLS, url, [])
    config = KvCacheConnectorConfig(
        connector_module=module.__name__,
        connector_scheduler_class=f"{kind}Scheduler",
        connector_worker_class=f"{kind}Worker",
        server_url=url,
    )
    seed = next(seed for seed in range(9) if variant_of(EARLY, seed) is AGGRESSIVE)
    with opened(setup_of(EARLY, seed=seed), tmp_path, None, config) as subject:
        assert isinstance(subject, SoloSubject)
        assert subject.engine.options.aggressive is is_played
        assert subject.submit(Ask((1, 2, 3), 2)).result(60).tokens
