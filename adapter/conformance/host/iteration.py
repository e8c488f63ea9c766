"""One iteration, in the order of host contract §5, steps 2 to 14.

Plan and query, report, build, bind, start loads, forward with layer hooks, ``wait_for_save``,
samples and ends, ``get_finished``. With the overlap scheduler the samples of a batch are waited
for one iteration later. What a raising hook does is §10 of the contract: it ends the executor, or
in the older epochs with overlap off and inside the forward, all active requests.

Must not know: the model, clients, how the loop ends. Executor thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from adapter.conformance.host.cache import CacheManager
from adapter.conformance.host.comm import Communicator, Solo
from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.device import Device
from adapter.conformance.host.drafts import Drafter
from adapter.conformance.host.errors import ConnectorFailedError, ForwardFailedError
from adapter.conformance.host.finishing import Finisher, InFlight
from adapter.conformance.host.launching import Launcher
from adapter.conformance.host.lockstep import Lockstep
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.reports import Batch, DeltaReporter, Planner
from adapter.conformance.host.requests import HostRequest, Phase
from adapter.conformance.host.transfers import TransferLedger

_POLL_S: Final = 0.001


@dataclass(frozen=True)
class Parts:
    """What an executor works with on one rank.

    Attributes:
        scheduler: Plans batches.
        cache: Pages.
        port: The connector.
        device: Streams and pool.
        options: Version switches.
        comm: Between the ranks.
        adp: Whether attention is data parallel: ranks have requests of their own.
        drafter: Proposes tokens; None without drafts.
    """

    scheduler: Planner
    cache: CacheManager
    port: ConnectorPort
    device: Device
    options: HostOptions
    comm: Communicator
    adp: bool = False
    drafter: Drafter | None = None

    @property
    def control(self) -> Communicator:
        """Carries answers between ranks with identical batches; alone under attention DP."""
        return Solo(self.comm.rank) if self.adp else self.comm


class Iteration:
    """Runs iterations.

    Args:
        parts: What it works with.
        wants_end: Whether a stop or a cancel waits to be taken up.

    Attributes:
        ledger: Transfers under way.
        finisher: Ends requests.
        launcher: Launches forwards.
        lockstep: The ranks of attention DP, or None.
        previous: The forward whose samples are not waited for yet (overlap).
    """

    def __init__(self, parts: Parts, wants_end: Callable[[], bool]) -> None:
        options = parts.options
        self.lockstep = Lockstep(parts.comm) if parts.adp else None
        self.ledger = TransferLedger(ignore_unknown=options.epoch == "E4", skew=options.load_skew)
        self._reporter = DeltaReporter(
            options.epoch,
            is_v2=options.layout == "v2",
            tokens_per_block=parts.cache.tokens_per_block,
            salt_as_id=options.salt_as_id,
            adp_rank=parts.comm.rank if parts.adp else None,
        )
        self.finisher = Finisher(
            parts.scheduler,
            parts.cache,
            parts.port,
            self._reporter,
            self.ledger,
            options,
            parts.control,
            adp=parts.adp,
        )
        self.launcher = Launcher(parts.device, parts.cache, parts.port, options, parts.drafter)
        self.previous: InFlight | None = None
        self._parts = parts
        self._wants_end = wants_end
        self._error_budget = options.error_budget
        self._is_job = parts.comm.size > 1

    def run(self, number: int, cancelled: Iterable[int]) -> None:
        """Run one iteration.

        Args:
            number: Of the iteration, from 1.
            cancelled: Ids of requests to end early.
        """
        options = self._parts.options
        batch = self._plan()
        if batch:
            batch = self._start_loads(batch)
        launched = None
        if self._may_forward(batch, number):
            launched = self._forward(batch)
        for tables in batch.dummies:
            self._parts.cache.release(tables)
        if options.overlap:
            self.finisher.scan(self.previous)
            self.launcher.sample(launched)
            self.previous = launched
        else:
            self.launcher.sample(launched)
            self.finisher.scan(launched)
        if self._parts.drafter is not None:
            self._parts.drafter.forget_others(self._parts.scheduler.active)
        self.finisher.cancel(cancelled, "was cancelled")
        self.finisher.poll_transfers()

    def _plan(self) -> Batch:
        batch = self._parts.scheduler.plan()
        for request in batch.preempted:
            self.finisher.forget_preempted(request)
        for request, tables in batch.deferred:
            self.finisher.defer_replay(request, tables)
        if self.lockstep is not None and self.lockstep.anyone(bool(batch)) and not batch:
            self._add_dummy(batch)
        return batch

    def _add_dummy(self, batch: Batch) -> bool:
        # One token for one rank: the others could not forward without it.
        tables = self._parts.cache.borrow_page()
        if tables is not None:
            batch.dummies.append(tables)
        return tables is not None

    def _start_loads(self, batch: Batch) -> Batch:
        self._build_and_start(batch)
        if self.lockstep is None or batch.can_forward or not batch.loading:
            return batch
        if self._add_dummy(batch):
            return batch
        landed = self._await_load()
        self._build_and_start(landed)
        return landed

    def _await_load(self) -> Batch:
        # Attention DP: all ranks wait while this one's only requests load (host contract §5).
        limit_s, grace_s = self._parts.options.load_deadline_s, self._parts.options.grace_s
        deadline_s, why = time.monotonic() + limit_s, f"no load ended within {limit_s} s"
        is_told = False
        while time.monotonic() < deadline_s:
            if not is_told and self._wants_end():
                is_told, ends_s = True, time.monotonic() + grace_s
                if ends_s < deadline_s:
                    deadline_s, why = (
                        ends_s,
                        f"no load ended within {grace_s} s of a stop or cancel",
                    )
            time.sleep(_POLL_S)
            self.finisher.poll_transfers()
            active = self._parts.scheduler.active.values()
            if any(request.phase is Phase.CONTEXT for request in active):
                return self._parts.scheduler.plan()
        raise ConnectorFailedError(f"KV connector failed: {why}")

    def _build_and_start(self, batch: Batch) -> None:
        port, device = self._parts.port, self._parts.device
        requests = [*batch.loading, *(s.request for s in batch.entries)]
        if batch.has_load:
            self.probe("queried", requests)
        port.build_and_bind(self._reporter.report(batch))
        device.poison(batch.new_pages)
        self.probe("bound", requests)
        for request in batch.loading:
            self.ledger.start_load(request.request_id)
        port.start_load(device.main, has_load=batch.loads_now)

    def _may_forward(self, batch: Batch, number: int) -> bool:
        skip = self._parts.options.skip_forward
        wanted = batch.can_forward and not (skip is not None and skip(number))
        return wanted if self.lockstep is None else self.lockstep.all_forward(wanted)

    def _forward(self, batch: Batch) -> InFlight | None:
        requests = [scheduled.request for scheduled in batch.entries]
        try:
            self.probe("forward", requests)
            in_flight = self.launcher.launch(batch)
        except ConnectorFailedError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a forward or hook raises
            self._fail_active(error)
            return None
        self.probe("launched", requests)
        return in_flight

    def _fail_active(self, error: Exception) -> None:
        self._error_budget -= 1
        # Ranks whose batches differ from now on would wait for each other for ever.
        if self._parts.options.overlap or self._error_budget < 0 or self._is_job:
            raise error
        scheduler = self._parts.scheduler
        for request in [*scheduler.active.values(), *scheduler.waiting]:
            failure = ForwardFailedError(f"request {request.request_id}: forward failed: {error!r}")
            failure.__cause__ = error
            self.finisher.drop(request, failure)
        scheduler.waiting.clear()

    def probe(self, point: str, requests: list[HostRequest]) -> None:
        """Let a test act here."""
        if self._parts.options.probe is not None:
            self._parts.options.probe(point, tuple(request.request_id for request in requests))
