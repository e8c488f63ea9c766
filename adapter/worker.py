"""The connector's worker side: fills pages before a forward, and lets the saver know what ran.

Loads are synchronous and pulled from this process's own mapping; saves are only noted here and
done by the saver's thread. The one thing that raises out of a hook is a load that failed, for no
token may be computed on pages that were not filled (design rule 2).

Must not know: tokens, hashes, how the server is reached. Runs in: the executor's thread
(construction and registration in others). Source: host contract §3 to §5, §10.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adapter.copy import LoadError, load_pages
from adapter.engine import Engine, Running, engine_for
from adapter.identity import PoolShape, UncachedError, derive
from adapter.link import Link
from adapter.metadata import ConnectorMetadata, LoadOrder
from adapter.pages import SharedPool, find_pool
from adapter.saveentry import LostMark, Mark
from adapter.saver import Saver
from adapter.trtllm_api import KvCacheConnectorWorker
from protocol.errors import ConfigError, ErrorCode
from protocol.ids import Epoch, LeaseId
from protocol.layout import SLOT_DTYPE, Region, ShardPool

_MAX_DONE_LOADS: Final = 4096


class KvkeepConnectorWorker(KvCacheConnectorWorker):
    """Shares the engine's pool with the node's kvkeep server and copies hits into it."""

    def __init__(self, llm_args: Any) -> None:
        """Reads the settings and meets the scheduler.

        Args:
            llm_args: the engine's arguments.

        Raises:
            ConfigError: a setting is wrong; the engine does not start.
        """
        super().__init__(llm_args)
        self._engine: Engine = engine_for(llm_args, "worker", self)
        self._running: Running | None = None
        self._saver: Saver | None = None
        self._pool: SharedPool | None = None
        self._pool_bytes: NDArray[np.uint8] = np.empty(0, dtype=np.uint8)
        self._mark: Mark | None = None
        self._done_loads: OrderedDict[bytes, None] = OrderedDict()

    @property
    def link(self) -> Link | None:
        """The link to the server, once the pool is registered with it; for diagnosis."""
        return None if self._running is None else self._running.link

    # --- bring-up ---

    def register_forward_pass_callable(self) -> Callable[..., Any] | None:
        """Nothing needs to run after each forward."""
        return None

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        """Takes the final pool: shared memory is registered, anything else runs uncached.

        Args:
            kv_cache_tensor: ``[num_blocks, num_layers, kv_factor, elements]``.
                Source: host contract §7.

        Raises:
            ConfigError: the chunk size does not fit the block size; valid sizes are named.
        """
        try:
            self._register(kv_cache_tensor)
        except ConfigError:
            raise
        except UncachedError as error:
            self._engine.run_uncached(str(error))
        except Exception as error:  # noqa: BLE001 - the engine serves without a cache
            self._engine.run_uncached(f"the pool could not be registered: {error!r}")

    def register_kv_cache_layout(self, layout: Any) -> None:
        """What hosts with the second cache manager call instead: such engines run uncached.

        Without this the host's default raises for some layouts, which would end the start-up.

        Args:
            layout: of the pool. Source: host contract §7, V2.
        """
        self._engine.run_uncached(
            "KV cache manager V2 is not supported by this version; set "
            "kv_cache_config.use_kv_cache_manager_v2=False"
        )

    def _register(self, tensor: Any) -> None:
        engine = self._engine
        if engine.running is not None:
            engine.run_uncached("a second pool was registered")
            return
        shape = PoolShape.of(tensor)
        pool = find_pool(shape.address, shape.num_bytes) if shape.device == "cpu" else None
        if pool is None:
            raise UncachedError(
                f"this memory ({shape.device}) cannot be shared; host memory from "
                "adapter.pages.shared_pool can"
            )
        namespace, geometry = derive(engine.llm_args, shape, engine.settings, os.environ)
        offset = shape.address - pool.address
        region = Region(
            offset_bytes=offset, size_bytes=shape.page_bytes, stride_bytes=shape.page_bytes
        )
        shard = ShardPool(shard=0, num_pages=shape.num_pages, regions=(region,))
        self._pool = pool
        self._pool_bytes = pool.view[offset : offset + shape.num_bytes]

        def register(link: Link) -> None:
            link.register(namespace, 0, pool.fd, pool.num_bytes, (shard,))

        self._running = engine.bring_up(geometry, register)
        self._saver = self._running.saver

    # --- iterations ---

    def bind_connector_meta(self, metadata: Any) -> None:
        """Takes in one iteration: raises page ticks, names and confirms saves.

        Args:
            metadata: of this iteration's ``build_connector_meta``.
        """
        super().bind_connector_meta(metadata)
        if self._saver is None or not isinstance(metadata, ConnectorMetadata):
            return
        try:
            self._saver.bound(metadata, self._mark)
        except Exception as error:  # noqa: BLE001 - every save was withdrawn with it
            self._engine.journal.report("bind_errors", f"kvkeep: saves are off: {error!r}")
            self._engine.run_uncached(f"an iteration was not understood: {error!r}")

    def start_load_kv(self, stream: Any) -> None:
        """Copies this iteration's hits into their pages, complete on return.

        Idempotent: a load that is done is not repeated, for its pages may be computed on by then.

        Args:
            stream: the engine's main stream (M).

        Raises:
            LoadError: promised tokens could not be loaded.
        """
        metadata, running = self.get_connector_meta(), self._running
        if not isinstance(metadata, ConnectorMetadata):
            return
        orders = [order for order in metadata.loads if order.lease not in self._done_loads]
        if running is None:
            if orders:
                raise LoadError(ErrorCode.INTERNAL, "a load was promised without a pool")
            return
        try:
            if metadata.failure:
                raise LoadError(ErrorCode.INTERNAL, metadata.failure)
            if orders:
                _wait_for_earlier_work(stream)
            for order in orders:
                self._load(order, running)
        finally:
            for order in orders:
                running.link.release(LeaseId(order.lease))

    def _load(self, order: LoadOrder, running: Running) -> None:
        page_bytes = running.geometry.page_bytes
        slots = np.frombuffer(order.slots, dtype=SLOT_DTYPE).reshape(-1, order.num_shards)
        pages = order.pages.astype(np.int64)
        offsets = np.where(pages < 0, -1, pages * page_bytes)
        num_bytes = load_pages(
            running.link.extents,
            Epoch(order.epoch),
            np.ascontiguousarray(slots[:, 0]),
            self._pool_bytes,
            offsets,
            page_bytes,
        )
        self._done_loads[order.lease] = None
        while len(self._done_loads) > _MAX_DONE_LOADS:
            self._done_loads.popitem(last=False)
        self._engine.journal.count("bytes_loaded", num_bytes)
        self._engine.journal.count("pages_loaded", int(np.count_nonzero(pages >= 0)))

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        """Nothing to wait for: loads were complete before the forward."""

    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        """Nothing to do per layer: whole pages are pulled later."""

    def wait_for_save(self, stream: Any) -> None:
        """Marks the point behind the forward just launched; does not wait.

        Args:
            stream: the engine's main stream (M). Source: host contract §5.
        """
        if self._saver is None:
            return
        try:
            record = getattr(stream, "record_event", None)
            self._mark = record() if record is not None else None
        except Exception as error:  # noqa: BLE001 - raising here would fail the whole batch
            # The mark before this one says nothing of the forward just launched.
            self._mark = LostMark(error)
            self._engine.journal.report("marks_lost", f"kvkeep: a save is dropped: {error!r}")

    def get_finished(
        self, finished_gen_req_ids: Sequence[int], started_loading_req_ids: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Ends an iteration.

        Args:
            finished_gen_req_ids: requests whose pages the host keeps for our saves, each once.
            started_loading_req_ids: asynchronous loads; there are none.

        Returns:
            Ids whose pages the host may have back, each once; ids that were loaded (none).
        """
        saver = self._saver
        if saver is None:
            return list(finished_gen_req_ids), []
        if finished_gen_req_ids:
            saver.finished(finished_gen_req_ids, self._mark)
        return saver.take_saved(), []

    def shutdown(self) -> None:
        """Unregisters in bounded time, where the host calls it (E4)."""
        self._running = None
        self._engine.close()

    def counters(self) -> dict[str, int]:
        """What happened, by name: of this engine's journal, link and saver."""
        counts = self._engine.journal.counters()
        running = self._running
        if running is not None:
            counts |= running.link.counters
            counts |= running.saver.counters()
        return counts


def _wait_for_earlier_work(stream: Any) -> None:
    """Waits until forwards queued before have passed: recycled pages may still be theirs.

    Source: host contract rule 5; on host memory the copy is not stream-ordered by itself.
    """
    record = getattr(stream, "record_event", None)
    if record is not None:
        record().synchronize()
