"""How requests end: samples, stop tokens, cancellation, page release.

Steps 13 and 14 of host contract §5 and the ends of §6: a finished request's pages
go at once unless the connector answers True, a request stopped early under
overlap is scanned again an iteration later, a cancelled one loses its pages
without a callback (E1: with one). Only E4, and attention DP, wait for a cancelled
request's running load.

Must not know: scheduling, streams beyond waiting for an event. Executor thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from adapter.conformance.host.cache import CacheManager
from adapter.conformance.host.comm import Communicator, Solo
from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.drafts import Sample, accepted
from adapter.conformance.host.errors import RequestCancelledError
from adapter.conformance.host.hardware import WorkEvent
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.reports import DeltaReporter, Planner
from adapter.conformance.host.requests import HostRequest, HostResult, Phase
from adapter.conformance.host.transfers import TransferLedger

_log = logging.getLogger(__name__)


@dataclass
class InFlight:
    """A launched forward whose samples the host has not waited for.

    Attributes:
        samples: One per sampled request.
        sampled: The event behind the samples, once queued.
    """

    samples: list[Sample] = field(default_factory=list)
    sampled: WorkEvent | None = None


class Finisher:
    """Ends requests and gives their pages back.

    Args:
        scheduler: Loses the requests that end.
        cache: Gets their pages.
        port: The connector.
        reporter: Forgets them.
        ledger: Keeps pages that are still being saved.
        options: Version switches; which ends are signalled how.
        comm: Gathers what ``get_finished`` returned; alone under attention DP.
        adp: Whether attention is data parallel: cancelling then waits for transfers.

    Attributes:
        num_finished: Requests that ended well.
        replaying: Preempted requests whose pages are being saved, by id.
    """

    def __init__(
        self,
        scheduler: Planner,
        cache: CacheManager,
        port: ConnectorPort,
        reporter: DeltaReporter,
        ledger: TransferLedger,
        options: HostOptions,
        comm: Communicator | None = None,
        *,
        adp: bool = False,
    ) -> None:
        self.num_finished = 0
        self._scheduler = scheduler
        self._cache = cache
        self._port = port
        self._reporter = reporter
        self._ledger = ledger
        self._options = options
        self._comm: Communicator = comm or Solo()
        self._waits = adp or options.epoch == "E4"
        self._cancelling: dict[int, tuple[HostRequest, str]] = {}
        self._saving: dict[int, HostRequest] = {}
        self.replaying: dict[int, HostRequest] = {}

    @property
    def num_cancelling(self) -> int:
        """Cancelled requests whose transfers are still waited for."""
        return len(self._cancelling)

    def scan(self, in_flight: InFlight | None) -> None:
        """Wait for a batch's samples and finish its finished requests.

        Args:
            in_flight: A batch with samples queued, or None.

        Raises:
            StreamError: If the forward, a load or anything before it on the
                streams failed.
            TimeoutError: If the device does not get there.
        """
        if in_flight is None or in_flight.sampled is None:
            return
        in_flight.sampled.synchronize(self._options.stream_timeout_s)
        for sample in in_flight.samples:
            request = sample.request
            if request.phase is Phase.ENDED:
                self._scan_again(request)
            elif sample.attempt == request.attempt:
                self._take_samples(request, sample)

    def cancel(self, request_ids: Iterable[int], reason: str) -> None:
        """End requests early; pages go without a callback (late E2, E3; §6).

        Args:
            request_ids: Unknown and ended ids are ignored.
            reason: Shown to whoever waits for the result.
        """
        for request_id in request_ids:
            request = self._find(request_id)
            if request is None:
                continue
            if self._waits and self._ledger.is_pending(request_id):
                self._await_transfers(request, reason)
                continue
            keep = False
            if self._options.epoch == "E1" and request.tables:
                keep = self._port.request_finished(request)
            self.drop(request, RequestCancelledError(f"request {request_id} {reason}"), keep=keep)

    def drop(self, request: HostRequest, error: BaseException, *, keep: bool = False) -> None:
        """End a request with an error and release its pages.

        Args:
            request: An active or waiting request.
            error: Raised at whoever waits for the result.
            keep: Whether the connector asked to keep the pages.
        """
        self._end(request, keep=keep)
        request.handle.fail(error)

    def forget_preempted(self, request: HostRequest) -> None:
        """A request lost its pages and will replay (§6): silently, but for E4's signal."""
        self._reporter.forget(request.request_id)
        if not self._options.direct_preemption:
            self._port.request_reset(request)

    def defer_replay(self, request: HostRequest, tables: list[list[int]]) -> None:
        """Let a preempted request wait until the pages it lost are saved (E4; §6).

        Args:
            request: It has no pages any more.
            tables: The pages.
        """
        self._ledger.start_save(request.request_id, tables)
        self.replaying[request.request_id] = request

    def poll_transfers(self) -> None:
        """Announce new transfers and take those that ended on every rank (step 14).

        Raises:
            KeyError: If the connector reports an id that is not pending.
        """
        reported = self._ledger.report(*self._port.get_finished(*self._ledger.announce()))
        saved, loaded = self._ledger.settle(self._comm.allgather(reported))
        for request_id in loaded:
            request = self._scheduler.active.get(request_id)
            if request is None or request_id in self._cancelling:
                continue
            if request.phase is Phase.LOADING:
                request.phase = Phase.CONTEXT
        for tables in saved:
            self._cache.release(tables)
        for request_id in [i for i in self._saving if not self._ledger.is_pending(i)]:
            self._saving.pop(request_id).tables = []
        for request_id in [i for i in self.replaying if not self._ledger.is_pending(i)]:
            self._scheduler.waiting.appendleft(self.replaying.pop(request_id))
        for request_id in [i for i in self._cancelling if not self._ledger.is_pending(i)]:
            request, reason = self._cancelling.pop(request_id)
            self.drop(request, RequestCancelledError(f"request {request_id} {reason}"))

    def _find(self, request_id: int) -> HostRequest | None:
        # An active one stays where it is until it is dropped.
        if request_id in self._scheduler.active:
            return self._scheduler.active[request_id]
        for request in self._scheduler.waiting:
            if request.request_id == request_id:
                self._scheduler.waiting.remove(request)
                self._scheduler.give_back(request)
                return request
        return self.replaying.pop(request_id, None)

    def _take_samples(self, request: HostRequest, sample: Sample) -> None:
        num_accepted = accepted(sample)
        request.num_issued += num_accepted
        request.num_unverified -= len(sample.cells) - 1
        for cell in sample.cells[: num_accepted + 1]:
            token, logits = cell.get(), cell.logits
            request.tokens.append(token)
            if self._options.capture_logits and logits is not None:
                request.logits.append(logits)
            if token in request.params.stop_ids:
                self._finish(request, "stop")
                return
            if len(request.generated) >= request.params.max_new_tokens:
                self._finish(request, "length")
                return
        if len(sample.cells) > 1:
            self._rewind(request)

    def _rewind(self, request: HostRequest) -> None:
        # What no forward can have written any more goes back, unseen by the connector (§11).
        keep = -(-request.num_computable // self._cache.tokens_per_block)
        self._cache.release([request.blocks[keep:]])
        del request.blocks[keep:]

    def _await_transfers(self, request: HostRequest, reason: str) -> None:
        if request.request_id in self._cancelling:
            return
        self._cancelling[request.request_id] = (request, reason)
        count = request.matched_by_connector
        count = request.num_loaded_tokens if count is None else count
        if request.phase is Phase.LOADING and count:
            self._port.cancel_load(request, request.cursor - count, request.cursor)

    def _finish(self, request: HostRequest, reason: str) -> None:
        keep = self._port.request_finished(request)
        self._cache.store_finished(request)
        generated = request.generated
        self._end(request, keep=keep)
        self.num_finished += 1
        request.handle.resolve(
            HostResult(
                tokens=generated,
                logits=request.logits,
                num_device_tokens=request.num_device_tokens,
                num_loaded_tokens=request.num_loaded_tokens,
                num_computed_tokens=request.prompt_len
                - request.num_device_tokens
                - request.num_loaded_tokens,
                finish_reason=reason,
            )
        )

    def _end(self, request: HostRequest, *, keep: bool) -> None:
        request.phase = Phase.ENDED
        self._scheduler.active.pop(request.request_id, None)
        self._reporter.forget(request.request_id)
        if keep:
            request.saving = True
            self._saving[request.request_id] = request
            self._ledger.start_save(request.request_id, request.tables)
        else:
            self._cache.release(request.tables)
            request.tables = []

    def _scan_again(self, request: HostRequest) -> None:
        # Overlap: the batch launched before the stop was known still holds it (§6).
        if not request.tables and self._options.layout == "v1":
            _log.debug("request %d ended and its pages are gone: skipped", request.request_id)
        elif self._port.request_finished(request):
            _log.warning(
                "request %d answered True a second time: its pages leak", request.request_id
            )
            self._cache.hold(request.tables)
            self._ledger.start_save(request.request_id, request.tables)
