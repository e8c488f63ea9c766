"""The engines of a combination: model, cache, host options, processes, settings.

Must not know: what engines are asked beyond the shape of requests. Builds processes; runs in the
caller's thread.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from adapter.config import ENV_BUDGET_MS, ENV_HELD_PERCENT, ENV_LOAD_MODE, make_kv_connector_config
from adapter.conformance.coverage.dimensions import Combination
from adapter.conformance.coverage.variants import variant_of
from adapter.conformance.host.construction import takes_offers_back
from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.llm_args import (
    AggressiveConnectorConfig,
    KvCacheConfig,
    KvCacheConnectorConfig,
    LlmArgs,
)
from adapter.conformance.host.options import DeviceName, HostOptions, default_device
from adapter.conformance.host.ranks.engines import AttentionDpEngine, TensorParallelEngine
from adapter.conformance.host.weights import LATENT, SLIDING, TINY, ModelConfig, write_model_dir
from adapter.conformance.schedules.draw import Shape
from adapter.conformance.schedules.subject import RankedSubject, SoloSubject

_SIZES: Final = {"1": 1, "tp2": 2, "tp4": 4, "adp2": 2}
_BLOCKS: Final = {"v1_bs32": 32, "v1_bs64": 64, "v1_bs128": 128, "v2_fp8": 64}
_UNTOLD: Final = ("v1_bs64", "v2_fp8")
"""Layouts whose arguments say 32: the pool is what counts (host contract §2)."""

EXACT: Final = {
    # The machine may be busy with other things: a late answer is no miss here.
    ENV_BUDGET_MS: "500",
    ENV_HELD_PERCENT: "50",
}
"""Settings of engines whose hits are counted."""


def skips_some(iteration: int) -> bool:
    """Forwards that a host skips after loads were started."""
    return iteration % 4 == 1


@dataclass(frozen=True)
class Setup:
    """How the engines of a combination are built.

    Attributes:
        config: of the model.
        cache: arguments.
        options: of the host.
        num_blocks: pages of each layer group.
        size: processes.
        is_adp: attention data parallel.
        max_num_tokens: of a forward.
        shape: of requests.
        environ: settings of the adapter.
        is_chunked: whether prompts may be computed in parts.
    """

    config: ModelConfig
    cache: KvCacheConfig
    options: HostOptions
    num_blocks: int
    size: int
    is_adp: bool
    max_num_tokens: int
    shape: Shape
    environ: Mapping[str, str] = field(default_factory=dict)
    is_chunked: bool = False

    @property
    def reference_key(self) -> tuple[Any, ...]:
        """Setups with equal keys compute equal logits."""
        size = 1 if self.is_adp else self.size
        tokens = self.options.tokens_per_block or self.cache.tokens_per_block
        return self.config, self.cache.dtype, tokens, size


def setup_of(
    combination: Combination, device: DeviceName | None = None, seed: int | None = None
) -> Setup:
    """What a combination means.

    Args:
        combination: legal.
        device: where the pool lies; None is the host's default.
        seed: of the run, which draws a variant; None is the usual one.
    """
    life, layout, ranks = combination.lifecycle, combination.layout, combination.ranks
    block = _BLOCKS.get(layout, 16)
    max_blocks = 2 if block > 32 else 4
    # Answers with drafts are longer, and rejected ones lie behind the last token.
    longest = (max_blocks + (3 if life == "drafts" else 1)) * block
    options = _options(combination, seed)
    is_short = life == "replayed" or options.aggressive
    return Setup(
        config=replace(_model(layout), max_position_embeddings=longest),
        cache=_cache(layout, block),
        options=replace(options, device=device or default_device()),
        # Few pages: what is freed is handed out again at once; fewer still for requests to be
        # destroyed, and to wait with an offer.
        num_blocks=max_blocks + 2 if is_short else 3 * max_blocks + 2,
        size=_SIZES[ranks],
        is_adp=ranks == "adp2",
        max_num_tokens=2 * block if life == "chunked" else 4 * longest,
        shape=_shape(life, block, max_blocks),
        environ={**EXACT, ENV_LOAD_MODE: combination.mode},
        is_chunked=life == "chunked",
    )


def _model(layout: str) -> ModelConfig:
    if layout.endswith("_mla"):
        return replace(LATENT, num_attention_heads=4)
    if layout == "v2_window":
        return SLIDING
    if layout == "v2_groups":
        return replace(TINY, layer_windows=(0, 4096, 0))
    return TINY


def _cache(layout: str, block: int) -> KvCacheConfig:
    return KvCacheConfig(
        tokens_per_block=32 if layout in _UNTOLD else block,
        enable_partial_reuse=False,
        dtype="fp8" if layout.endswith("_fp8") else "auto",
        use_uvm=layout == "v1_private",
        use_kv_cache_manager_v2=layout.startswith("v2"),
    )


def _options(combination: Combination, seed: int | None) -> HostOptions:
    layout, life = combination.layout, combination.lifecycle
    usual = HostOptions(
        epoch=combination.epoch,  # type: ignore[arg-type]
        layout="v2" if layout.startswith("v2") else "v1",
        regions="apart" if layout in ("v2_regions", "v2_mla") else "joined",
        tokens_per_block=_BLOCKS[layout] if layout in _UNTOLD else None,
        private_pool=layout in ("v1_private", "v2_private"),
        cuda_graphs=life == "graph",
        skip_forward=skips_some if life == "skipped_forward" else None,
        num_drafts=2 if life == "drafts" else 0,
        overlap=life != "plain" or combination.epoch != "E2",
    )
    return replace(usual, **variant_of(combination, seed).options)


def _shape(life: str, block: int, max_blocks: int) -> Shape:
    changes: dict[str, dict[str, Any]] = {
        "device_prefix": {"forget": 0.2},
        "early_stop": {"stop": 1.0},
        "cancelled": {"cancel": 0.6},
        "replayed": {"max_new_tokens": 12, "cancel": 0.0},
        "context_only": {"context_only": True, "talk": 0.0},
        "drafts": {"max_new_tokens": 40, "talk": 1.0},
        "idle": {"pause_s": 0.05, "forget": 0.3},
        "graph": {"one_left": True, "talk": 0.0},
    }
    return Shape(tokens_per_block=block, max_blocks=max_blocks, **changes.get(life, {}))


@contextmanager
def opened(
    setup: Setup, models: Path, url: str | None, connector: KvCacheConnectorConfig | None = None
) -> Iterator[SoloSubject | RankedSubject]:
    """An engine, running; it is ended afterwards.

    Args:
        setup: how it is built.
        models: folder for model directories, shared by all setups.
        url: of the server of our own connector; None for none.
        connector: another connector, played in the aggressive mode if it has ``cancel_load``; with
            neither, it is the reference: no connector, no reuse, one
            request's worth of pages or more.

    Yields:
        The engine.
    """
    chosen = _as_played(connector or _connector(url), setup)
    args = LlmArgs(
        model=str(_model_dir(models, setup.config)),
        kv_cache_config=setup.cache if chosen else _reference_cache(setup),
        kv_connector_config=chosen,
        max_num_tokens=setup.max_num_tokens,
        speculative_config=_speculative(setup) if chosen else None,
        enable_chunked_prefill=setup.is_chunked,
    )
    options = setup.options if chosen else _reference_options(setup)
    if setup.size == 1 or (setup.is_adp and chosen is None):
        with (
            _environ(setup.environ if chosen else {}),
            HostEngine(args, setup.num_blocks, options=options) as host,
        ):
            subject = SoloSubject(host)
            try:
                yield subject
            finally:
                subject.close()
                end = getattr(host.connector.worker, "shutdown", None)
                if end is not None:
                    end()
        return
    kind = AttentionDpEngine if setup.is_adp else TensorParallelEngine
    with kind(
        args,
        setup.num_blocks,
        setup.size,
        options=options,
        per_rank=lambda rank, common: replace(common, load_skew=rank),
        environ=setup.environ,
    ) as engine:
        yield RankedSubject(engine)


def _speculative(setup: Setup) -> SimpleNamespace | None:
    """What an engine whose drafts are its own says of them: a connector goes by it."""
    count = setup.options.num_drafts
    return SimpleNamespace(decoding_type="MTP", num_nextn_predict_layers=count) if count else None


def _reference_cache(setup: Setup) -> KvCacheConfig:
    tokens = setup.options.tokens_per_block or setup.cache.tokens_per_block
    return KvCacheConfig(tokens_per_block=tokens, enable_block_reuse=False, dtype=setup.cache.dtype)


def _reference_options(setup: Setup) -> HostOptions:
    # Whatever the device of the engine that is compared with it.
    return HostOptions(epoch="E2", device="host")


def _connector(url: str | None) -> KvCacheConnectorConfig | None:
    if url is None:
        return None
    made = make_kv_connector_config(url)
    return KvCacheConnectorConfig(
        connector_module=made.connector_module,
        connector_scheduler_class=made.connector_scheduler_class,
        connector_worker_class=made.connector_worker_class,
        server_url=made.server_url,
    )


def _as_played(
    config: KvCacheConnectorConfig | None, setup: Setup
) -> KvCacheConnectorConfig | None:
    if config is None or not setup.options.aggressive:
        return config
    module = importlib.import_module(str(config.connector_module))
    if not takes_offers_back(getattr(module, str(config.connector_scheduler_class))):
        return config  # no host would start with it in that mode: it is played in the usual one
    return AggressiveConnectorConfig(**vars(config), aggressive_prefix_budgeting=True)


def _model_dir(models: Path, config: ModelConfig) -> Path:
    folder = models / f"model-{abs(hash(config)):x}"
    if not folder.exists():
        write_model_dir(folder, config)
    return folder


@contextmanager
def _environ(settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
