"""Draft tokens with a pool of their own (host contract §3, §11: one-model drafts on V1).

Drafts are what the model itself would generate, up to a place that the request and its length
decide, and wrong from there: so each number of accepted drafts comes up, and is known before.
The draft pool is no connector's: nothing is ever loaded into it, each token of a prompt is
computed for it, matched and loaded ones too. Whoever wrote into it, or into the target's pages,
would change how many drafts are accepted, and the host dies of that.

Must not know: the connector, batches. Executor thread, while no forward runs.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from adapter.conformance.host.errors import HostError
from adapter.conformance.host.forward import ForwardEntry, ForwardModel
from adapter.conformance.host.memory import v1_memory
from adapter.conformance.host.requests import HostRequest, Phase

_POISON_BYTE: Final = 0xFF


@dataclass
class _Drafted:
    """One request's part of the draft pool."""

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

    def refresh(self, requests: Iterable[HostRequest]) -> None:
        """Propose for each request that generates, and forget those that are gone.

        Args:
            requests: All active ones; their samples are known.
        """
        active = {request.request_id: request for request in requests}
        for request_id in self._drafted.keys() - active.keys():
            self._free += self._drafted.pop(request_id).pages
        for request in active.values():
            if request.phase is Phase.GENERATION and not request.drafts:
                self._propose(request)

    def _propose(self, request: HostRequest) -> None:
        left = request.params.max_new_tokens - len(request.generated)
        count = min(self._num_drafts, left - 1)
        if count < 1:
            return
        drafted = self._drafted.get(request.request_id)
        if drafted is None:
            drafted = self._drafted[request.request_id] = _Drafted(self._model.new_memo(()))
        missing = -(-(len(request.tokens) + count) // self._size) - len(drafted.pages)
        if missing > len(self._free):
            return
        for _ in range(missing):
            drafted.pages.append(self._free.pop())
        right = _choice(request) % (count + 1)
        request.drafts = self._drafts(request.tokens, drafted, right, count)
        request.num_right_drafts = right
        self.num_proposed += count

    def _drafts(self, known: Sequence[int], drafted: _Drafted, right: int, count: int) -> list[int]:
        token = self._next(drafted, known[drafted.cursor :])
        drafts: list[int] = []
        while len(drafts) < right:
            drafts.append(token)
            if len(drafts) < count:
                token = self._next(drafted, [token])
        if right < count:
            wrong = token - 1 if token else token + 1
            drafts += [wrong] * (count - right)
        return drafts

    def _next(self, drafted: _Drafted, tokens: Sequence[int]) -> int:
        entry = ForwardEntry(
            start=drafted.cursor,
            num_tokens=len(tokens),
            tokens=tokens,
            tables=(tuple(drafted.pages),),
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


def accepted(request: HostRequest, sampled: Sequence[int]) -> int:
    """How many of a request's drafts the target's samples confirm.

    Args:
        request: Its drafts were computed along with its last token.
        sampled: The sample after its last token, and after each draft.

    Returns:
        The number accepted.

    Raises:
        HostError: If it is another than the drafts were made for: KV of the target or of the
            draft pool is not what the model computed.
    """
    count = 0
    while count < len(request.drafts) and request.drafts[count] == sampled[count]:
        count += 1
    if count != request.num_right_drafts:
        raise HostError(
            f"request {request.request_id}: {count} drafts accepted, {request.num_right_drafts} "
            "were right: a pool was written by somebody else"
        )
    return count


def _choice(request: HostRequest) -> int:
    place = f"{request.request_id} {len(request.tokens)}".encode()
    return hashlib.blake2b(place, digest_size=1).digest()[0]
