"""Delta bookkeeping: what of each request goes into ``SchedulerOutput``.

A request is reported once in ``new_requests`` with its whole prompt and all its
pages, later in ``cached_requests`` with what was added since (host contract §3).
Each epoch has its own fields: E1 five, E2 no layer groups and, early, an integer salt. They
are the stand-ins' even where a host is installed, whose own reports are those of one epoch.

Must not know: the allocator, streams, the connector. Executor thread only.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from adapter.conformance.host.requests import HostRequest, salt_id
from adapter.trtllm_fallback import (
    FallbackRequestData,
    FallbackSchedulerOutput,
    RequestDataE1,
)

Epoch = Literal["E1", "E2", "E3", "E4"]


@dataclass
class RequestDataEarlyE2(RequestDataE1):
    """Early E2's report: an integer salt."""

    block_hashes: list[int] = field(default_factory=list)
    priorities: list[int] | None = None
    cache_salt_id: int | None = None


@dataclass
class RequestDataE2(RequestDataE1):
    """Late E2's report: a text salt, no layer groups."""

    block_hashes: list[int] = field(default_factory=list)
    priorities: list[int] | None = None
    cache_salt: str | None = None


@dataclass(frozen=True)
class Scheduled:
    """One request's place in a batch.

    Attributes:
        start: Position of the first token computed; with drafts the last one possible.
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
        loads_now: Whether any of them are to be there before the forward: only then may a
            hook take long.
        dummies: Page tables of dummy requests, one token each, hidden from the connector.
        preempted: Requests that lost their pages and will replay under the same id (V2).
        deferred: Those of them whose pages are still to be saved, and the pages.
    """

    contexts: list[Scheduled] = field(default_factory=list)
    generations: list[Scheduled] = field(default_factory=list)
    loading: list[HostRequest] = field(default_factory=list)
    new_pages: list[list[int]] = field(default_factory=lambda: [[]])
    has_load: bool = False
    loads_now: bool = False
    dummies: list[Sequence[Sequence[int]]] = field(default_factory=list)
    preempted: list[HostRequest] = field(default_factory=list)
    deferred: list[tuple[HostRequest, list[list[int]]]] = field(default_factory=list)

    @property
    def can_forward(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self.contexts or self.generations or self.dummies)

    @property
    def entries(self) -> list[Scheduled]:
        """Everything to be computed, contexts first (host contract §5, step 6)."""
        return self.contexts + self.generations

    def __bool__(self) -> bool:
        return bool(self.can_forward or self.loading)


class Planner(Protocol):
    """Plans batches of the requests it holds.

    Attributes:
        active: Admitted requests that have not ended, by id.
        waiting: Requests not admitted yet, the next one first.
    """

    active: dict[int, HostRequest]
    waiting: deque[HostRequest]

    def plan(self) -> Batch:
        """Schedule one iteration, allocate, query, and report pages."""

    def give_back(self, request: HostRequest) -> None:
        """A waiting request is cancelled: what is held for it is not used."""


@dataclass
class _Reported:
    """What a connector was told of a request."""

    num_tokens: int = 0
    num_blocks: int = 0
    num_hashed: int = 0
    last_hash: bytes = b""


class DeltaReporter:
    """Remembers what was reported per request and reports the rest.

    Args:
        epoch: Interface epoch.
        is_v2: Whether pages are reported per layer group.
        tokens_per_block: For the host's own block hashes (V1); 0 reports none.
        salt_as_id: Whether this is early E2.
        adp_rank: Whose page ids these are, under attention DP.
    """

    def __init__(
        self,
        epoch: Epoch,
        *,
        is_v2: bool = False,
        tokens_per_block: int = 0,
        salt_as_id: bool = False,
        adp_rank: int | None = None,
    ) -> None:
        self._epoch = epoch
        self._is_v2 = is_v2
        self._size = tokens_per_block
        self._salt_as_id = salt_as_id
        self._adp_rank = adp_rank
        self._reported: dict[int, _Reported] = {}

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
        output = FallbackSchedulerOutput(new_requests=new, cached_requests=cached)
        if self._epoch in ("E3", "E4"):
            output.attention_dp_rank = self._adp_rank
        return output

    def forget(self, request_id: int) -> None:
        """Drop the memory of a request that ended, or lost its pages."""
        self._reported.pop(request_id, None)

    def _delta(self, scheduled: Scheduled) -> Any:
        request = scheduled.request
        told = self._reported.setdefault(request.request_id, _Reported())
        tables = [table[told.num_blocks :] for table in request.tables]
        fields: dict[str, Any] = {
            "request_id": request.request_id,
            "new_tokens": request.tokens[told.num_tokens :],
            "new_block_ids": tables[0] if len(tables) == 1 else [],
            "computed_position": scheduled.computed_position,
            "num_scheduled_tokens": scheduled.reported_tokens,
        }
        told.num_tokens = len(request.tokens)
        # Pages that rejected drafts gave back are not taken back, nor reported when they return.
        told.num_blocks = max(told.num_blocks, len(request.blocks))
        if self._epoch == "E1":
            return RequestDataE1(**fields)
        salt, priority = request.params.cache_salt, request.params.retention_priority
        if not self._is_v2:
            fields["block_hashes"] = self._hashes(request, told)
            if priority is not None:
                fields["priorities"] = [priority] * len(fields["new_block_ids"])
        if self._epoch == "E2" and self._salt_as_id:
            return RequestDataEarlyE2(**fields, cache_salt_id=salt_id(salt))
        if self._epoch == "E2":
            return RequestDataE2(**fields, cache_salt=salt)
        if self._is_v2:
            fields["new_block_ids_by_layer_group"] = tables
        return FallbackRequestData(**fields, cache_salt=salt)

    def _hashes(self, request: HostRequest, told: _Reported) -> list[int]:
        # Of the blocks that filled up since the last report, each over all before it.
        hashes: list[int] = []
        while self._size and (told.num_hashed + 1) * self._size <= len(request.tokens):
            begin = told.num_hashed * self._size
            tokens = array("i", request.tokens[begin : begin + self._size]).tobytes()
            told.last_hash = hashlib.blake2b(told.last_hash + tokens, digest_size=8).digest()
            told.num_hashed += 1
            hashes.append(int.from_bytes(told.last_hash, "little"))
        return hashes
