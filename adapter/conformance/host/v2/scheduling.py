"""Which requests compute what in an iteration, for the V2 cache under MAX_UTILIZATION.

Pages are taken chunk by chunk, so they may run out: then the request begun last is destroyed and
waits to be replayed under its id, with what it had generated as part of its prompt. The connector
is asked on the final batch, and told of a request's pages right after its query (host contract
§5, steps 2 to 5 and "V2 rule"; §6, "preempted"), but in the aggressive mode: then it is asked while
the batch is made up (``budgeting``).

Must not know: streams, metadata, sampling. Executor thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.reports import Batch, Scheduled
from adapter.conformance.host.requests import HostRequest, Phase
from adapter.conformance.host.v2.budgeting import PrefixBudget
from adapter.conformance.host.v2.cache import V2Cache
from adapter.conformance.host.v2.honour import Window, chunk_end, honour

_ASKED_AHEAD: Final = 2
"""Requests that are asked about in a pass in which they are not begun (aggressive mode)."""


class V2Scheduler:
    """Holds waiting and active requests and plans batches.

    Args:
        cache: Pages.
        port: The connector.
        options: Version switches.
        max_num_tokens: Tokens one forward may compute; at least a block.
        max_batch_size: Requests one forward may hold.
        new_memo: Begins the model's memory of a request that is replayed.
        is_chunked: Whether a prompt may be computed in parts; else it waits until it fits.

    Attributes:
        active: Admitted requests that have not ended, by id, the one begun last at the end.
        waiting: Requests not admitted yet, oldest first; replayed ones before all.
        num_resets: How often a request lost its pages.
        prefixes: Offers not settled yet, in the aggressive mode.
    """

    def __init__(
        self,
        cache: V2Cache,
        port: ConnectorPort,
        options: HostOptions,
        *,
        max_num_tokens: int,
        max_batch_size: int,
        new_memo: Callable[[Sequence[int]], Any],
        is_chunked: bool = True,
    ) -> None:
        self.active: dict[int, HostRequest] = {}
        self.waiting: deque[HostRequest] = deque()
        self.num_resets = 0
        self._cache = cache
        self._port = port
        self._options = options
        self._max_num_tokens = max_num_tokens
        self._max_batch_size = max_batch_size
        self._new_memo = new_memo
        self._is_chunked = is_chunked
        self._deferred: list[HostRequest] = []
        self._size = cache.tokens_per_block
        self.prefixes = PrefixBudget(port, self._size) if options.aggressive else None

    def plan(self) -> Batch:
        """Schedule one iteration, allocate, query, and report pages.

        Returns:
            The batch; empty if nothing can run now.
        """
        batch = Batch()
        budget = self._plan_generations(batch)
        budget = self._plan_running_contexts(batch, budget)
        if self.prefixes is not None:
            self._admit_with_offers(batch, budget, self.prefixes)
        else:
            for request, end in self._admit(batch, budget):
                self._settle(batch, request, end)
        batch.new_pages = self._cache.handed_out()
        for scheduled in batch.entries:
            scheduled.request.honoured = 0
        return batch

    def _plan_generations(self, batch: Batch) -> int:
        budget = self._max_num_tokens
        for request in list(self.active.values()):
            if request.phase is not Phase.GENERATION or self._is_full(batch) or budget < 1:
                continue
            if request.num_issued >= request.params.max_new_tokens:
                continue  # its last sample is under way
            position = request.prompt_len + request.num_issued - 1
            if not self._make_room(batch, request, position, position + 1):
                continue
            known = len(request.tokens) - 1
            batch.generations.append(
                Scheduled(request, position, 1, 1, known, is_context=False, first_forward=False)
            )
            budget -= 1
        return budget

    def _plan_running_contexts(self, batch: Batch, budget: int) -> int:
        for request in list(self.active.values()):
            if request.phase is not Phase.CONTEXT or self._is_full(batch):
                continue
            end = chunk_end(request.cursor, budget, request.context_len, self._size)
            if not self._may_end(request, request.cursor, end):
                continue
            if self._make_room(batch, request, request.cursor, end):
                self._add_context(batch, request, end)
                budget -= end - request.cursor
        return budget

    def _admit(self, batch: Batch, budget: int) -> list[tuple[HostRequest, int]]:
        """Begin waiting requests; returns them with the ends of their sized chunks."""
        begun: list[tuple[HostRequest, int]] = []
        while self.waiting and not self._is_full(batch, len(begun)):
            request = self.waiting[0]
            if request in batch.preempted:
                break  # the connector does not know yet
            matched = self._cache.begin(request)
            end = chunk_end(matched, budget, request.context_len, self._size)
            fits = self._may_end(request, matched, end)
            if not fits or not self._cache.grow(request, matched, end):
                self._cache.release(request.tables)
                request.tables = []
                break
            self.waiting.popleft()
            self.active[request.request_id] = request
            request.cursor = matched
            request.phase = Phase.CONTEXT
            begun.append((request, end))
            budget -= end - matched
        return begun

    def _admit_with_offers(self, batch: Batch, budget: int, prefixes: PrefixBudget) -> None:
        """The same in the aggressive mode: what is offered costs no budget."""
        num_ahead = _ASKED_AHEAD
        for request in list(self.waiting):
            if request in batch.preempted or self._is_full(batch) or not num_ahead:
                return
            matched = self._cache.begin(request)
            held = prefixes.look(request, matched)
            window = None
            if request is self.waiting[0]:
                window = self._fitting(request, held.end, budget)
                shorter = prefixes.shorter_end(held)
                if window is None and shorter is not None:
                    window = self._fitting(request, shorter, budget)
            if window is None:
                self._cache.release(request.tables)
                request.tables = []
                num_ahead -= 1
                continue
            self.waiting.popleft()
            self.active[request.request_id] = request
            request.cursor, request.phase = matched, Phase.CONTEXT
            held = prefixes.settle(request)
            self._take_up(batch, request, window, held.end - matched, held.is_async)
            budget -= window.end - window.start

    def _fitting(self, request: HostRequest, start: int, budget: int) -> Window | None:
        end = chunk_end(start, budget, request.context_len, self._size)
        fits = self._may_end(request, start, end) and self._cache.grow(request, start, end)
        return Window(start, end) if fits else None

    def give_back(self, request: HostRequest) -> None:
        """A waiting request is cancelled: what is held for it is not used."""
        if self.prefixes is not None:
            self.prefixes.give_back(request)

    def _may_end(self, request: HostRequest, start: int, end: int) -> bool:
        """Whether a forward may compute these tokens of a prompt."""
        return end > start and (self._is_chunked or end == request.context_len)

    def _settle(self, batch: Batch, request: HostRequest, sized_end: int) -> None:
        """Ask for an offer, take up what fits, and tell of the pages."""
        matched = request.cursor
        offered, is_async = 0, False
        if not request.params.generation_only:
            offered, is_async = self._port.query(request, matched)
        # After an async load the third epoch computes the loaded range again: windows too.
        recomputes = is_async and self._options.epoch != "E4"
        window = honour(
            matched,
            offered,
            sized_end,
            request.context_len,
            self._size,
            lambda start, end: self._cache.grow(request, matched if recomputes else start, end),
        )
        self._take_up(batch, request, window, offered, is_async)

    def _take_up(
        self, batch: Batch, request: HostRequest, window: Window, offered: int, is_async: bool
    ) -> None:
        """A request has its pages: tell, give back the rest of the offer, and compute or load."""
        matched = request.cursor
        recomputes = is_async and self._options.epoch != "E4"
        if not recomputes:
            # What is loaded fills only the pages that a window reaches from the start on.
            self._cache.slide(request, window.start)
        honoured = window.start - matched
        request.matched_by_connector = honoured
        self._port.after_alloc(request)
        if honoured < offered:
            self._port.cancel_load(request, window.start, matched + offered)
        batch.has_load = batch.has_load or honoured > 0
        batch.loads_now = batch.loads_now or (honoured > 0 and not is_async)
        if not request.attempt:
            request.num_device_tokens, request.num_loaded_tokens = matched, honoured
        if is_async:
            request.cursor = matched if recomputes else window.start
            request.phase = Phase.LOADING
            batch.loading.append(request)
            return
        request.cursor, request.honoured = window.start, honoured
        self._add_context(batch, request, window.end)

    def _add_context(self, batch: Batch, request: HostRequest, end: int) -> None:
        num_tokens = end - request.cursor
        batch.contexts.append(
            Scheduled(
                request,
                request.cursor,
                num_tokens,
                num_tokens,
                request.cursor - request.honoured,
                is_context=True,
                first_forward=not request.forwards_seen,
            )
        )

    def _make_room(self, batch: Batch, request: HostRequest, position: int, end: int) -> bool:
        """Get a running request its pages, at the cost of requests begun after it."""
        self._cache.slide(request, position)
        placed = {scheduled.request.request_id for scheduled in batch.entries}
        while request.phase is not Phase.WAITING:
            if self._cache.grow(request, position, end):
                return True
            if self._pages_come():
                return False
            victims = [
                other
                for other in self.active.values()
                if other.request_id not in placed and other.phase is not Phase.LOADING
            ]
            self._reset(batch, victims[-1])
        return False

    def _pages_come(self) -> bool:
        """Whether pages of a preempted request are still being saved: wait, preempt no other."""
        self._deferred = [
            request
            for request in self._deferred
            if request.phase is Phase.WAITING and request not in self.waiting
        ]
        return bool(self._deferred)

    def _reset(self, batch: Batch, request: HostRequest) -> None:
        del self.active[request.request_id]
        if self._options.direct_preemption and self._port.request_finished(request):
            batch.deferred.append((request, request.tables))
            self._deferred.append(request)
        else:
            self._cache.release(request.tables)
            self.waiting.appendleft(request)
        # A sample on its way is not waited for: the replay draws it again.
        request.tables = []
        request.attempt += 1
        request.phase = Phase.WAITING
        request.context_len = len(request.tokens)
        request.cursor = request.honoured = 0
        request.matched_by_connector = None
        request.num_issued = len(request.generated)
        request.last_cell = None
        request.forwards_seen = False
        request.memo = self._new_memo(request.tokens)
        self.num_resets += 1
        batch.preempted.append(request)

    def _is_full(self, batch: Batch, begun: int = 0) -> bool:
        return len(batch.contexts) + len(batch.generations) + begun >= self._max_batch_size
