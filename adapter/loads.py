"""One rank's loads: from an iteration's orders to filled pages, in whichever way they are due.

Whole before the forward; in the background for a request that waits outside the batch; layer by
layer beside the forward. A load that failed is raised at the host, for no token may be computed on
pages that were not filled (design rule 2). Each order's lease is given back once, by this reader,
when its load has ended.

Must not know: tokens, the host's reports, how the server is reached. Runs in: the executor's
thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Final, Protocol

import numpy as np

from adapter.copy import HeldLoad, LoadError, ShardLoad, held_load
from adapter.extents import ExtentTable
from adapter.geometry import Geometry
from adapter.journal import Journal
from adapter.layerloads import HookRecord, LayerBatch, LayerLoad
from adapter.loader import Arrivals, Loader, WholeLoad, as_load_error, pass_gate
from adapter.metadata import ConnectorMetadata, LoadOrder
from adapter.pagememory import PageMemory
from adapter.saveentry import Mark, mark_of
from protocol.errors import ErrorCode
from protocol.ids import Epoch, LeaseId
from protocol.layout import SLOT_DTYPE

_MAX_BEGUN: Final = 4096


def shards_of(order: LoadOrder, geometry: Geometry, memory: PageMemory) -> list[ShardLoad]:
    """This rank's part of an order.

    Args:
        order: slots of all shards, pages of all groups.
        geometry: of this rank.
        memory: its pages.

    Returns:
        One per layer group.

    Raises:
        LoadError: the order does not go with this rank's groups.
    """
    groups = memory.groups
    if order.pages.ndim != 3 or len(order.pages) != len(groups):
        raise LoadError(
            ErrorCode.COUNT_MISMATCH,
            f"an order with pages of shape {order.pages.shape} is not for {len(groups)} groups",
        )
    slots = np.frombuffer(order.slots, dtype=SLOT_DTYPE).reshape(-1, order.num_shards)
    return [
        ShardLoad(group, groups[group], slots[:, shard], order.pages[group])
        for group, shard in enumerate(geometry.shards)
    ]


class Leases(Protocol):
    """Where leased bytes are read and given back; the link to the server is one."""

    @property
    def extents(self) -> ExtentTable:
        """Mapped into this process."""

    def release(self, lease: LeaseId) -> None:
        """Ends this reader's part in a lease. Any thread; does not wait."""


