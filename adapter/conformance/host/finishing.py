"""How requests end: samples, stop tokens, cancellation, page release.

Steps 13 and 14 of host contract §5 and the ends of §6: a finished request's pages
go at once unless the connector answers True, a request stopped early under
overlap is scanned again an iteration later, a cancelled one loses its pages
without a callback (E1: with one).

Must not know: scheduling, streams beyond waiting for an event. Executor thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from adapter.conformance.host.allocator import BlockAllocator
from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.errors import RequestCancelledError
from adapter.conformance.host.forward import ForwardEntry, TokenCell
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.reports import DeltaReporter
from adapter.conformance.host.requests import HostRequest, HostResult, Phase
from adapter.conformance.host.scheduling import BatchScheduler
from adapter.conformance.host.streams import HostEvent
from adapter.conformance.host.transfers import TransferLedger

_log = logging.getLogger(__name__)


@dataclass
class InFlight:
    """A launched forward whose samples the host has not waited for.

    Attributes:
        samples: Request, its entry and the cell of its token, per sampled request.
        sampled: The event behind the samples, once queued.
    """

    samples: list[tuple[HostRequest, ForwardEntry, TokenCell]] = field(default_factory=list)
    sampled: HostEvent | None = None


class Finisher:
    """Ends requests and gives their pages back.

    Args:
        scheduler: Loses the requests that end.
        allocator: Gets their pages.
        port: The connector.
        reporter: Forgets them.
        ledger: Keeps pages that are still being saved.
        options: Version switches.
    """

    def __init__(
        self,
        scheduler: BatchScheduler,
        allocator: BlockAllocator,
        port: ConnectorPort,
        reporter: DeltaReporter,
        ledger: TransferLedger,
        options: HostOptions,
    ) -> None:
        self.num_finished = 0
        self._scheduler = scheduler
        self._allocator = allocator
        self._port = port
        self._reporter = reporter
        self._ledger = ledger
        self._options = options

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
        for request, _, cell in in_flight.samples:
            if request.phase is Phase.ENDED:
                self._scan_again(request)
                continue
            request.tokens.append(cell.get())
            if self._options.capture_logits and cell.logits is not None:
                request.logits.append(cell.logits)
            if request.tokens[-1] in request.params.stop_ids:
                self._finish(request, "stop")
            elif len(request.generated) >= request.params.max_new_tokens:
                self._finish(request, "length")

    def cancel(self, request_ids: Iterable[int], reason: str) -> None:
        """End requests early; pages go without a callback (late E2, E3; §6).

        Args:
            request_ids: Unknown and ended ids are ignored.
            reason: Shown to whoever waits for the result.
        """
        for request_id in request_ids:
            request = self._scheduler.active.get(request_id)
            if request is None:
                request = next(
                    (r for r in self._scheduler.waiting if r.request_id == request_id), None
                )
                if request is None:
                    continue
                self._scheduler.waiting.remove(request)
            keep = False
            if self._options.epoch == "E1" and request.blocks:
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

    def poll_transfers(self) -> None:
        """Announce new transfers and take those that ended (step 14).

        Raises:
            KeyError: If the connector reports an id that is not pending.
        """
        saved, loaded = self._port.get_finished(*self._ledger.announce())
        for request_id in loaded:
            self._ledger.finish_load(request_id)
            request = self._scheduler.active.get(request_id)
            if request is not None and request.phase is Phase.LOADING:
                request.phase = Phase.CONTEXT
        for request_id in saved:
            self._allocator.release(self._ledger.finish_save(request_id))

    def _finish(self, request: HostRequest, reason: str) -> None:
        keep = self._port.request_finished(request)
        # The last token was never fed, so its KV does not exist.
        valid = request.tokens[:-1]
        self._allocator.store(request.params.reuse_scope(), valid, request.blocks)
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
            self._ledger.start_save(request.request_id, request.blocks)
        else:
            self._allocator.release(request.blocks)
            request.blocks = []

    def _scan_again(self, request: HostRequest) -> None:
        # Overlap: the batch launched before the stop was known still holds it (§6).
        if not request.blocks:
            _log.debug("request %d ended and its pages are gone: skipped", request.request_id)
        elif self._port.request_finished(request):
            _log.warning(
                "request %d answered True a second time: its pages leak", request.request_id
            )
            self._allocator.hold(request.blocks)
            self._ledger.start_save(request.request_id, request.blocks)
