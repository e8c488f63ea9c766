"""The connector's worker side: fills pages before a forward, and lets the saver know what ran.

Loads are pulled from this process's own mapping; saves are only noted here and done by the saver's
thread. The one thing that raises out of a hook is a load that failed, for no token may be computed
on pages that were not filled (design rule 2).

Must not know: tokens, hashes, how the server is reached. Runs in: the executor's thread
(construction and registration in others). Source: host contract §3 to §5, §10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from adapter.copy import LoadError
from adapter.deviceloads import loads_for
from adapter.engine import Engine, Running, engine_for
from adapter.layouts import read_layout
from adapter.link import Link
from adapter.loader import Loader
from adapter.loadmode import LoadMode
from adapter.loads import Loads
from adapter.loadspans import LoadSpans
from adapter.metadata import ConnectorMetadata
from adapter.pagememory import PageMemory
from adapter.poolshape import CacheShape, read_tensor
from adapter.refusals import UncachedError
from adapter.saveentry import LostMark, Mark, mark_of
from adapter.trtllm_api import KvCacheConnectorWorker
from protocol.errors import ConfigError, ErrorCode

_CLOSE_S: Final = 2.0
_NOTHING: Final = ConnectorMetadata(0)


class KvkeepConnectorWorker(KvCacheConnectorWorker):
    """Shares the engine's pages with the node's kvkeep server and copies hits into them."""

    supports_attention_dp = True

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
        self._loads: Loads | None = None
        self._mark: Mark | None = None
        self._bound_iteration = 0
        self._by_layer = self._sees_layers = False
        self._loader: Loader | None = None
        self._spans: LoadSpans | None = None

    @property
    def link(self) -> Link | None:
        """The link to the server, once the pool is registered with it; for diagnosis."""
        return None if self._running is None else self._running.link

    # --- bring-up ---

    def register_forward_pass_callable(self) -> Callable[..., Any] | None:
        """What runs after each forward: a look at its layer hooks, if loads may rely on them."""
        if self._engine.settings.load_mode == LoadMode.LAYERWISE.value:
            return self._forward_done
        return None

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        """Takes the final pool of the first cache manager.

        Args:
            kv_cache_tensor: ``[num_blocks, num_layers, kv_factor, elements]``.
                Source: host contract §7.

        Raises:
            ConfigError: the chunk size does not fit the block size; valid sizes are named.
        """
        self._register(read_tensor, kv_cache_tensor)

    def register_kv_cache_layout(self, layout: Any) -> None:
        """Takes the final cache of the second cache manager.

        Args:
            layout: of the cache. Source: host contract §7, V2.

        Raises:
            ConfigError: as for ``register_kv_caches``.
        """
        self._register(read_layout, layout)

    def _register(self, read: Callable[[Any], tuple[CacheShape, PageMemory]], cache: Any) -> None:
        engine = self._engine
        try:
            engine.register(*read(cache))
            self._look()
        except ConfigError:
            raise
        except UncachedError as error:
            engine.run_uncached(str(error))
        except Exception as error:  # noqa: BLE001 - the engine serves without a cache
            engine.run_uncached(f"the pool could not be registered: {error!r}")

    def _look(self) -> None:
        """Takes note of the registered engine; on some ranks it appears in some iteration."""
        running = self._engine.running
        if running is None or running is self._running:
            return
        self._running = running
        self._by_layer = running.load_mode is LoadMode.LAYERWISE
        if self._loader is None:
            # A pool in host memory may have its marks on a device all the same.
            self._loader = Loader(running.enter_device)
            self._engine.at_close(partial(self._loader.stop, _CLOSE_S))
            self._loads = loads_for(
                running.memory,
                running.geometry,
                self._engine.journal,
                self._loader,
                self._by_layer,
            )
            self._sees_layers = self._by_layer or running.memory.device is not None
            if self._engine.tracer is not None:
                self._spans = LoadSpans(self._engine.tracer, self._sees_layers)

    # --- iterations ---

    def bind_connector_meta(self, metadata: Any) -> None:
        """Takes in one iteration: raises page ticks, names and confirms saves.

        Args:
            metadata: of this iteration's ``build_connector_meta``; one that comes again, or late,
                says nothing of its requests' pages now (host contract rule 8).
        """
        super().bind_connector_meta(metadata)
        if not isinstance(metadata, ConnectorMetadata):
            return
        try:
            self._engine.follow(metadata.engine)
            self._look()
            if self._running is not None and metadata.iteration > self._bound_iteration:
                self._bound_iteration = metadata.iteration
                self._running.saver.bound(metadata, self._mark)
        except Exception as error:  # noqa: BLE001 - every save was withdrawn with it
            self._engine.journal.report("bind_errors", f"kvkeep: saves are off: {error!r}")
            self._engine.run_uncached(f"an iteration was not understood: {error!r}")

    def start_load_kv(self, stream: Any) -> None:
        """Begins this iteration's loads; those that the forward needs are there before it runs.

        In host memory they are complete on return; on a device they are queued before the forward.
        Only where the forward is known to ask for each layer may its loads go on beside it.
        Idempotent: a load that was begun is not repeated, for its pages may be computed on by then.

        Args:
            stream: the engine's main stream (M).

        Raises:
            LoadError: promised tokens could not be loaded.
        """
        metadata, running, loads = self.get_connector_meta(), self._running, self._loads
        if not isinstance(metadata, ConnectorMetadata):
            metadata = _NOTHING
        with self._loud():
            if running is not None and loads is not None:
                if self._spans is not None:
                    self._spans.begin(metadata.loads)
                try:
                    loads.begin(metadata, running.link, stream)
                    if self._spans is not None:
                        self._spans.begun()
                finally:  # what failed will not be read again either
                    running.link.offers.begun(metadata)
            elif metadata.failure or metadata.loads:
                why = metadata.failure or "a load was promised without a pool"
                raise LoadError(ErrorCode.INTERNAL, why)

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        """Has the forward wait for a layer's bytes, where loads go on beside it.

        Args:
            layer_idx: model layer, whose attention is about to be launched.
            stream: of the forward (X); what it gets after this is ordered behind the bytes.

        Raises:
            LoadError: they did not come.
        """
        if self._sees_layers and self._loads is not None:
            with self._loud():
                self._loads.wait_for_layer(int(layer_idx), stream)

    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        """Has a layer's new bytes staged as soon as its work is done, in the layer-wise mode.

        Args:
            layer_idx: model layer, whose work was just launched.
            stream: of the forward (X).
        """
        running = self._running
        if not self._by_layer or running is None:
            return
        try:
            metadata = self.get_connector_meta()
            if isinstance(metadata, ConnectorMetadata) and metadata.may_fire:
                mark = mark_of(stream)
                if mark is not None:
                    running.saver.layer_done(int(layer_idx), mark)
        except Exception as error:  # noqa: BLE001 - the pages are read whole, later
            self._engine.journal.report("layer_marks_lost", f"kvkeep: {error!r}")

    def _forward_done(self, *_: Any, **__: Any) -> None:
        """The forward callable. It also runs in warm-up, when nothing is loaded.

        Raises:
            LoadError: the forward did not wait for what it read.
        """
        if self._loads is not None:
            with self._loud():
                self._loads.check_hooks()

    def wait_for_save(self, stream: Any) -> None:
        """Marks the point behind the forward just launched; does not wait.

        Args:
            stream: the engine's main stream (M). Source: host contract §5.

        Raises:
            LoadError: the forward did not wait for what it read.
        """
        running, loads = self._running, self._loads
        if running is None or loads is None:
            return
        with self._loud():
            loads.launched()
        if self._spans is not None:
            self._spans.launched()
        try:
            self._mark = loads.guard(mark_of(stream))
        except Exception as error:  # noqa: BLE001 - raising here would fail the whole batch
            # The mark before this one says nothing of the forward just launched.
            self._mark = LostMark(error)
            self._engine.journal.report("marks_lost", f"kvkeep: a save is dropped: {error!r}")
        running.saver.launched()

    def get_finished(
        self, finished_gen_req_ids: Sequence[int], started_loading_req_ids: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Ends an iteration.

        Args:
            finished_gen_req_ids: requests whose pages the host keeps for our saves, each once.
            started_loading_req_ids: requests that wait outside the batch from now on, each once.

        Returns:
            Ids whose pages the host may have back, and ids whose pages are filled; each once.

        Raises:
            LoadError: a load in the background failed.
        """
        running, loads = self._running, self._loads
        if running is None or loads is None:
            return list(finished_gen_req_ids), list(started_loading_req_ids)
        if finished_gen_req_ids:
            running.saver.finished(finished_gen_req_ids, self._mark)
        with self._loud():
            loaded = loads.take_arrived(started_loading_req_ids)
        if self._spans is not None:
            self._spans.arrived(loaded)
        return running.saver.take_saved(), loaded

    @contextmanager
    def _loud(self) -> Iterator[None]:
        """A failed load ends caching as well.

        Should the host survive it, what it computed on those pages must reach nobody else.
        """
        try:
            yield
        except LoadError as error:
            self._engine.journal.count("loads_failed")
            if self._spans is not None:
                self._spans.failed(error)
            self._engine.run_uncached(f"a load failed: {error}")
            raise

    def shutdown(self) -> None:
        """Stops loads and unregisters, in bounded time, where the host calls it (E4)."""
        self._running = None
        if self._loader is not None:
            self._loader.stop(_CLOSE_S)
        self._engine.close()

    def counters(self) -> dict[str, int]:
        """What happened, by name: of this engine's journal, link and saver."""
        counts = self._engine.journal.counters()
        running = self._running
        if running is not None:
            counts |= running.link.counters
            counts |= running.saver.counters()
        if self._engine.tracer is not None:
            counts |= self._engine.tracer.figures()
        return counts
