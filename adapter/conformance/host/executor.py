"""The executor: one thread that runs iterations as host contract §5 orders them.

Fetch (blocking without any poll when nothing is active or waiting), plan and
query, report, build, bind, start loads, forward with layer hooks,
``wait_for_save``, samples and ends, ``get_finished``. With the overlap scheduler
the samples of a batch are waited for one iteration later. What a raising hook
does is §10 of the contract (E2): it ends the executor, or with overlap off and
inside the forward, all active requests.

Must not know: the model, how results reach clients. All of it but ``submit``,
``cancel`` and ``stop`` runs on the executor's thread.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future

from adapter.conformance.host.allocator import BlockAllocator
from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.device import Device
from adapter.conformance.host.errors import ExecutorDiedError, ForwardFailedError
from adapter.conformance.host.finishing import Finisher, InFlight
from adapter.conformance.host.inbox import Command, Inbox
from adapter.conformance.host.launching import Launcher
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.reports import Batch, DeltaReporter
from adapter.conformance.host.requests import HostRequest, Phase
from adapter.conformance.host.scheduling import BatchScheduler
from adapter.conformance.host.transfers import TransferLedger

_log = logging.getLogger(__name__)
_SPIN_WAIT_S = 0.0005


class Executor:
    """The loop over iterations.

    Args:
        scheduler: Plans batches.
        allocator: Pages.
        port: The connector.
        device: Streams and pool.
        options: Version switches.
    """

    def __init__(
        self,
        scheduler: BatchScheduler,
        allocator: BlockAllocator,
        port: ConnectorPort,
        device: Device,
        options: HostOptions,
    ) -> None:
        self.num_iterations = 0
        self.error: BaseException | None = None
        self.ledger = TransferLedger()
        self._scheduler = scheduler
        self._allocator = allocator
        self._launcher = Launcher(device, allocator, port, options)
        self._port = port
        self._device = device
        self._options = options
        self._reporter = DeltaReporter(options.epoch)
        self.finisher = Finisher(scheduler, allocator, port, self._reporter, self.ledger, options)
        self._inbox = Inbox()
        self._cancelled: list[int] = []
        self._forgets: list[Future[int]] = []
        self._previous: InFlight | None = None
        self._error_budget = options.error_budget
        self._thread = threading.Thread(target=self._run, name="executor", daemon=True)

    @property
    def num_forwards(self) -> int:
        """Forwards launched."""
        return self._launcher.num_forwards

    @property
    def num_computed_tokens(self) -> int:
        """Tokens run through forwards."""
        return self._launcher.num_computed_tokens

    def start(self) -> None:
        """Start the thread; from here on every hook runs on it."""
        self._thread.start()

    def submit(self, request: HostRequest) -> None:
        """Queue a request; fails its handle at once if the executor is gone."""
        if not self._inbox.put(request):
            request.handle.fail(self._death())

    def cancel(self, request_id: int) -> None:
        """Ask for the end of a request; taken up at the end of an iteration."""
        self._inbox.put(request_id)

    def forget_reuse(self) -> Future[int]:
        """Ask for an empty reuse tree; see ``HostEngine.forget_reuse``.

        Returns:
            Ends with the number of pages given up, or with why it could not be.
        """
        forget: Future[int] = Future()
        if not self._inbox.put(forget):
            forget.set_exception(self._death())
        return forget

    def stop(self, timeout_s: float) -> None:
        """Cancel what is left and end the thread.

        Raises:
            TimeoutError: If the thread does not end; a hook blocks.
        """
        self._inbox.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the executor did not end within {timeout_s} s")

    def _run(self) -> None:
        try:
            while self._fetch():
                self._iterate()
        except BaseException as error:  # noqa: BLE001 - a dead executor is a result here
            _log.warning("executor died: %r", error)
            self.error = error
        try:
            if self.error is None:
                left = [*self._scheduler.active, *(r.request_id for r in self._scheduler.waiting)]
                self.finisher.cancel(left, "ended by shutdown")
        except BaseException as error:  # noqa: BLE001 - E1 calls the connector here
            self.error = error
        self._close()

    def _fetch(self) -> bool:
        busy = self._scheduler.active or self._scheduler.waiting or self._previous
        timeout_s: float | None = None
        if busy or self._forgets:
            timeout_s = _SPIN_WAIT_S if self._is_stuck() else 0.0
        for command in self._inbox.take(timeout_s):
            if command is None:
                return False
            if isinstance(command, HostRequest):
                self._scheduler.waiting.append(command)
            elif isinstance(command, Future):
                self._forgets.append(command)
            else:
                self._cancelled.append(command)
        return True

    def _is_stuck(self) -> bool:
        # Only loads to wait for, or pages held by saves: go round, but not at full speed.
        runnable = any(r.phase is not Phase.LOADING for r in self._scheduler.active.values())
        return self._previous is None and not runnable

    def _iterate(self) -> None:
        self.num_iterations += 1
        batch = self._scheduler.plan()
        if batch:
            self._start_loads(batch)
        skip = self._options.skip_forward
        launched = None
        if batch.entries and not (skip is not None and skip(self.num_iterations)):
            launched = self._forward(batch)
        if self._options.overlap:
            self.finisher.scan(self._previous)
            self._launcher.sample(launched)
            self._previous = launched
        else:
            self._launcher.sample(launched)
            self.finisher.scan(launched)
        cancelled, self._cancelled = self._cancelled, []
        self.finisher.cancel(cancelled, "was cancelled")
        self.finisher.poll_transfers()
        if self._forgets:
            self._forget()
        self._probe("iteration", [])

    def _forget(self) -> None:
        # Pages held for a save come back to the tree when it ends: wait for those too.
        if self._scheduler.active or self._scheduler.waiting or self.ledger.num_saving_pages:
            return
        num_pages = self._allocator.forget()
        forgets, self._forgets = self._forgets, []
        for forget in forgets:
            forget.set_result(num_pages)

    def _start_loads(self, batch: Batch) -> None:
        requests = [*batch.loading, *(s.request for s in batch.entries)]
        if batch.has_load:
            self._probe("queried", requests)
        self._port.build_and_bind(self._reporter.report(batch))
        self._device.poison(batch.new_blocks)
        self._probe("bound", requests)
        for request in batch.loading:
            self.ledger.start_load(request.request_id)
        self._port.start_load(self._device.main, has_load=batch.has_load)

    def _forward(self, batch: Batch) -> InFlight | None:
        requests = [scheduled.request for scheduled in batch.entries]
        try:
            self._probe("forward", requests)
            in_flight = self._launcher.launch(batch)
        except Exception as error:  # noqa: BLE001 - whatever a forward or hook raises
            self._fail_active(error)
            return None
        self._probe("launched", requests)
        return in_flight

    def _fail_active(self, error: Exception) -> None:
        self._error_budget -= 1
        if self._options.overlap or self._error_budget < 0:
            raise error
        for request in [*self._scheduler.active.values(), *self._scheduler.waiting]:
            failure = ForwardFailedError(f"request {request.request_id}: forward failed: {error!r}")
            failure.__cause__ = error
            self.finisher.drop(request, failure)
        self._scheduler.waiting.clear()

    def _probe(self, point: str, requests: list[HostRequest]) -> None:
        if self._options.probe is not None:
            self._options.probe(point, tuple(request.request_id for request in requests))

    def _death(self) -> ExecutorDiedError:
        death = ExecutorDiedError(
            "the executor was stopped" if self.error is None else f"executor died: {self.error!r}"
        )
        death.__cause__ = self.error
        return death

    def _close(self) -> None:
        left: list[Command] = [*self._inbox.close(), *self._forgets]
        left += [*self._scheduler.active.values(), *self._scheduler.waiting]
        for command in left:
            if isinstance(command, HostRequest):
                command.handle.fail(self._death())
            elif isinstance(command, Future):
                command.set_exception(self._death())
