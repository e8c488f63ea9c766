"""Draft tokens with a pool of their own (host contract §3, §11: one-model drafts on V1).

Drafts are what the model itself would generate, up to a place that the request and its length
decide, and wrong from there: so each number of accepted drafts comes up, and is known before.
They are verified and proposed on M behind the samples, so that the next forward may be launched
before the executor knows of either (overlap). The draft pool is no connector's: nothing is ever
loaded into it, each token of a prompt is computed for it, matched and loaded ones too. Whoever
wrote into it, or into the target's pages, would change how many drafts are accepted, and the host
dies of that.

Must not know: the connector, batches. Pages are handed out on the executor's thread, all else runs
on M's.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from adapter.conformance.host.errors import HostError
from adapter.conformance.host.forward import ForwardEntry, ForwardModel, TokenCell, TokenLane
from adapter.conformance.host.memory import v1_memory
from adapter.conformance.host.requests import HostRequest, Phase

_POISON_BYTE: Final = 0xFF


@dataclass
class Sample:
    """A token on its way; with drafts also what would follow each of them.

    Attributes:
        entries: What is sampled: the last token's entry, then one per draft.
        cells: Where the samples will be.
        attempt: The request's allocation it belongs to; another one's does not count.
        drafts: The drafts that were verified, once they are.
        num_right: How many of them the model was to confirm.
    """

    request: HostRequest
    entries: tuple[ForwardEntry, ...]
    cells: tuple[TokenCell, ...]
    attempt: int = 0
    drafts: Sequence[int] = ()
    num_right: int = 0


@dataclass
class _Drafted:
    """One request's part of the draft pool."""

    lane: TokenLane
    memo: Any
    pages: list[int] = field(default_factory=list)
    cursor: int = 0


class Drafter:
    """Proposes tokens for requests that generate.

    Args:
        model: What the target runs; a copy of it works on the draft pool.
        num_pages: Pages of the draft pool.
        tokens_per_block: Tokens a page holds.
        num_drafts: Tokens proposed at most.
    """

    def __init__(
        self, model: ForwardModel, num_pages: int, tokens_per_block: int, num_drafts: int
    ) -> None:
        self.num_proposed = 0
        self.memory = v1_memory(model, num_pages, private=True)
        self.memory.groups[0].fill(range(num_pages), _POISON_BYTE)
        self._model = copy.copy(model)  # shares the weights
        self._model.bind_layers(self.memory.layers)
        self._size = tokens_per_block
        self._num_drafts = num_drafts
        self._free = list(range(num_pages))
        self._drafted: dict[int, _Drafted] = {}

    def lane(self, request: HostRequest) -> TokenLane:
        """Where a request's tokens and drafts are found on the device."""
        return self._of(request).lane

    def forget_others(self, request_ids: Collection[int]) -> None:
        """Take back the pages of requests that are gone: later work on M overwrites them.

        Args:
            request_ids: Those that are not gone.
        """
        for request_id in self._drafted.keys() - set(request_ids):
            self._free += self._drafted.pop(request_id).pages

    def behind(self, samples: Sequence[Sample]) -> Callable[[], None]:
        """Decide how many drafts follow each sample (``request.num_drafts``), and take pages.

        Args:
            samples: Of one forward; they were counted as issued.

        Returns:
            Work for M, behind the samples: verifies the drafts that were fed, proposes others.
        """
        turns: list[tuple[Sample, _Drafted, tuple[int, ...], int]] = []
        for sample in samples:
            if sample.request.phase is Phase.GENERATION:  # else it ended meanwhile
                drafted = self._of(sample.request)
                count = sample.request.num_drafts = self._count(sample.request, drafted)
                turns.append((sample, drafted, tuple(drafted.pages), count))
        return lambda: self._work(turns)

    def _of(self, request: HostRequest) -> _Drafted:
        drafted = self._drafted.get(request.request_id)
        if drafted is None:
            lane = TokenLane(list(request.tokens))
            drafted = self._drafted[request.request_id] = _Drafted(lane, self._model.new_memo(()))
        return drafted

    def _count(self, request: HostRequest, drafted: _Drafted) -> int:
        count = min(self._num_drafts, request.params.max_new_tokens - request.num_issued - 1)
        if count < 1:
            return 0
        missing = -(-(request.num_computable + 1 + count) // self._size) - len(drafted.pages)
        if missing > len(self._free):
            return 0
        for _ in range(missing):
            drafted.pages.append(self._free.pop())
        return count

    def _work(self, turns: Sequence[tuple[Sample, _Drafted, tuple[int, ...], int]]) -> None:
        for sample, drafted, pages, count in turns:
            _verify(sample, drafted.lane)
            self._propose(sample.request.request_id, drafted, pages, count)

    def _propose(
        self, request_id: int, drafted: _Drafted, pages: tuple[int, ...], count: int
    ) -> None:
        lane = drafted.lane
        lane.num_right = _choice(request_id, len(lane.tokens)) % (count + 1)
        lane.drafts = []
        if not count:
            return
        # Of drafts that were right, but not fed, the last token is computed once more.
        drafted.cursor = min(drafted.cursor, len(lane.tokens) - 1)
        token = self._next(drafted, pages, lane.tokens[drafted.cursor :])
        while len(lane.drafts) < lane.num_right:
            lane.drafts.append(token)
            if len(lane.drafts) < count:
                token = self._next(drafted, pages, [token])
        wrong = token - 1 if token else token + 1
        lane.drafts += [wrong] * (count - lane.num_right)
        self.num_proposed += count

    def _next(self, drafted: _Drafted, pages: tuple[int, ...], tokens: Sequence[int]) -> int:
        entry = ForwardEntry(
            start=drafted.cursor,
            num_tokens=len(tokens),
            tokens=tokens,
            tables=(pages,),
            wants_sample=True,
            first=False,
            memo=drafted.memo,
        )
        self._model.begin([entry])
        for layer in range(self._model.num_layers):
            self._model.layer(layer, [entry])
        self._model.end([entry])
        drafted.cursor += len(tokens)
        return self._model.sample(entry)[0]


def accepted(sample: Sample) -> int:
    """How many drafts the target's samples confirm.

    Args:
        sample: Waited for.

    Returns:
        The number accepted; 0 without drafts.

    Raises:
        HostError: If it is another than the drafts were made for: KV of the target or of the
            draft pool is not what the model computed.
    """
    count = _num_confirmed(sample.drafts, sample.cells)
    if count != sample.num_right:
        raise HostError(
            f"request {sample.request.request_id}: {count} drafts accepted, {sample.num_right} "
            "were right: a pool was written by somebody else"
        )
    return count


def _verify(sample: Sample, lane: TokenLane) -> None:
    # The forward may have been given fewer than were proposed.
    sample.drafts = lane.drafts[: len(sample.cells) - 1]
    sample.num_right = min(lane.num_right, len(sample.drafts))
    count = _num_confirmed(sample.drafts, sample.cells)
    lane.tokens += [cell.get() for cell in sample.cells[: count + 1]]


def _num_confirmed(drafts: Sequence[int], cells: Sequence[TokenCell]) -> int:
    count = 0
    while count < len(drafts) and drafts[count] == cells[count].get():
        count += 1
    return count


def _choice(request_id: int, num_tokens: int) -> int:
    place = f"{request_id} {num_tokens}".encode()
    return hashlib.blake2b(place, digest_size=1).digest()[0]
