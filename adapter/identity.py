"""What this engine's KV bytes are called: the namespace, derived from arguments, files and pool.

Purpose: equal namespaces exactly for engines whose pages are interchangeable, and a clear refusal
where the interface would hand over too little to be sure (host contract §7). Must not know:
sockets, requests. Runs in: the main thread, at pool registration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from adapter import modelfiles, trtllm_api
from adapter.config import ENV_CHUNK_TOKENS, ENV_WEIGHTS_EPOCH, Settings
from protocol import limits
from protocol.errors import ConfigError, ErrorCode
from protocol.namespace import LayerGroup, Namespace

_KV_DTYPE_INT8: Final = ("int8", "uint8")

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


class UncachedError(Exception):
    """This engine cannot be cached; the text is the one line for the log."""


@dataclass(frozen=True)
class PoolShape:
    """The V1 pool as its tensor describes it.

    Attributes:
        num_pages: rows.
        num_layers: layers in a row.
        kv_factor: 2, or 1 for MLA.
        elements: elements of one layer's K or V of one block.
        element_bytes: bytes of an element.
        dtype: name of the element type, e.g. ``bfloat16``.
        device: ``cpu``, ``cuda``, …
        address: of the first byte in this process.
    """

    num_pages: int
    num_layers: int
    kv_factor: int
    elements: int
    element_bytes: int
    dtype: str
    device: str
    address: int

    @property
    def page_bytes(self) -> int:
        """Bytes of one row."""
        return self.num_layers * self.kv_factor * self.elements * self.element_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of the pool."""
        return self.num_pages * self.page_bytes

    @classmethod
    def of(cls, tensor: Any) -> PoolShape:
        """Reads a tensor by duck typing; torch is not needed.

        Args:
            tensor: ``[num_blocks, num_layers, kv_factor, elements]``, contiguous.
                Source: host contract §7.

        Raises:
            UncachedError: another shape or other strides.
        """
        shape = tuple(int(extent) for extent in tensor.shape)
        if len(shape) != 4 or min(shape) < 1:
            raise UncachedError(f"the pool has shape {list(shape)}, four dimensions are understood")
        pages, layers, factor, elements = shape
        strides = tuple(int(value) for value in tensor.stride())
        if strides != (layers * factor * elements, factor * elements, elements, 1):
            raise UncachedError(f"the pool's strides {list(strides)} are not contiguous")
        return cls(
            num_pages=pages,
            num_layers=layers,
            kv_factor=factor,
            elements=elements,
            element_bytes=int(tensor.element_size()),
            dtype=str(tensor.dtype).rpartition(".")[2],
            device=str(getattr(tensor.device, "type", tensor.device)),
            address=int(tensor.data_ptr()),
        )


@dataclass(frozen=True)
class Geometry:
    """How requests map to pages and chunks.

    Attributes:
        tokens_per_block: tokens of one page.
        chunk_blocks: pages of one chunk.
        num_pages: pages of the pool.
        page_bytes: bytes of one page.
        chunk_tokens: tokens of one chunk.
    """

    tokens_per_block: int
    chunk_blocks: int
    num_pages: int
    page_bytes: int
    chunk_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        """Multiplies once: this is asked for each request in each iteration."""
        object.__setattr__(self, "chunk_tokens", self.tokens_per_block * self.chunk_blocks)


def refuse_unsupported(llm_args: Any) -> None:
    """Refuses engines whose pages the interface does not describe completely.

    Args:
        llm_args: the engine's arguments.

    Raises:
        UncachedError: saying what to change. Source: host contract §7, §9.15, §9.16, §11.
    """
    cache = getattr(llm_args, "kv_cache_config", None)
    if not getattr(cache, "enable_block_reuse", True):
        raise UncachedError("kv_cache_config.enable_block_reuse is off; loads need it on")
    for name in ("host_cache_size", "disk_cache_size"):
        if getattr(cache, name, None):
            raise UncachedError(
                f"kv_cache_config.{name} is set; with another tier below the GPU page ids are not "
                "rows of the pool, set it to 0"
            )
    if "nvfp4" in _kv_quantization(llm_args).lower():
        raise UncachedError("an NVFP4 KV cache keeps its scales in a second pool that is not shown")
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size"):
        if int(getattr(llm_args, name, 1) or 1) > 1:
            raise UncachedError(f"{name} above 1 is not supported by this version")
    if getattr(llm_args, "enable_attention_dp", False):
        raise UncachedError("attention data parallelism is not supported by this version")
    _refuse_windows(llm_args, cache)


