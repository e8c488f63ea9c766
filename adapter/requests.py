"""What is known of each request, from its first query to the end of its reports.

Purpose: answer the host's repeated, missing and late calls consistently, never offer more than
the host accepts, and give back every lease that is not used. Sans-IO: time is an argument, what
is to be given back is collected in ``Returns``. Must not know: sockets, pages' bytes, the host's
classes. Runs in: the executor's thread.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from adapter.geometry import Geometry
from adapter.requeststate import RequestFacts, RequestState
from protocol.ids import LeaseId, RequestKey
from protocol.keys import BlockHashChain

EXPIRE_ITERATIONS: Final = 64
EXPIRE_S: Final = 60.0
"""A request that was not reported for both is forgotten: late hosts cancel without a callback.
Source: host contract rule 12."""

EXPIRE_EVERY: Final = 16
"""Iterations between looks for such requests."""

MAX_FINISHED: Final = 8192
"""Finished requests that are remembered, to answer late and repeated calls."""

MAX_OVERDUE: Final = 1024
"""Ids of forgotten requests that are remembered because they had been promised tokens."""


MAX_OPEN_OFFERS: Final = 512
"""Offers that a host may keep without settling them. Each pins what it names."""


@dataclass
class Returns:
    """What the server is to be told, in the background.

    Attributes:
        releases: lease, first chunk, count (0 for all): given back for every reader.
        ends: request keys whose unretrieved leases end.
    """

    releases: list[tuple[LeaseId, int, int]] = field(default_factory=list)
    ends: list[RequestKey] = field(default_factory=list)


class RequestTable:
    """All requests of one scheduler."""

    def __init__(
        self, geometry: Geometry, is_drafting: bool = False, keeps_offers: bool = False
    ) -> None:
        """Starts empty.

        Args:
            geometry: block and chunk sizes.
            is_drafting: whether rejected drafts may shrink a request's pages unseen, so that those
                behind its prompt are known only at its end.
            keeps_offers: whether the host may allocate in any later iteration what it was offered,
                and cancels what it does not take up (aggressive mode of E4).
        """
        self.geometry = geometry
        self.keeps_offers = keeps_offers
        self.is_drafting = is_drafting
        self.returns = Returns()
        self.ended: list[int] = []
        #: Told the key of each request that ends, as soon as it does.
        self.on_end: Callable[[int], None] | None = None
        self._states: dict[int, RequestState] = {}
        self._live: dict[RequestKey, RequestState] = {}
        self._unreported: dict[RequestKey, RequestState] = {}
        self._expire_again_at = 0
        self._finished: deque[RequestState] = deque()
        self._overdue: OrderedDict[int, int] = OrderedDict()
        self._next_key = 1

    def __len__(self) -> int:
        """Requests known."""
        return len(self._states)

    def live(self) -> list[RequestState]:
        """Requests that are not finished."""
        return list(self._live.values())

    def unreported(self) -> list[RequestState]:
        """Requests that no report has named yet; only these can have offers."""
        return list(self._unreported.values())

    def may_offer(self) -> bool:
        """Whether another offer may stay open; what hosts keep is bounded, too."""
        if not self.keeps_offers:
            return True
        num_open = sum(state.offer is not None for state in self._unreported.values())
        return num_open < MAX_OPEN_OFFERS

    def begin(self, state: RequestState, pages: list[list[int]]) -> None:
        """The host reported a request: from now on only deltas come.

        Args:
            state: not reported before.
            pages: for each layer group, by ordinal.
        """
        state.begin(pages)
        self._unreported.pop(state.key, None)

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
        self._overdue.pop(facts.request_id, None)
        return state

    def _enter(self, facts: RequestFacts) -> RequestState:
        chain = None
        if facts.scope is not None:
            chain = BlockHashChain.start(facts.scope, self.geometry.tokens_per_block)
        key = RequestKey(self._next_key)
        self._next_key += 1
        pages: list[list[int]] = [[] for _ in self.geometry.groups]
        state = RequestState(key, facts, chain, len(facts.tokens), facts.tokens, pages)
        state.tenant = facts.scope.tenant() if facts.scope is not None else b""
        state.extend_chain()
        self._states[facts.request_id] = state
        self._live[key] = self._unreported[key] = state
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
        size = self.geometry.tokens_per_block
        if num_computed % size or not offer.start_tokens <= num_computed < offer.end_tokens:
            self.withdraw(state)
            return 0
        state.offer = offer.later(num_computed, self.geometry)
        surplus = state.offer.first_chunk - offer.first_chunk
        if surplus:
            self.returns.releases.append((offer.lease, offer.first_chunk, surplus))
        return state.offer.num_tokens

    def shorten(self, state: RequestState, end_tokens: int) -> None:
        """The host takes up less of an offer than was promised: gives back what lies behind.

        Args:
            state: with or without an offer.
            end_tokens: where the load is to end; inside a block, that block is loaded too, for it
                is the request's own and is computed from there on.
        """
        offer, size = state.offer, self.geometry.tokens_per_block
        if offer is None or end_tokens >= offer.end_tokens:
            return
        if end_tokens <= offer.start_tokens:
            self.withdraw(state)
            return
        state.offer = offer.shorter(-(-end_tokens // size) * size, self.geometry)
        kept, had = len(state.offer.slots), len(offer.slots)
        if kept < had:
            self.returns.releases.append((offer.lease, offer.first_chunk + kept, had - kept))

    def take_up(self, state: RequestState, num_tokens: int | None) -> None:
        """The host says how much of an offer it counts on (host contract §5, V2 rule).

        Args:
            state: with or without an offer.
            num_tokens: from its start on; None where the host does not say.
        """
        if state.offer is not None and num_tokens is not None:
            self.shorten(state, state.offer.start_tokens + int(num_tokens))

    def answered(self, request_id: int, num_tokens: int) -> None:
        """A query was answered: so much is promised from now on, and nothing else.

        Args:
            request_id: the host's id.
            num_tokens: promised.
        """
        state = self._states.get(request_id)
        if state is not None:
            state.promised = num_tokens

    def believe(self, request_id: int, num_tokens: int | None) -> tuple[int | None, int]:
        """What to make of the tokens that the host's request counts as loaded, at an allocation.

        The host writes the number into an object that may live longer than one allocation. Where
        nothing was promised for this one it may be an earlier one's; only a report tells.

        Args:
            request_id: the host's id.
            num_tokens: as the host says; None where it does not.

        Returns:
            Tokens that are counted on, None for whatever is offered; and tokens that are doubted.
        """
        state = self._states.get(request_id)
        if state is None:
            promised = self._overdue.get(request_id, 0)
        else:
            promised = 0 if state.reported or state.finished else state.promised
        if promised or not num_tokens:
            return num_tokens, 0
        return 0, int(num_tokens)

    def cancel(self, state: RequestState, start_tokens: int, end_tokens: int) -> None:
        """The host will not take up a range of an offer: gives it back (E4).

        Args:
            state: with or without an offer; one that was handed to the workers is theirs.
            start_tokens: of the range.
            end_tokens: of the range.
        """
        offer = state.offer
        if offer is None:
            return
        start_tokens = max(start_tokens, offer.start_tokens)
        if start_tokens >= min(end_tokens, offer.end_tokens):
            return
        if start_tokens > offer.start_tokens or end_tokens >= offer.end_tokens:
            self.shorten(state, start_tokens)
        else:
            self.narrow(state, end_tokens)

    def withdraw(self, state: RequestState) -> None:
        """Gives an offer back that no worker has heard of."""
        if state.offer is not None:
            self.returns.releases.append((state.offer.lease, 0, 0))
            state.offer = None

    def finish(self, state: RequestState) -> None:
        """The host is done with a request; the state stays to answer it again. Idempotent."""
        if state.finished:
            return
        state.finished = True
        self.withdraw(state)
        if state.asked:
            self.returns.ends.append(state.key)
            state.asked = False
        self._live.pop(state.key, None)
        self._unreported.pop(state.key, None)
        state.forget_content()
        self._finished.append(state)
        if self.on_end is not None:  # last: whatever it does, all of the above is done
            self.on_end(state.key)

    def drop(self, state: RequestState) -> None:
        """Forgets a request; one that was not finished has its saves withdrawn."""
        if not state.finished:
            self.finish(state)
            self.ended.append(state.key)
        if self._states.get(state.facts.request_id) is state:
            del self._states[state.facts.request_id]

    def expire(self, iteration: int, now_s: float) -> int:
        """Forgets what the host has stopped reporting, and offers it did not take up.

        An offer is settled in the iteration it was made in (query, allocation, report); one that
        was not allocated by then was declined. Where offers are kept, the host says which ones it
        declines, and how long a request waits for its turn is nobody's business.

        Args:
            iteration: that was just reported.
            now_s: monotonic clock, seconds.

        Returns:
            Requests forgotten.
        """
        for state in () if self.keeps_offers else self._unreported.values():
            if state.offer is not None and not state.allocated:
                self.withdraw(state)
        while self._finished and (
            len(self._finished) > MAX_FINISHED or now_s - self._finished[0].seen_s > EXPIRE_S
        ):
            self.drop(self._finished.popleft())
        if iteration < self._expire_again_at:
            return 0
        self._expire_again_at = iteration + EXPIRE_EVERY
        gone = [
            state
            for state in self._live.values()
            if iteration - state.seen_iteration > EXPIRE_ITERATIONS
            and now_s - state.seen_s > EXPIRE_S
            and not (self.keeps_offers and state.offer is not None and not state.allocated)
        ]
        for state in gone:
            if state.offer is not None:
                self._overdue[state.facts.request_id] = state.offer.num_tokens
            self.drop(state)
        while len(self._overdue) > MAX_OVERDUE:
            self._overdue.popitem(last=False)
        return len(gone)

    def take_overdue(self, request_id: int) -> int:
        """Tokens that a request had been promised when it was taken for cancelled.

        It is reported after all, and counts them as computed; nothing can fill them any more.

        Args:
            request_id: the host's id.

        Returns:
            0 for all others.
        """
        return self._overdue.pop(request_id, 0)

    def take_returns(self) -> Returns:
        """What is to be told to the server since the last call."""
        returns, self.returns = self.returns, Returns()
        return returns

    def take_ended(self) -> list[int]:
        """Keys whose saves must not go on, since the last call."""
        ended, self.ended = self.ended, []
        return ended
