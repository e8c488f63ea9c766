"""Which requests compute what in an iteration, and with which pages.

Steps 2 to 5 of host contract §5 for the V1 cache under GUARANTEED_NO_EVICT: a
request is admitted only if its pages to completion are there, prompts are cut to
the token budget at block boundaries, the device match comes first, then the
connector's offer. E1 reports pages right after each query, later epochs after
all allocations.

Must not know: streams, metadata, sampling. Executor thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from adapter.conformance.host.allocator import BlockAllocator
from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.reports import Batch, Scheduled
from adapter.conformance.host.requests import HostRequest, Phase


class BatchScheduler:
    """Holds waiting and active requests and plans batches.

    Args:
        allocator: Pages.
        port: The connector.
        options: Version switches.
        max_num_tokens: Tokens one forward may compute; at least a block.
        max_batch_size: Requests one forward may hold.
        reuse: Whether the host's own block reuse is on (host contract §2).
        copy_page: Starts a partial-reuse copy ``(source, target)``.

    Attributes:
        active: Admitted requests that have not ended, by id.
        waiting: Requests not admitted yet, oldest first.
    """

    def __init__(
        self,
        allocator: BlockAllocator,
        port: ConnectorPort,
        options: HostOptions,
        *,
        max_num_tokens: int,
        max_batch_size: int,
        reuse: bool,
        copy_page: Callable[[int, int], None],
    ) -> None:
        self.active: dict[int, HostRequest] = {}
        self.waiting: deque[HostRequest] = deque()
        self._allocator = allocator
        self._port = port
        self._options = options
        self._max_num_tokens = max_num_tokens
        self._max_batch_size = max_batch_size
        self._reuse = reuse
        self._copy_page = copy_page
        self._size = allocator.tokens_per_block
        self._headroom = options.headroom

    def plan(self) -> Batch:
        """Schedule one iteration, allocate, query, and report pages.

        Returns:
            The batch; empty if nothing can run now.
        """
        batch = Batch()
        budget = self._plan_generations(batch)
        budget = self._plan_running_contexts(batch, budget)
        self._plan_new_contexts(batch, budget)
        for scheduled in batch.entries:
            scheduled.request.honoured = 0
        return batch

    def give_back(self, request: HostRequest) -> None:
        """Nothing is held for a waiting request: it is asked about when it gets its pages."""

    def _plan_generations(self, batch: Batch) -> int:
        budget = self._max_num_tokens
        for request in self.active.values():
            if request.phase is not Phase.GENERATION or self._is_full(batch) or budget < 1:
                continue
            left = request.params.max_new_tokens - request.num_issued
            if left < (0 if self._options.one_call_more else 1):
                continue  # its last sample is under way
            position = request.num_computable
            num_tokens = 1 + max(0, min(request.num_drafts, left - 1))
            if num_tokens > budget:
                continue
            missing = (position + num_tokens - 1) // self._size + 1 - len(request.blocks)
            if missing > 0:
                added = self._allocator.take(missing)
                request.blocks += added
                batch.new_pages[0] += added
            known = len(request.tokens) - 1
            batch.generations.append(
                Scheduled(
                    request,
                    position,
                    num_tokens,
                    num_tokens,
                    known,
                    is_context=False,
                    first_forward=False,
                )
            )
            budget -= num_tokens
        return budget

    def _plan_running_contexts(self, batch: Batch, budget: int) -> int:
        for request in self.active.values():
            if request.phase is Phase.CONTEXT and not self._is_full(batch):
                budget -= self._add_context(batch, request, budget)
        return budget

    def _plan_new_contexts(self, batch: Batch, budget: int) -> None:
        allocated: list[HostRequest] = []
        while self.waiting and not self._is_full(batch):
            request = self.waiting[0]
            if budget < min(self._size, request.prompt_len) or not self._fits(request):
                break
            self.waiting.popleft()
            self.active[request.request_id] = request
            self._allocate(request, batch)
            if self._options.epoch == "E1":
                self._port.after_alloc(request)
            allocated.append(request)
            if request.phase is Phase.CONTEXT:
                budget -= self._add_context(batch, request, budget)
        if self._options.epoch != "E1":
            for request in allocated:
                self._port.after_alloc(request)

    def _allocate(self, request: HostRequest, batch: Batch) -> None:
        allocation = self._allocator.allocate(request.params.reuse_scope(), request.params.prompt)
        request.blocks = list(allocation.blocks)
        request.cursor = request.num_device_tokens = allocation.num_matched_tokens
        request.phase = Phase.CONTEXT
        to_poison = allocation.new_blocks
        if allocation.copy_from is not None:
            self._copy_page(allocation.copy_from, to_poison[0])
            to_poison = to_poison[1:]
        batch.new_pages[0] += to_poison
        if not self._reuse and self._options.epoch in ("E1", "E2"):
            return  # E1 and E2 never query with reuse off
        count, is_async = self._port.query(request, request.cursor)
        batch.has_load = batch.has_load or count > 0
        batch.loads_now = batch.loads_now or (count > 0 and not is_async)
        if self._reuse:
            request.cursor += count
            request.num_loaded_tokens = count
        if is_async:
            request.phase = Phase.LOADING
            batch.loading.append(request)
        else:
            request.honoured = count

    def _add_context(self, batch: Batch, request: HostRequest, budget: int) -> int:
        end = untrimmed = min(request.prompt_len, request.cursor + budget)
        if end < request.prompt_len:
            end -= end % self._size
        num_tokens = end - request.cursor
        if num_tokens <= 0:
            return 0
        batch.contexts.append(
            Scheduled(
                request,
                request.cursor,
                num_tokens,
                untrimmed - request.cursor if self._options.late_trim else num_tokens,
                request.cursor - request.honoured,
                is_context=True,
                first_forward=not request.forwards_seen,
            )
        )
        return num_tokens

    def _fits(self, request: HostRequest) -> bool:
        promised = sum(
            max(0, other.blocks_needed(self._size, self._headroom) - len(other.blocks))
            for other in self.active.values()
        )
        needed = request.blocks_needed(self._size, self._headroom)
        return self._allocator.num_available - promised >= needed

    def _is_full(self, batch: Batch) -> bool:
        return len(batch.contexts) + len(batch.generations) >= self._max_batch_size
