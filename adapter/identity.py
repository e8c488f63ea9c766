"""What this engine's KV bytes are called: the namespace, derived from arguments, files and pool.

Purpose: equal namespaces exactly for engines whose pages are interchangeable, equal on all ranks of
one engine, and a clear refusal where the interface would hand over too little to be sure (host
contract §7). Must not know: sockets, requests, addresses. Runs in: the main thread, at pool
registration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from adapter import modelfiles, trtllm_api
from adapter.config import ENV_CHUNK_TOKENS, ENV_WEIGHTS_EPOCH, Settings
from adapter.geometry import Geometry
from adapter.poolshape import CacheShape
from adapter.refusals import (
    UncachedError,
    attention_ranks,
    draft_models,
    is_attention_dp,
    is_nvfp4,
    kv_quantization,
    refuse_model,
    refuse_unsupported,
)
from protocol import limits
from protocol.errors import ConfigError, ErrorCode
from protocol.namespace import LayerGroup, Namespace

_PACKED_DTYPES: Final = re.compile(r"u?int[1-8]|bits\d.*|float4.*")
"""Element types of which one may stand for several values, or holds several for certain."""
_FOUR_BITS: Final = re.compile(r"fp4|float4", re.IGNORECASE)
"""Names of element types that need scales beside them."""

#: Arguments that change KV bytes or say how weights came to be, beyond those with a field.
_OVERRIDE_ARGS: Final = (
    "dtype",
    "load_format",
    "model_kwargs",
    "sparse_attention_config",
    "speculative_config",
    "enable_attention_dp",
    "moe_expert_parallel_size",
)


def rank_of(llm_args: Any, process_rank: int) -> int:
    """This process's rank among those that split the KV heads.

    Args:
        llm_args: the engine's arguments.
        process_rank: among the engine's processes.

    Returns:
        0 under attention data parallelism, where each rank is an engine of its own.
    """
    return 0 if is_attention_dp(llm_args) else process_rank


def derive(
    llm_args: Any,
    shape: CacheShape,
    settings: Settings,
    environ: Mapping[str, str],
    process_rank: int = 0,
) -> tuple[Namespace, Geometry]:
    """The namespace and the geometry of an engine.

    Args:
        llm_args: the engine's arguments.
        shape: of this rank's cache.
        settings: the operator's word.
        environ: to find a model that was named by its hub id.
        process_rank: of this process among the engine's.

    Returns:
        The namespace, and how tokens map to pages.

    Raises:
        UncachedError: the engine cannot be cached.
        ConfigError: CHUNK_SIZE_INVALID, naming valid sizes.
    """
    refuse_unsupported(llm_args, is_v2=bool(shape.tokens_per_block))
    # A model's own files may ask for four bits where the arguments say "auto".
    is_packed = shape.tokens_per_block and _FOUR_BITS.search(shape.dtype)
    if (is_packed or is_nvfp4(llm_args)) and not shape.has_scales:
        raise UncachedError("an NVFP4 KV cache of which the layout does not show all scales")
    num_ranks, rank = attention_ranks(llm_args), rank_of(llm_args, process_rank)
    if not 0 <= rank < num_ranks <= limits.MAX_READERS:
        raise UncachedError(
            f"rank {rank} of {num_ranks} attention ranks: tensor_parallel_size and the number of "
            f"processes do not agree, or exceed {limits.MAX_READERS}"
        )
    if len(shape.groups) * num_ranks > limits.MAX_SHARDS:
        raise UncachedError(
            f"{len(shape.groups)} layer groups on {num_ranks} ranks are more shards than "
            f"{limits.MAX_SHARDS}"
        )
    model = modelfiles.find_model(str(llm_args.model), getattr(llm_args, "revision", None), environ)
    refuse_model(model.config)
    _refuse_unknown_weights(model, settings)
    tokens_per_block = _tokens_per_block(llm_args, shape, model.config, num_ranks)
    # A latent has one head, which every rank holds (host contract §7, §12.14). The pool says only
    # that there are no values, so the model's word is needed too: ranks that are wrongly taken for
    # equal would read each other's bytes.
    is_latent = shape.kv_factor == 1 and modelfiles.has_latent(model.config)
    chunk_blocks = chunk_blocks_of(settings.chunk_tokens, tokens_per_block)
    namespace = Namespace(
        model_id=model.model_id[: limits.MAX_TEXT_CHARS],
        config_digest=model.config_digest,
        weights_digest=model.weights_digest,
        weights_epoch=settings.weights_epoch,
        host_version=trtllm_api.host_version(),
        kv_dtype=shape.dtype,
        quantization=kv_quantization(llm_args)[: limits.MAX_TEXT_CHARS],
        attention_backend=str(getattr(llm_args, "attn_backend", "")),
        kv_layout=shape.layout,
        overrides=_overrides(llm_args) | _draft_weights(llm_args, settings, environ),
        tokens_per_block=tokens_per_block,
        chunk_blocks=chunk_blocks,
        num_ranks=num_ranks,
        groups=tuple(
            LayerGroup(
                layers=group.layers,
                page_bytes=group.page_bytes,
                window_tokens=group.window_tokens,
                replicated=num_ranks > 1 and (group.is_replicated or is_latent),
            )
            for group in shape.groups
        ),
    )
    num_pages = tuple(group.num_pages for group in shape.groups)
    return namespace, Geometry.of(namespace, rank, num_pages, shape.pools)


def chunk_blocks_of(chunk_tokens: int, tokens_per_block: int) -> int:
    """Blocks per chunk for a configured chunk size.

    Args:
        chunk_tokens: as configured; 0 means one block.
        tokens_per_block: of this engine.

    Returns:
        1 and up.

    Raises:
        ConfigError: CHUNK_SIZE_INVALID, naming valid sizes.
    """
    if chunk_tokens == 0:
        return 1
    blocks, rest = divmod(chunk_tokens, tokens_per_block)
    if rest or not 1 <= blocks <= limits.MAX_CHUNK_BLOCKS:
        raise ConfigError(
            ErrorCode.CHUNK_SIZE_INVALID,
            f"{ENV_CHUNK_TOKENS}={chunk_tokens}: this engine's blocks have {tokens_per_block} "
            f"tokens; valid are {tokens_per_block}, {2 * tokens_per_block}, "
            f"{3 * tokens_per_block}, … up to {limits.MAX_CHUNK_BLOCKS * tokens_per_block}",
            chunk_tokens=chunk_tokens,
            tokens_per_block=tokens_per_block,
        )
    return blocks


def _tokens_per_block(
    llm_args: Any, shape: CacheShape, config: Mapping[str, Any], num_ranks: int
) -> int:
    """As the layout tells, or from the V1 row where the model's config tells its width.

    ``llm_args`` alone is not authoritative. Source: host contract §2.
    """
    _refuse_missing_layers(shape, config)
    derived = shape.tokens_per_block or _from_row(llm_args, shape, config, num_ranks)
    if derived > limits.MAX_TOKENS_PER_BLOCK:
        raise UncachedError(f"blocks of {derived} tokens are too large")
    return derived


def _refuse_missing_layers(shape: CacheShape, config: Mapping[str, Any]) -> None:
    text = config.get("text_config")
    num_layers = config.get("num_hidden_layers")
    if num_layers is None and isinstance(text, Mapping):
        num_layers = text.get("num_hidden_layers")
    shown = len({layer for group in shape.groups for layer in group.layers})
    if isinstance(num_layers, int) and shown < num_layers:
        raise UncachedError(
            f"the pool shown holds {shown} of the model's {num_layers} layers; models "
            "with several pools are not supported"
        )


def _from_row(llm_args: Any, shape: CacheShape, config: Mapping[str, Any], num_ranks: int) -> int:
    cache = getattr(llm_args, "kv_cache_config", None)
    configured = int(getattr(cache, "tokens_per_block", 0) or 0)
    width = modelfiles.elements_per_token(config, shape.kv_factor, num_ranks)
    elements = shape.block_elements
    derived, rest = divmod(elements, width) if width else (configured, 0)
    if rest or derived < 1 or elements % derived:
        raise UncachedError(
            f"a page row of {elements} elements is no whole number of tokens of "
            f"{width or 'unknown'} elements"
        )
    if _PACKED_DTYPES.fullmatch(shape.dtype) and (
        not width or (configured and derived != configured)
    ):
        held = f"{derived} tokens a block" if width else "an unknown number of values a byte"
        raise UncachedError(
            f"a pool of {shape.dtype} holds {held} where {configured} tokens a block are "
            "configured; formats that pack several values into a byte are not supported"
        )
    return derived


def _refuse_unknown_weights(model: modelfiles.ModelIdentity, settings: Settings) -> None:
    if not model.weights_digest and not settings.weights_epoch:
        raise UncachedError(
            f"no weight files of model {model.model_id!r} were found, so its weights cannot be "
            f"told from others; set {ENV_WEIGHTS_EPOCH}"
        )


def _draft_weights(llm_args: Any, settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Draft layers with weights of their own lie in the model's pages, so these must agree too."""
    digests = []
    for name in draft_models(getattr(llm_args, "speculative_config", None)):
        model = modelfiles.find_model(name, None, environ)
        _refuse_unknown_weights(model, settings)
        digests.append(model.weights_digest.hex())
    return {"draft_weights": " ".join(digests)} if digests else {}


def _overrides(llm_args: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in (*_OVERRIDE_ARGS, "quant_config"):
        value = getattr(llm_args, name, None)
        if value is not None:
            found[name] = modelfiles.stable_text(value)
    return found
