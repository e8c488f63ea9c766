"""Which engines cannot be cached, each with the one line that says why.

Purpose: whatever the connector's interface does not describe completely, or would hand over wrong
without a word, is refused by the engine's own arguments (host contract §2, §7, §9, §11). Must not
know: pools, files, sockets. Runs in: the main thread, at pool registration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

_DRAFT_MODEL_TYPES: Final = frozenset({"drafttarget", "externaldrafts"})
"""Decoding types, in lower case without separators, that always run a model of their own."""
_ONE_MODEL_SWITCHES: Final = ("eagle3_one_model", "mtp_eagle_one_model")
_DRAFT_MODEL_FIELDS: Final = ("speculative_model_dir", "speculative_model")
_HYBRID_CONFIG_KEYS: Final = (
    "ssm_cfg",
    "mamba_d_state",
    "hybrid_override_pattern",
    "ssm_state_size",
)
_LINEAR_LAYER_KINDS: Final = ("mamba", "linear", "recurrent", "ssm")


class UncachedError(Exception):
    """This engine cannot be cached; the text is the one line for the log."""


def refuse_unsupported(llm_args: Any, is_v2: bool = False) -> None:
    """Refuses engines whose pages the interface does not describe completely.

    Args:
        llm_args: the engine's arguments.
        is_v2: whether the second cache manager describes its layout, windows included.

    Raises:
        UncachedError: saying what to change. Source: host contract §7, §9.15, §9.16, §11.
    """
    for reason in _reasons(llm_args, is_v2):
        raise UncachedError(reason)


def refuse_model(config: Mapping[str, Any]) -> None:
    """Refuses models part of whose state is in no KV page.

    Args:
        config: parsed ``config.json``; empty when there is none.

    Raises:
        UncachedError: recurrent (Mamba) layers are named.
    """
    text = config.get("text_config")
    for found in (config, text if isinstance(text, Mapping) else {}):
        kinds = found.get("layer_types") or found.get("layers_block_type") or ()
        has_kind = isinstance(kinds, (list, tuple)) and any(
            word in str(kind).lower() for kind in kinds for word in _LINEAR_LAYER_KINDS
        )
        if has_kind or any(found.get(key) for key in _HYBRID_CONFIG_KEYS):
            raise UncachedError(
                "the model has recurrent (Mamba or linear-attention) layers, whose state is in no "
                "KV page"
            )


def notes(llm_args: Any) -> tuple[str, ...]:
    """What the operator should know of an engine that can be cached, a line each.

    Args:
        llm_args: the engine's arguments.
    """
    cache = getattr(llm_args, "kv_cache_config", None)
    if getattr(cache, "enable_partial_reuse", False):
        return (
            "kv_cache_config.enable_partial_reuse is on: lookups are declined where the engine "
            "itself matched a part of a block; set it to False for more hits",
        )
    return ()


def attention_ranks(llm_args: Any) -> int:
    """Ranks that split the KV heads: the tensor-parallel size, or 1 under attention DP.

    Args:
        llm_args: the engine's arguments.
    """
    if is_attention_dp(llm_args):
        return 1
    return max(1, int(getattr(llm_args, "tensor_parallel_size", 1) or 1))


def is_attention_dp(llm_args: Any) -> bool:
    """Whether each rank attends to requests of its own.

    Args:
        llm_args: the engine's arguments.
    """
    return bool(getattr(llm_args, "enable_attention_dp", False))


def kv_quantization(llm_args: Any) -> str:
    """Configured KV element type and quantisation, as one text.

    Args:
        llm_args: the engine's arguments.
    """
    cache_dtype = str(getattr(getattr(llm_args, "kv_cache_config", None), "dtype", "auto"))
    quant = getattr(llm_args, "quant_config", None)
    algorithm = getattr(quant, "kv_cache_quant_algo", None)
    return f"{cache_dtype}/{algorithm or ''}"


def is_nvfp4(llm_args: Any) -> bool:
    """Whether the KV elements have four bits, and scales beside them.

    Args:
        llm_args: the engine's arguments.
    """
    return "nvfp4" in kv_quantization(llm_args).lower()


def draft_models(speculative: Any) -> tuple[str, ...]:
    """Models whose weights make drafts, beside the engine's own.

    Args:
        speculative: the engine's ``speculative_config``; None for none.

    Returns:
        Directories or hub ids, as the host was told.
    """
    named = (_field(speculative, name) for name in _DRAFT_MODEL_FIELDS)
    return tuple(dict.fromkeys(str(model) for model in named if model))


def _reasons(llm_args: Any, is_v2: bool) -> Iterator[str]:
    cache = getattr(llm_args, "kv_cache_config", None)
    if not getattr(cache, "enable_block_reuse", True):
        yield "kv_cache_config.enable_block_reuse is off; loads need it on"
    for name in ("host_cache_size", "disk_cache_size"):
        if getattr(cache, name, None):
            yield (
                f"kv_cache_config.{name} is set; with another tier below the GPU page ids are not "
                "rows of the pool, set it to 0"
            )
    if is_nvfp4(llm_args) and not is_v2:
        yield "an NVFP4 KV cache keeps its scales in a second pool that is not shown"
    for name in ("pipeline_parallel_size", "context_parallel_size"):
        if int(getattr(llm_args, name, 1) or 1) > 1:
            yield f"{name} above 1 is not supported by this version"
    if int(getattr(llm_args, "max_beam_width", 1) or 1) > 1:
        yield "max_beam_width above 1: beams share pages that they go on writing"
    yield from _spread_over_nodes(llm_args)
    yield from _draft_model(getattr(llm_args, "speculative_config", None))
    if not is_v2:
        yield from _short_window(llm_args, cache)


def _spread_over_nodes(llm_args: Any) -> Iterator[str]:
    """Every shard of a chunk must be on the node's one server."""
    ranks, per_node = attention_ranks(llm_args), getattr(llm_args, "gpus_per_node", None)
    if isinstance(per_node, int) and 0 < per_node < ranks:
        yield (
            f"tensor_parallel_size {ranks} exceeds gpus_per_node {per_node}: the shards of a block "
            "would lie on servers of several nodes, and one server must hold them all"
        )


def _draft_model(speculative: Any) -> Iterator[str]:
    """A draft *model* has a pool of its own, for which nothing is loaded (host contract §11)."""
    if speculative is None:
        return
    kind = str(_field(speculative, "decoding_type") or type(speculative).__name__)
    plain = kind.lower().replace("_", "").replace("-", "").removesuffix("decodingconfig")
    has_model = any(_field(speculative, name) for name in _DRAFT_MODEL_FIELDS)
    two_models = any(_field(speculative, name) is False for name in _ONE_MODEL_SWITCHES)
    if plain in _DRAFT_MODEL_TYPES or (has_model and two_models):
        yield (
            f"speculative_config {kind} runs a draft model with a KV pool of its own, which a load "
            "would leave empty; drafts of the model itself (one-model) can be cached"
        )


def _short_window(llm_args: Any, cache: Any) -> Iterator[str]:
    windows = getattr(cache, "max_attention_window", None)
    longest = getattr(llm_args, "max_seq_len", None)
    if windows and (longest is None or min(windows) < longest):
        yield (
            f"kv_cache_config.max_attention_window {list(windows)} drops blocks of long requests, "
            "which the first cache manager does not tell; use_kv_cache_manager_v2=True does"
        )


def _field(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
