"""Stand-ins for the host's connector interface, used when no host is installed.

They have the names, arguments and defaults of the interface of late hosts
(host contract §3), so that the adapter imports and its conformance host runs on
a machine without TensorRT-LLM. ``adapter.trtllm_api`` decides which are used;
import them from there.

Must not know: the real host, pages, sockets. No thread of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FallbackRequestData:
    """What one request adds in one iteration, as late hosts report it (E2, E3).

    Attributes:
        request_id: Unique within the engine's process, restarting with it.
        new_tokens: Token ids not reported before; the whole prompt at first.
        new_block_ids: Page ids not reported before, in ordinal order.
        computed_position: Tokens whose KV is valid before loads and forward.
        num_scheduled_tokens: Tokens the coming forward computes.
        block_hashes: The host's own chain for full blocks (V1), unused here.
        priorities: Parallel to ``new_block_ids``, only with a retention config.
        cache_salt: The request's salt where the host reports it.
        new_block_ids_by_layer_group: Per layer group, V2 only.

    Source: host contract §3.
    """

    request_id: int
    new_tokens: list[int]
    new_block_ids: list[int]
    computed_position: int
    num_scheduled_tokens: int
    block_hashes: list[Any] = field(default_factory=list)
    priorities: list[int] | None = None
    cache_salt: str | None = None
    new_block_ids_by_layer_group: list[list[int]] = field(default_factory=list)


@dataclass
class RequestDataE1:
    """The first epoch's reduced report: five fields, no salt (host contract §1)."""

    request_id: int
    new_tokens: list[int]
    new_block_ids: list[int]
    computed_position: int
    num_scheduled_tokens: int


@dataclass
class FallbackSchedulerOutput:
    """One iteration's batch as the connector sees it (host contract §3).

    Attributes:
        attention_dp_rank: Whose block ids these are, under attention DP (E3).
    """

    new_requests: list[Any] = field(default_factory=list)
    cached_requests: list[Any] = field(default_factory=list)
    attention_dp_rank: int | None = None


class FallbackScheduler(ABC):
    """Stand-in for the host's scheduler-side base class (host contract §3).

    Attributes:
        supports_attention_dp: Whether one per rank may run (E3).
    """

    supports_attention_dp = False

    def __init__(self, llm_args: Any) -> None:
        """Keep the engine's arguments, as the host's base does."""
        self._llm_args = llm_args
        super().__init__()

    @abstractmethod
    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Tokens offered beyond the device match, and whether to load asynchronously."""

    @abstractmethod
    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
        """Learn the pages of a request, device-matched ones included."""

    @abstractmethod
    def build_connector_meta(self, scheduler_output: Any) -> object:
        """Picklable instructions for every rank's worker."""

    @abstractmethod
    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
        """Whether the pages are to be kept until the worker reports them saved."""

    def wait_for_initialization(self) -> None:  # noqa: B027 - a default that does nothing
        """Called once after pool registration."""

    def update_state_after_alloc_by_layer_group(
        self, request: Any, block_ids: list[list[int]]
    ) -> None:
        """Pages per layer group (E3); folds one group to the flat form.

        Raises:
            NotImplementedError: For several groups.
        """
        self.update_state_after_alloc(request, _only_group(block_ids))

    def request_finished_by_layer_group(self, request: Any, block_ids: list[list[int]]) -> bool:
        """Pages per layer group (E3); folds one group to the flat form.

        Raises:
            NotImplementedError: For several groups.
        """
        return self.request_finished(request, _only_group(block_ids))


class FallbackWorker(ABC):
    """Stand-in for the host's worker-side base class (host contract §3).

    Attributes:
        supports_attention_dp: Whether one per rank may run (E3).
    """

    supports_attention_dp = False

    def __init__(self, llm_args: Any) -> None:
        """Keep the engine's arguments and start without metadata."""
        self._llm_args = llm_args
        self._metadata: object | None = None
        super().__init__()

    def bind_connector_meta(self, metadata: object) -> None:
        """Keep this iteration's metadata."""
        self._metadata = metadata

    def get_connector_meta(self) -> object | None:
        """The metadata bound last, or None."""
        return self._metadata

    def _clear_connector_meta(self) -> None:
        self._metadata = None

    def register_forward_pass_callable(self) -> Callable[..., Any] | None:
        """A callable to run after every forward, or None."""
        return None

    @abstractmethod
    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        """Learn the final pool, once."""

    def register_kv_cache_layout(self, layout: Any) -> None:
        """Learn the final cache by its layout (E3, V2); one pool is folded to a tensor.

        Args:
            layout: Has ``as_single_pool_tensor()``, which raises where no single
                tensor describes the cache.
        """
        self.register_kv_caches(layout.as_single_pool_tensor())

    @abstractmethod
    def start_load_kv(self, stream: Any) -> None:
        """Begin this iteration's loads, ordered on ``stream``."""

    @abstractmethod
    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        """Called before each layer of a forward with hooks."""

    @abstractmethod
    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        """Called after each layer of a forward with hooks."""

    @abstractmethod
    def wait_for_save(self, stream: Any) -> None:
        """Called after every launched forward, usually while it still runs."""

    @abstractmethod
    def get_finished(
        self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]
    ) -> tuple[list[int], list[int]]:
        """Ids whose saves ended, and ids whose loads ended."""


def _only_group(groups: list[list[int]]) -> list[int]:
    if len(groups) > 1:
        raise NotImplementedError(f"{len(groups)} layer groups reached a connector for one")
    return groups[0] if groups else []
