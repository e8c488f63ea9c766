"""The engine's arguments as a connector sees them, without TensorRT-LLM.

Attribute names and defaults follow the real ``TorchLlmArgs`` (host contract §2).
Like the real, pydantic-made object it can be weakly referenced, cannot be hashed
and compares by value: whoever keys something by it must go by identity.

Must not know: torch, the connector. Plain data, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class KvCacheConfig:
    """KV cache settings a connector may read."""

    tokens_per_block: int = 32
    enable_block_reuse: bool = True
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    dtype: str = "auto"
    host_cache_size: int | None = None
    disk_cache_size: int | None = None
    use_uvm: bool = False
    use_kv_cache_manager_v2: bool = False
    max_attention_window: tuple[int, ...] | None = None


@dataclass(frozen=True)
class KvCacheConnectorConfig:
    """Which connector to construct; exactly late E2's five fields."""

    connector: str | None = None
    connector_module: str | None = None
    connector_scheduler_class: str | None = None
    connector_worker_class: str | None = None
    server_url: str | None = None

    def __post_init__(self) -> None:
        """Refuse a config without all three names, as the host's validator does.

        Raises:
            ValueError: If a name is missing or a preset is asked for.
        """
        if self.connector is not None:
            raise ValueError(f"unknown KV connector preset {self.connector!r}; presets: none")
        for name in ("connector_module", "connector_scheduler_class", "connector_worker_class"):
            if not getattr(self, name):
                raise ValueError(f"kv_connector_config.{name} is required")


@dataclass(frozen=True)
class AggressiveConnectorConfig(KvCacheConnectorConfig):
    """The same with the field that a branch adds (host contract §2)."""

    aggressive_prefix_budgeting: bool = False


@dataclass(frozen=True)
class LlmArgs:
    """The argument object handed to both connector classes.

    Attributes:
        model: Model directory or name.
        kv_connector_config: None runs the engine without a connector.
        max_num_tokens: Tokens one forward may compute, over all requests.
        max_batch_size: Requests one forward may hold.
        enable_chunked_prefill: Whether V2 computes prompts in parts; V1 here always does.
        speculative_config: How drafts are made; the host itself goes by ``HostOptions.num_drafts``.
    """

    model: str | Path
    kv_cache_config: KvCacheConfig = field(default_factory=KvCacheConfig)
    kv_connector_config: KvCacheConnectorConfig | None = None
    backend: str = "pytorch"
    attn_backend: str = "TRTLLM"
    dtype: str = "float32"
    revision: str | None = None
    quant_config: object | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    context_parallel_size: int = 1
    moe_expert_parallel_size: int | None = None
    enable_attention_dp: bool = False
    max_num_tokens: int = 256
    max_batch_size: int = 8
    max_beam_width: int = 1
    max_seq_len: int | None = None
    trust_remote_code: bool = False
    disable_overlap_scheduler: bool = False
    enable_chunked_prefill: bool = True
    speculative_config: object | None = None

    __hash__ = None  # type: ignore[assignment]