def _refuse_windows(llm_args: Any, cache: Any) -> None:
    windows = getattr(cache, "max_attention_window", None)
    longest = getattr(llm_args, "max_seq_len", None)
    if windows and (longest is None or min(windows) < longest):
        raise UncachedError(
            f"kv_cache_config.max_attention_window {list(windows)} drops blocks of long requests"
        )


def derive(
    llm_args: Any, pool: PoolShape, settings: Settings, environ: Mapping[str, str]
) -> tuple[Namespace, Geometry]:
    """The namespace and the geometry of an engine.

    Args:
        llm_args: the engine's arguments.
        pool: from ``PoolShape.of``.
        settings: the operator's word.
        environ: to find a model that was named by its hub id.

    Returns:
        The namespace, and how tokens map to pages.

    Raises:
        UncachedError: the engine cannot be cached.
        ConfigError: CHUNK_SIZE_INVALID, naming valid sizes.
    """
    refuse_unsupported(llm_args)
    model = modelfiles.find_model(str(llm_args.model), getattr(llm_args, "revision", None), environ)
    if not model.weights_digest and not settings.weights_epoch:
        raise UncachedError(
            f"no weight files of model {model.model_id!r} were found, so its weights cannot be "
            f"told from others; set {ENV_WEIGHTS_EPOCH}"
        )
    tokens_per_block = _tokens_per_block(llm_args, pool, model.config)
    chunk_blocks = chunk_blocks_of(settings.chunk_tokens, tokens_per_block)
    namespace = Namespace(
        model_id=model.model_id[: limits.MAX_TEXT_CHARS],
        config_digest=model.config_digest,
        weights_digest=model.weights_digest,
        weights_epoch=settings.weights_epoch,
        host_version=trtllm_api.host_version(),
        kv_dtype=pool.dtype,
        quantization=_kv_quantization(llm_args)[: limits.MAX_TEXT_CHARS],
        attention_backend=str(getattr(llm_args, "attn_backend", "")),
        kv_layout=f"v1 kv{pool.kv_factor} heads,tokens,dim",
        overrides=_overrides(llm_args),
        tokens_per_block=tokens_per_block,
        chunk_blocks=chunk_blocks,
        num_ranks=1,
        groups=(LayerGroup(layers=tuple(range(pool.num_layers)), page_bytes=pool.page_bytes),),
    )
    geometry = Geometry(tokens_per_block, chunk_blocks, pool.num_pages, pool.page_bytes)
    return namespace, geometry


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


def _tokens_per_block(llm_args: Any, pool: PoolShape, config: Mapping[str, Any]) -> int:
    """From the pool where the model's config tells the row's width, else as configured.

    ``llm_args`` alone is not authoritative. Source: host contract §2.
    """
    num_layers = config.get("num_hidden_layers")
    if isinstance(num_layers, int) and pool.num_layers < num_layers:
        raise UncachedError(
            f"the pool shown holds {pool.num_layers} of the model's {num_layers} layers; models "
            "with several pools are not supported"
        )
    cache = getattr(llm_args, "kv_cache_config", None)
    configured = int(getattr(cache, "tokens_per_block", 0) or 0)
    width = modelfiles.elements_per_token(config, pool.kv_factor)
    derived, rest = divmod(pool.elements, width) if width else (configured, 0)
    if rest or derived < 1 or pool.elements % derived:
        raise UncachedError(
            f"a page row of {pool.elements} elements is no whole number of tokens of "
            f"{width or 'unknown'} elements"
        )
    if pool.dtype in _KV_DTYPE_INT8 and configured and derived != configured:
        raise UncachedError(
            f"a pool of {pool.dtype} holds {derived} tokens a block where {configured} are "
            "configured; formats that pack several values into a byte are not supported"
        )
    if derived > limits.MAX_TOKENS_PER_BLOCK:
        raise UncachedError(f"blocks of {derived} tokens are too large")
    return derived


def _kv_quantization(llm_args: Any) -> str:
    cache_dtype = str(getattr(getattr(llm_args, "kv_cache_config", None), "dtype", "auto"))
    quant = getattr(llm_args, "quant_config", None)
    algorithm = getattr(quant, "kv_cache_quant_algo", None)
    return f"{cache_dtype}/{algorithm or ''}"


def _overrides(llm_args: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in (*_OVERRIDE_ARGS, "quant_config"):
        value = getattr(llm_args, name, None)
        if value is not None:
            found[name] = modelfiles.stable_text(value)
    return found