class Loads:
    """All loads of one rank. Belongs to the executor's thread."""

    def __init__(
        self,
        memory: PageMemory,
        geometry: Geometry,
        journal: Journal,
        loader: Loader,
        by_layer: bool = False,
    ) -> None:
        """Starts nothing.

        Args:
            memory: this rank's pages.
            geometry: of them.
            journal: counts what was loaded.
            loader: of this rank.
            by_layer: whether loads may be done layer by layer where the hooks prove good for it.
        """
        self._memory = memory
        self._geometry = geometry
        self._journal = journal
        self._loader = loader
        self._record = HookRecord(tuple(memory.layers)) if by_layer else None
        self._batch: LayerBatch | None = None
        self._arrivals = Arrivals()
        self._begun: OrderedDict[bytes, None] = OrderedDict()

    @property
    def num_waiting(self) -> int:
        """Loads in the background that have not ended."""
        return self._arrivals.num_running

    def begin(self, metadata: ConnectorMetadata, leases: Leases, stream: object) -> None:
        """Loads what this iteration's forward needs, and starts what it does not.

        Args:
            metadata: of the iteration; orders that were begun before are not repeated, for their
                pages may be computed on by then (host contract rule 8: metadata comes again).
            leases: where the orders' bytes are.
            stream: the engine's main stream (M): what is queued on it may still use the pages.

        Raises:
            LoadError: pages were promised and are not filled.
        """
        orders = [order for order in metadata.loads if order.lease not in self._begun]
        owed = {order.lease: LeaseId(order.lease) for order in orders}
        try:
            self._finish_batch()
            if self._record is not None:
                self._record.begin(metadata.may_fire)
            self._check()
            if metadata.failure:
                raise LoadError(ErrorCode.INTERNAL, metadata.failure)
            if orders:
                self._begin_orders(orders, owed, leases, stream, metadata.may_fire)
        except LoadError:
            raise
        except Exception as error:
            raise as_load_error(error) from error
        finally:
            for lease in owed.values():
                leases.release(lease)

    def _begin_orders(
        self,
        orders: Sequence[LoadOrder],
        owed: dict[bytes, LeaseId],
        leases: Leases,
        stream: object,
        may_fire: bool,
    ) -> None:
        """Takes out of ``owed`` what is given back later on."""
        gate = mark_of(stream)
        for order in orders:
            if order.is_async:
                self._park(order, owed.pop(order.lease), leases, gate)
        now = [order for order in orders if not order.is_async]
        with ExitStack() as holding:
            loads = [holding.enter_context(self._held(order, leases)) for order in now]
            batch = self._batch_of(loads, [owed[o.lease] for o in now], leases, gate, may_fire)
            if batch is not None:
                batch.holding = holding.pop_all()
                if self._loader.submit(batch):
                    self._batch = batch
                    self._journal.count("layerwise_batches")
                    for order in now:
                        self._note(order)
                        del owed[order.lease]
                    return
                holding.push(batch.holding)
            self._load_now(now, loads, gate)

    def _held(self, order: LoadOrder, leases: Leases) -> AbstractContextManager[HeldLoad]:
        shards = shards_of(order, self._geometry, self._memory)
        return held_load(leases.extents, Epoch(order.epoch), shards)

    def _load_now(
        self, orders: Sequence[LoadOrder], loads: Sequence[HeldLoad], gate: Mark | None
    ) -> None:
        if loads:
            pass_gate(gate)
        for order, load in zip(orders, loads, strict=True):
            load.copy()
            load.check()
            self._note(order)
            self._count(load)

    def _park(self, order: LoadOrder, lease: LeaseId, leases: Leases, gate: Mark | None) -> None:
        """Loads in the background for a request outside the batch."""
        arrivals, request_id = self._arrivals, order.request_id
        arrivals.begin(request_id)
        self._note(order)
        holding = ExitStack()
        try:
            load = holding.enter_context(self._held(order, leases))
        except Exception as error:
            leases.release(lease)
            arrivals.end(request_id, as_load_error(error))
            raise
        count = self._count

        def done(failure: LoadError | None) -> None:
            try:
                leases.release(lease)
                if failure is None:
                    count(load)
            finally:
                arrivals.end(request_id, failure)

        job = WholeLoad(load, holding, gate, done)
        if not self._loader.submit(job):
            job.run(lambda: False)  # no room: it takes this hook's time
            arrivals.check()

    def _batch_of(
        self,
        loads: Sequence[HeldLoad],
        owed: Sequence[LeaseId],
        leases: Leases,
        gate: Mark | None,
        may_fire: bool,
    ) -> LayerLoad | None:
        """The loads as work of the loader, if the forward is to wait for them by layer."""
        count = self._count
        if not loads or not self._trusts_hooks(may_fire):
            return None

        def done(failure: LoadError | None) -> None:
            for lease in owed:
                leases.release(lease)
            if failure is None:
                for load in loads:
                    count(load)

        return LayerLoad(loads, self._memory.layers, gate, done)

    def _trusts_hooks(self, may_fire: bool) -> bool:
        """Whether the coming forward will ask for each layer."""
        return self._record is not None and may_fire and self._record.is_trusted

    def _check(self) -> None:
        """Raises what failed meanwhile."""
        self._arrivals.check()

    def wait_for_layer(self, layer: int, stream: object) -> None:
        """The forward is about to launch a layer's attention.

        Args:
            layer: model layer.
            stream: of the forward (X).

        Raises:
            LoadError: its bytes did not come.
        """
        if self._record is None:
            return
        self._record.saw(layer)
        if self._batch is not None:
            self._batch.wait(layer, stream)

    def check_hooks(self) -> None:
        """A forward was launched: had it asked for each layer that was being loaded?

        Raises:
            LoadError: it had not, so it computed on pages not known to be filled.
        """
        record = self._record
        if record is None or self._batch is None or not record.missing:
            return
        missing = record.missing
        record.launched()
        raise LoadError(
            ErrorCode.INTERNAL,
            f"a forward ran without asking for {missing} of {len(self._memory.layers)} layers "
            "while they were loaded; set TRTLLM_KVKEEP_LOAD_MODE=sync",
        )

    def launched(self) -> None:
        """Ends a forward: what its hooks did counts for later ones.

        Raises:
            LoadError: as for ``check_hooks``.
        """
        if self._record is None:
            return
        self.check_hooks()
        self._batch = None  # the forward waited for all of it
        if self._record.launched():
            self._journal.report(
                "layer_hooks_missing",
                "kvkeep: a forward with a prompt did not call each layer's hook; loads are "
                "awaited whole from now on",
            )

    def guard(self, mark: Mark | None) -> Mark | None:
        """A point in the stream behind a forward, such that what it computed may be saved then.

        Args:
            mark: the point.

        Returns:
            One that is not passed before the loads which that forward read are known to be good.
        """
        return mark  # they were complete before it ran

    def take_arrived(self, announced: Iterable[int]) -> list[int]:
        """Ends an iteration. See ``Arrivals.take``.

        A forward that broke off leaves its loads going on into pages that the host takes back, and
        its next allocations may copy into them long before ``begin``: they are awaited here.
        """
        self._finish_batch()
        return self._arrivals.take(announced)

    def _finish_batch(self) -> None:
        """A batch whose forward was skipped, or failed, is complete before anything else begins."""
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.wait_all()

    def _note(self, order: LoadOrder) -> None:
        self._begun[order.lease] = None
        while len(self._begun) > _MAX_BEGUN:
            self._begun.popitem(last=False)

    def _count(self, load: HeldLoad) -> None:
        self._journal.count("bytes_loaded", load.num_bytes)
        self._journal.count("pages_loaded", load.num_pages)
