"""Which cache manager an engine runs, with its memory and its scheduler.

Must not know: the connector beyond passing it on, the executor. Built on the main thread.
"""

from __future__ import annotations

from typing import Protocol

from adapter.conformance.host.allocator import BlockAllocator
from adapter.conformance.host.cache import CacheManager, V1Cache
from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.device import Device
from adapter.conformance.host.forward import ForwardModel
from adapter.conformance.host.hardware import Hardware
from adapter.conformance.host.llm_args import LlmArgs
from adapter.conformance.host.memory import KvMemory, v1_memory
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.reports import Planner
from adapter.conformance.host.scheduling import BatchScheduler
from adapter.conformance.host.v2.cache import V2Cache
from adapter.conformance.host.v2.layout import group_layers, v2_memory
from adapter.conformance.host.v2.scheduling import V2Scheduler


class Manager(Protocol):
    """One kind of cache, and how it is scheduled."""

    @property
    def cache(self) -> CacheManager:
        """Who holds which page."""

    @property
    def num_pages(self) -> int:
        """Pages over all groups."""

    @property
    def num_tokens(self) -> int:
        """Tokens that one request may take up, alone."""

    def memory(self, hardware: Hardware | None = None) -> KvMemory:
        """Allocate the pages; None allocates in host memory."""

    def scheduler(self, port: ConnectorPort, device: Device) -> Planner:
        """Make what plans batches."""

    def check_integrity(self) -> None:
        """Verify that each page is in exactly one state."""


class V1Manager:
    """One pool, pages to completion, GUARANTEED_NO_EVICT.

    Args:
        model: What runs.
        num_blocks: Pages.
        llm_args: The engine's arguments.
        options: Version switches.
    """

    def __init__(
        self, model: ForwardModel, num_blocks: int, llm_args: LlmArgs, options: HostOptions
    ) -> None:
        self._model = model
        self._args = llm_args
        self._options = options
        config = llm_args.kv_cache_config
        self.allocator = BlockAllocator(
            num_blocks,
            tokens_per_block(llm_args, options),
            reuse=config.enable_block_reuse,
            partial=config.enable_partial_reuse,
        )
        self.cache = V1Cache(self.allocator)
        self.num_pages = num_blocks
        self.num_tokens = num_blocks * self.allocator.tokens_per_block

    def memory(self, hardware: Hardware | None = None) -> KvMemory:
        """Allocate the pool tensor."""
        private = self._options.private_pool
        return v1_memory(self._model, self.num_pages, private=private, hardware=hardware)

    def scheduler(self, port: ConnectorPort, device: Device) -> Planner:
        """Make what plans batches."""
        return BatchScheduler(
            self.allocator,
            port,
            self._options,
            max_num_tokens=self._args.max_num_tokens,
            max_batch_size=self._args.max_batch_size,
            reuse=self._args.kv_cache_config.enable_block_reuse,
            copy_page=device.copy_page,
        )

    def check_integrity(self) -> None:
        """Verify that each page is in exactly one state."""
        self.allocator.check_integrity()


class V2Manager:
    """A pool per layer group, pages by the chunk, MAX_UTILIZATION.

    Args:
        model: What runs; its windows make the groups.
        num_blocks: Pages of each group.
        llm_args: The engine's arguments.
        options: Version switches.
    """

    def __init__(
        self, model: ForwardModel, num_blocks: int, llm_args: LlmArgs, options: HostOptions
    ) -> None:
        self._model = model
        self._args = llm_args
        self._options = options
        self._num_blocks = num_blocks
        windows = [window for window, _ in group_layers(model.windows)]
        size = tokens_per_block(llm_args, options)
        self.cache = V2Cache([num_blocks] * len(windows), windows, size)
        self.num_pages = num_blocks * len(windows)
        self.num_tokens = num_blocks * size

    def memory(self, hardware: Hardware | None = None) -> KvMemory:
        """Allocate the groups' regions."""
        return v2_memory(
            self._model,
            self._num_blocks,
            self.cache.tokens_per_block,
            private=self._options.private_pool,
            style=self._options.regions,
            hardware=hardware,
        )

    def scheduler(self, port: ConnectorPort, device: Device) -> Planner:
        """Make what plans batches."""
        return V2Scheduler(
            self.cache,
            port,
            self._options,
            max_num_tokens=self._args.max_num_tokens,
            max_batch_size=self._args.max_batch_size,
            new_memo=self._model.new_memo,
            is_chunked=self._args.enable_chunked_prefill,
        )

    def check_integrity(self) -> None:
        """Verify that each page is in exactly one state."""
        self.cache.check_integrity()


def tokens_per_block(llm_args: LlmArgs, options: HostOptions) -> int:
    """Tokens of a page: what the arguments say, or what is put in their place behind their back."""
    return options.tokens_per_block or llm_args.kv_cache_config.tokens_per_block


def make_manager(
    model: ForwardModel, num_blocks: int, llm_args: LlmArgs, options: HostOptions
) -> Manager:
    """The manager that the options name.

    Args:
        model: What runs.
        num_blocks: Pages of each layer group.
        llm_args: The engine's arguments.
        options: Version switches.
    """
    made: type[V1Manager] | type[V2Manager]
    made = V2Manager if options.layout == "v2" else V1Manager
    return made(model, num_blocks, llm_args, options)
