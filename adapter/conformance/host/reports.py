"""Delta bookkeeping: what of each request goes into ``SchedulerOutput``.

A request is reported once in ``new_requests`` with its whole prompt and all its
pages, later in ``cached_requests`` with what was added since (host contract §3).

Must not know: the allocator, streams, the connector. Executor thread only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from adapter.conformance.host.requests import HostRequest
from adapter.trtllm_api import RequestData, RequestDataE1, SchedulerOutput

Epoch = Literal["E1", "E2", "E3", "E4"]


@dataclass(frozen=True)
class Scheduled:
    """One request's place in a batch.

    Attributes:
        start: Position of the first token computed.
        num_tokens: Tokens computed.
        reported_tokens: Tokens computed as reported to the connector.
        computed_position: As reported to the connector.
        is_context: Whether prompt tokens are computed.
        first_forward: Whether no forward of the request was launched before.
    """

    request: HostRequest
    start: int
    num_tokens: int
    reported_tokens: int
    computed_position: int
    is_context: bool
    first_forward: bool


@dataclass
class Batch:
    """What one iteration does.

    Attributes:
        contexts: Requests computing prompt tokens, in schedule order.
        generations: Requests computing one generated token each.
        loading: Requests that start an asynchronous load instead.
        new_pages: Pages handed out in this iteration, per layer group.
        has_load: Whether the connector was granted tokens in this iteration.
    """

    contexts: list[Scheduled] = field(default_factory=list)
    generations: list[Scheduled] = field(default_factory=list)
    loading: list[HostRequest] = field(default_factory=list)
    new_pages: list[list[int]] = field(default_factory=lambda: [[]])
    has_load: bool = False

    @property
    def entries(self) -> list[Scheduled]:
        """Everything to be computed, contexts first (host contract §5, step 6)."""
        return self.contexts + self.generations

    def __bool__(self) -> bool:
        return bool(self.contexts or self.generations or self.loading)


class DeltaReporter:
    """Remembers what was reported per request and reports the rest.

    Args:
        epoch: Interface epoch; E1 reports five fields only.
    """

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._reported: dict[int, tuple[int, int]] = {}

    def report(self, batch: Batch) -> Any:
        """Build the output of one iteration.

        Args:
            batch: The batch; requests starting an asynchronous load are left out.

        Returns:
            A ``SchedulerOutput``.
        """
        new: list[Any] = []
        cached: list[Any] = []
        for scheduled in batch.entries:
            first = scheduled.request.request_id not in self._reported
            (new if first else cached).append(self._delta(scheduled))
        return SchedulerOutput(new_requests=new, cached_requests=cached)

    def forget(self, request_id: int) -> None:
        """Drop the memory of a request that ended."""
        self._reported.pop(request_id, None)

    def _delta(self, scheduled: Scheduled) -> Any:
        request = scheduled.request
        num_tokens, num_blocks = self._reported.get(request.request_id, (0, 0))
        self._reported[request.request_id] = (len(request.tokens), len(request.blocks))
        fields: dict[str, Any] = {
            "request_id": request.request_id,
            "new_tokens": request.tokens[num_tokens:],
            "new_block_ids": request.blocks[num_blocks:],
            "computed_position": scheduled.computed_position,
            "num_scheduled_tokens": scheduled.reported_tokens,
        }
        if self._epoch == "E1":
            return RequestDataE1(**fields)
        if "cache_salt" in RequestData.__dataclass_fields__:
            fields["cache_salt"] = request.params.cache_salt
        return RequestData(**fields)
