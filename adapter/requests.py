"""What is known of each request, from its first query to the end of its reports.

Purpose: answer the host's repeated, missing and late calls consistently, never offer more than
the host accepts, and give back every lease that is not used. Sans-IO: time is an argument, what
is to be given back is collected in ``Returns``. Must not know: sockets, pages' bytes, the host's
classes. Runs in: the executor's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adapter.identity import Geometry
from adapter.metadata import LoadOrder
from protocol.ids import ChunkKey, Epoch, LeaseId, RequestKey
from protocol.keys import BlockHashChain, MediaItem, ReuseScope, chunk_key_blob

EXPIRE_ITERATIONS: Final = 64
EXPIRE_S: Final = 60.0
"""A request that was not reported for both is forgotten: late hosts cancel without a callback.
Source: host contract rule 12."""


@dataclass(frozen=True)
class RequestFacts:
    """What the host's request object says.

    Attributes:
        request_id: the host's id; restarts with its process.
        tokens: all tokens known, the prompt first.
        scope: what it may share KV with; None bypasses the cache.
        media: items of the prompt, in order.
        why_bypassed: for the log, when ``scope`` is None.
    """

    request_id: int
    tokens: list[int]
    scope: ReuseScope | None
    media: tuple[MediaItem, ...] = ()
    why_bypassed: str = ""


@dataclass(frozen=True)
class Offer:
    """Chunks that were retrieved and whose tokens the engine was promised.

    Attributes:
        lease: holds the chunks for every reader.
        epoch: of the server that named the slots.
        first_chunk: ordinal of the first chunk in ``slots``.
        slots: SLOT_DTYPE[num_chunks, num_shards].
        start_tokens: where the load begins: the device match at the time of the answer.
        end_tokens: where it ends; both are whole blocks.
    """

    lease: LeaseId
    epoch: Epoch
    first_chunk: int
    slots: NDArray[Any]
    start_tokens: int
    end_tokens: int

    @property
    def num_tokens(self) -> int:
        """Tokens promised."""
        return self.end_tokens - self.start_tokens


@dataclass(frozen=True)
class LoadWindow:
    """What could be loaded for a request at most.

    Attributes:
        first_block: first block beyond the device match.
        stop_block: the block that holds the prompt's last token; never loaded, so that one token
            is left to compute. Source: host contract rule 1.
        num_chunks: chunks of the prompt that contain loadable blocks, from chunk 0 on.
    """

    first_block: int
    stop_block: int
    num_chunks: int


def load_window(prompt_tokens: int, num_computed: int, geometry: Geometry) -> LoadWindow | None:
    """The range an offer may cover (B04).

    Args:
        prompt_tokens: length of the prompt.
        num_computed: tokens matched on the device.
        geometry: block and chunk sizes.

    Returns:
        None when nothing may be loaded: the device match ends inside a block (host contract
        rule 2) or reaches the last block.
    """
    size, chunk = geometry.tokens_per_block, geometry.chunk_blocks
    if num_computed < 0 or num_computed % size or prompt_tokens < 1:
        return None
    first, stop = num_computed // size, (prompt_tokens - 1) // size
    num_chunks = min(-(-stop // chunk), prompt_tokens // size // chunk)
    if first >= min(stop, num_chunks * chunk):
        return None
    return LoadWindow(first, stop, num_chunks)


@dataclass
class Returns:
    """What the server is to be told, in the background.

    Attributes:
        releases: lease, first chunk, count (0 for all): given back for every reader.
        ends: request keys whose unretrieved leases end.
    """

    releases: list[tuple[LeaseId, int, int]] = field(default_factory=list)
    ends: list[RequestKey] = field(default_factory=list)


@dataclass
class RequestState:
    """One request.

    Attributes:
        key: our number for it.
        facts: as last told by the host.
        chain: hashes of its blocks; None when it bypasses the cache.
        prompt_tokens: length of the prompt.
        tokens: prompt and generated tokens, as far as reported.
        pages: page ids by block ordinal, as far as reported.
        offer: promised, not loaded yet.
        asked: a LOOKUP was sent under its key.
        allocated: the host gave it pages after the last query.
        reported: it was in a SchedulerOutput.
        finished: the host said so.
        named_chunks: chunks named for saving, or known to be held by the server.
        seen_iteration: when it was last reported, queried or allocated.
        seen_s: the same in time.
    """

    key: RequestKey
    facts: RequestFacts
    chain: BlockHashChain | None
    prompt_tokens: int
    tokens: list[int]
    pages: list[int] = field(default_factory=list)
    offer: Offer | None = None
    asked: bool = False
    allocated: bool = False
    reported: bool = False
    finished: bool = False
    named_chunks: int = 0
    seen_iteration: int = 0
    seen_s: float = 0.0

    def begin(self, pages: list[int]) -> None:
        """The host reported the request: from now on only deltas come.

        Args:
            pages: of the whole prompt, by ordinal.
        """
        self.reported, self.pages = True, pages
        self.facts = replace(self.facts, tokens=[])  # compared no more, and grown in ``tokens``

    def extend_chain(self) -> int:
        """Hashes blocks that have become full; returns the number of hashed blocks."""
        if self.chain is None:
            return 0
        return self.chain.extend(self.tokens, self.facts.media)

    def chunk_keys(self, start: int, stop: int, chunk_blocks: int) -> bytes:
        """Keys of chunks ``[start, stop)``, 16 bytes each; their blocks must be hashed."""
        if self.chain is None:
            return b""
        return chunk_key_blob(
            self.chain.key_blob(start * chunk_blocks, stop * chunk_blocks), chunk_blocks
        )

    def parent_key(self, chunk: int, chunk_blocks: int) -> bytes:
        """Key of the chunk before ``chunk``; empty for chunk 0."""
        if chunk == 0 or self.chain is None:
            return b""
        key: ChunkKey = self.chain.key(chunk * chunk_blocks - 1)
        return key

    def load_order(self, offer: Offer, geometry: Geometry) -> LoadOrder:
        """The offer as instructions for the workers.

        Args:
            offer: this request's.
            geometry: block and chunk sizes.

        Returns:
            Pages exactly for the blocks of the promised range.

        Raises:
            ValueError: the host reported fewer pages than it was promised tokens.
        """
        size, chunk = geometry.tokens_per_block, geometry.chunk_blocks
        first, stop = offer.start_tokens // size, offer.end_tokens // size
        if len(self.pages) < stop or min(self.pages[first:stop], default=-1) < 0:
            raise ValueError(f"{stop} blocks were promised, pages are known for {len(self.pages)}")
        num_chunks, num_shards = offer.slots.shape
        pages = np.full(num_chunks * chunk, -1, dtype=np.int32)
        at = first - offer.first_chunk * chunk
        pages[at : at + stop - first] = self.pages[first:stop]
        return LoadOrder(
            request_id=self.facts.request_id,
            key=self.key,
            lease=offer.lease,
            epoch=offer.epoch,
            slots=offer.slots.tobytes(),
            num_shards=num_shards,
            pages=pages.reshape(num_chunks, chunk),
        )


class RequestTable:
    """All requests of one scheduler."""

    def __init__(self, geometry: Geometry) -> None:
        """Starts empty.

        Args:
            geometry: block and chunk sizes.
        """
        self.geometry = geometry
        self.returns = Returns()
        self.ended: list[int] = []
        self._states: dict[int, RequestState] = {}
        self._live: dict[RequestKey, None] = {}
        self._next_key = 1

    def __len__(self) -> int:
        """Requests known."""
        return len(self._states)

    def states(self) -> list[RequestState]:
        """All requests, finished ones included that may still be asked about."""
        return list(self._states.values())

    def live_keys(self) -> list[int]:
        """Keys whose leases must stay. Safe from any thread."""
        return list(self._live)

    def find(self, request_id: int) -> RequestState | None:
        """The request that goes by this id now."""
        return self._states.get(request_id)

    def admit(self, facts: RequestFacts, iteration: int, now_s: float) -> RequestState:
        """The request a query or an allocation is about: known, or new.

        The same id with other tokens or another scope, or after its forward began, is another
        request: it gets another key, and the old one ends.

        Args:
            facts: what the host says now.
            iteration: of the executor.
            now_s: monotonic clock, seconds.
        """
        state = self._states.get(facts.request_id)
        if state is not None and (
            state.reported
            or state.finished
            or state.facts.scope != facts.scope
            or state.facts.media != facts.media
            or state.facts.tokens != facts.tokens
        ):
            self.drop(state)
            state = None
        if state is None:
            state = self._enter(facts)
        state.seen_iteration, state.seen_s = iteration, now_s
        return state

    def _enter(self, facts: RequestFacts) -> RequestState:
        chain = None
        if facts.scope is not None:
            chain = BlockHashChain.start(facts.scope, self.geometry.tokens_per_block)
        key = RequestKey(self._next_key)
        self._next_key += 1
        state = RequestState(key, facts, chain, len(facts.tokens), facts.tokens)
        state.extend_chain()
        self._states[facts.request_id] = state
        self._live[key] = None
        return state

    def narrow(self, state: RequestState, num_computed: int) -> int:
        """Answers a repeated query from the offer that stands, giving back what it lost (B23).

        Args:
            state: with an offer.
            num_computed: the device match now.

        Returns:
            Tokens still offered; 0 when the offer was given back, in which case asking the server
            again may help.
        """
        offer = state.offer
        if offer is None:
            return 0
        size, chunk = self.geometry.tokens_per_block, self.geometry.chunk_blocks
        if num_computed % size or not offer.start_tokens <= num_computed < offer.end_tokens:
            self.withdraw(state)
            return 0
        surplus = num_computed // size // chunk - offer.first_chunk
        if surplus > 0:
            self.returns.releases.append((offer.lease, offer.first_chunk, surplus))
        surplus = max(0, surplus)
        state.offer = Offer(
            lease=offer.lease,
            epoch=offer.epoch,
            first_chunk=offer.first_chunk + surplus,
            slots=offer.slots[surplus:],
            start_tokens=num_computed,
            end_tokens=offer.end_tokens,
        )
        return state.offer.num_tokens

    def withdraw(self, state: RequestState) -> None:
        """Gives an offer back that no worker has heard of."""
        if state.offer is not None:
            self.returns.releases.append((state.offer.lease, 0, 0))
            state.offer = None

    def finish(self, state: RequestState) -> None:
        """The host is done with a request; the state stays to answer it again."""
        state.finished = True
        self.withdraw(state)
        if state.asked:
            self.returns.ends.append(state.key)
            state.asked = False
        self._live.pop(state.key, None)
        state.tokens, state.pages, state.chain = [], [], None

    def drop(self, state: RequestState, *, tell_workers: bool = True) -> None:
        """Forgets a request.

        Args:
            state: which.
            tell_workers: whether its pages are no longer its own, so saves must not go on.
        """
        if not state.finished:
            self.finish(state)
            if tell_workers:
                self.ended.append(state.key)
        if self._states.get(state.facts.request_id) is state:
            del self._states[state.facts.request_id]

    def expire(self, iteration: int, now_s: float) -> int:
        """Forgets what the host has stopped reporting, and offers it did not take up.

        An offer is settled in the iteration it was made in (query, allocation, report); one that
        was not allocated by then was declined.

        Args:
            iteration: that was just reported.
            now_s: monotonic clock, seconds.

        Returns:
            Requests forgotten.
        """
        gone = []
        for state in self._states.values():
            if state.offer is not None and not state.allocated:
                self.withdraw(state)
            old = iteration - state.seen_iteration > EXPIRE_ITERATIONS
            if old and now_s - state.seen_s > EXPIRE_S:
                gone.append(state)
        for state in gone:
            self.drop(state)
        return len(gone)

    def take_returns(self) -> Returns:
        """What is to be told to the server since the last call."""
        returns, self.returns = self.returns, Returns()
        return returns

    def take_ended(self) -> list[int]:
        """Keys whose saves must not go on, since the last call."""
        ended, self.ended = self.ended, []
        return ended
