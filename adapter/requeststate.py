"""One request: what the host said of it, its hashes, its pages, and what it was promised.

Sans-IO. Must not know: other requests, sockets, the host's classes. Belongs to the table of
``adapter.requests``; runs in the executor's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from adapter.geometry import Geometry
from adapter.metadata import LoadOrder
from adapter.promises import Offer
from adapter.windows import first_needed, num_left
from protocol.ids import RequestKey
from protocol.keys import BlockHashChain, MediaItem, ReuseScope, chunk_key_blob


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


@dataclass
class RequestState:
    """One request.

    Attributes:
        key: our number for it.
        facts: as last told by the host.
        chain: hashes of its blocks; None when it bypasses the cache.
        prompt_tokens: length of the prompt.
        tokens: prompt and generated tokens, as far as reported.
        pages: for each layer group, page ids by block ordinal, as far as reported; -1 for none.
        num_left: by layer group, leading blocks that left its sliding window.
        matched_tokens: the device match at the last query; 0 without one.
        offer: promised, not loaded yet.
        promised: tokens that the last query was answered with.
        doubted: tokens that the host's request counts as loaded though its query was answered with
            none: left over from its earlier life, unless a report shows that they are counted.
        doubted_from: the position that the next report may not be beyond while they are doubted.
        loading: tokens from and to which an asynchronous load was ordered.
        asked: a LOOKUP was sent under its key.
        allocated: the host gave it pages after the last query.
        reported: it was in a SchedulerOutput.
        finished: the host said so.
        named_chunks: chunks named for saving, or known to be held by the server.
        seen_iteration: when it was last reported, queried or allocated.
        seen_s: the same in time.
        tenant: digest of its salt, or empty: whose quota its chunks count for.
    """

    key: RequestKey
    facts: RequestFacts
    chain: BlockHashChain | None
    prompt_tokens: int
    tokens: list[int]
    pages: list[list[int]] = field(default_factory=list)
    num_left: dict[int, int] = field(default_factory=dict)
    matched_tokens: int = 0
    offer: Offer | None = None
    promised: int = 0
    doubted: int = 0
    doubted_from: int = 0
    loading: tuple[int, int] | None = None
    asked: bool = False
    allocated: bool = False
    reported: bool = False
    finished: bool = False
    named_chunks: int = 0
    seen_iteration: int = 0
    seen_s: float = 0.0
    tenant: bytes = b""

    def begin(self, pages: list[list[int]]) -> None:
        """The host reported the request: from now on only deltas come.

        Args:
            pages: for each layer group, by ordinal, as far as the host allocated them.
        """
        self.reported, self.pages = True, pages
        self.facts = replace(self.facts, tokens=[])  # compared no more, and grown in ``tokens``

    def forget_content(self) -> None:
        """The request is over: only its numbers are still asked for."""
        self.facts = replace(self.facts, tokens=[])
        self.tokens, self.pages, self.chain = [], [], None

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
        return self.chain.key(chunk * chunk_blocks - 1)

    def leave_windows(self, next_tokens: int, geometry: Geometry, gone: list[list[int]]) -> None:
        """Lets go of pages that the host may have taken back behind a sliding window.

        Args:
            next_tokens: the position that is computed next, or a later one.
            geometry: block size and windows.
            gone: for each group, takes the pages.
        """
        for at, group in enumerate(geometry.groups):
            if not group.window_tokens:
                continue
            pages, first = self.pages[at], self.num_left.get(at, 0)
            stop = num_left(next_tokens, group.window_tokens, geometry.tokens_per_block)
            stop = min(stop, len(pages))
            for block in range(first, stop):
                if pages[block] >= 0:
                    gone[at].append(pages[block])
                    pages[block] = -1
            self.num_left[at] = max(first, stop)

    def load_order(self, offer: Offer, geometry: Geometry) -> LoadOrder:
        """The offer as instructions for the workers.

        Args:
            offer: this request's.
            geometry: block and chunk sizes.

        Returns:
            Pages exactly for the blocks of the promised range; in groups with a window, for those
            that reach into the window before its end and have a page.

        Raises:
            ValueError: the host reported fewer pages than it was promised tokens.
        """
        size, chunk = geometry.tokens_per_block, geometry.chunk_blocks
        first, stop = offer.start_tokens // size, offer.end_tokens // size
        num_chunks, num_shards = offer.slots.shape
        pages = np.full((geometry.num_groups, num_chunks * chunk), -1, dtype=np.int32)
        base = offer.first_chunk * chunk
        for group, known, row in zip(geometry.groups, self.pages, pages, strict=True):
            begin = max(first, first_needed(offer.end_tokens, group.window_tokens, size))
            if len(known) < stop or (
                not group.window_tokens and min(known[begin:stop], default=0) < 0
            ):
                raise ValueError(f"{stop} blocks were promised, pages are known for {len(known)}")
            row[begin - base : stop - base] = known[begin:stop]
        return LoadOrder(
            request_id=self.facts.request_id,
            key=self.key,
            lease=offer.lease,
            epoch=offer.epoch,
            slots=offer.slots.tobytes(),
            num_shards=num_shards,
            pages=pages.reshape(geometry.num_groups, num_chunks, chunk),
            is_async=offer.is_async,
        )
