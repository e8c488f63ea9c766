"""From a batch to a forward in flight, and what its launch makes true.

Steps 11 and 12 of host contract §5, and the bookkeeping the host does while the
forward still runs: cursors move, prompts become matchable, samples get a place to
go to. All of it is safe because later forwards queue behind this one on X.

Must not know: scheduling, how requests end. Executor thread only.
"""

from __future__ import annotations

from collections.abc import Sequence

from adapter.conformance.host.cache import CacheManager
from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.device import Device
from adapter.conformance.host.drafts import Drafter, Sample
from adapter.conformance.host.finishing import InFlight
from adapter.conformance.host.forward import ForwardEntry, TokenCell
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.reports import Batch, Scheduled
from adapter.conformance.host.requests import HostRequest, Phase


class Launcher:
    """Launches forwards and queues their samples.

    Args:
        device: Streams and pool.
        cache: Learns which prompts are computed.
        port: The connector's layer hooks, callable and ``wait_for_save``.
        options: Version switches.
        drafter: Proposes tokens behind each sample; None without drafts.

    Attributes:
        num_forwards: Forwards launched.
        num_computed_tokens: Tokens run through them.
    """

    def __init__(
        self,
        device: Device,
        cache: CacheManager,
        port: ConnectorPort,
        options: HostOptions,
        drafter: Drafter | None = None,
    ) -> None:
        self.num_forwards = 0
        self.num_computed_tokens = 0
        self._device = device
        self._cache = cache
        self._port = port
        self._options = options
        self._drafter = drafter

    def launch(self, batch: Batch) -> InFlight:
        """Queue a batch's forward and let the connector save behind it.

        Args:
            batch: At least one entry.

        Returns:
            The forward in flight; no sample is queued yet.

        Raises:
            Exception: Whatever a layer hook, the callable or ``wait_for_save``
                raises; the batch's requests have not moved then.
        """
        parts = [self._entries(scheduled) for scheduled in batch.entries]
        entries = [entry for part in parts for entry in part]
        dummies = [self._device.dummy(tables) for tables in batch.dummies]
        graph = self._options.cuda_graphs and all(entry.num_tokens == 1 for entry in entries)
        self._device.launch(
            [*entries, *dummies], self._port, layer_hooks=not graph, has_load=batch.loads_now
        )
        self._port.wait_for_save(self._device.main)
        self.num_forwards += 1
        return self._advance(batch.entries, parts)

    def sample(self, in_flight: InFlight | None) -> None:
        """Queue the samples of a forward on M; None is no forward."""
        if in_flight is not None:
            entries = [entry for sample in in_flight.samples for entry in sample.entries]
            cells = [cell for sample in in_flight.samples for cell in sample.cells]
            behind = None if self._drafter is None else self._drafter.behind(in_flight.samples)
            in_flight.sampled = self._device.sample(entries, cells, behind)

    def _entries(self, scheduled: Scheduled) -> list[ForwardEntry]:
        request, start = scheduled.request, scheduled.start
        if scheduled.is_context:
            end = start + scheduled.num_tokens
            tokens = request.tokens[start:end]
            first = scheduled.first_forward
            return [_entry(request, start, tokens, end >= request.context_len, first)]
        if self._drafter is None:
            return [_entry(request, start, request.last_cell or (), True, False)]
        # A draft reads the KV of what stands before it: entries of one forward run in order.
        lane, count = self._drafter.lane(request), scheduled.num_tokens
        fed = [_entry(request, start + i, (0,), True, False) for i in range(count)]
        for place, entry in enumerate(fed):
            entry.lane, entry.place = lane, place
        return fed

    def _advance(self, scheduled: list[Scheduled], parts: list[list[ForwardEntry]]) -> InFlight:
        in_flight = InFlight()
        for part, entries in zip(scheduled, parts, strict=True):
            request = part.request
            request.forwards_seen = True
            self.num_computed_tokens += part.num_tokens
            if part.is_context:
                request.cursor += part.num_tokens
                self._cache.store_computed(request)
            if not entries[-1].wants_sample:
                continue
            if part.is_context:
                request.phase = Phase.GENERATION
            request.num_issued += 1
            request.num_unverified += len(entries) - 1
            cells = tuple(TokenCell() for _ in entries)
            request.last_cell = cells[0]
            in_flight.samples.append(Sample(request, tuple(entries), cells, request.attempt))
        return in_flight


def _entry(
    request: HostRequest,
    start: int,
    tokens: Sequence[int] | TokenCell,
    wants_sample: bool,
    first: bool,
) -> ForwardEntry:
    return ForwardEntry(
        start=start,
        num_tokens=1 if isinstance(tokens, TokenCell) else len(tokens),
        tokens=tokens,
        tables=tuple(tuple(table) for table in request.tables),
        wants_sample=wants_sample,
        first=first,
        memo=request.memo,
    )
