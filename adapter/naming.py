"""Which chunks of a request may be saved, under which keys and from which pages.

Sans-IO. Must not know: the host's classes, sockets, streams. Runs in: the executor's thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adapter.geometry import Geometry
from adapter.metadata import LastWord, SaveNames
from adapter.requeststate import RequestState


def last_word(
    state: RequestState,
    tokens: Sequence[int],
    geometry: Geometry,
    pages: Sequence[Sequence[int]] = (),
) -> LastWord:
    """What is computed of a request that finished, and what no report has named.

    The token sampled last was never fed. Under overlap the reports lag behind, so a block that the
    last forward completed may be named here first. Source: host contract §3, "Positions".

    With several ranks nothing is named: the other ranks hear no last word.

    Args:
        state: of the request; takes in the tokens that were not reported.
        tokens: all of its tokens now.
        geometry: block and chunk sizes.
        pages: for each layer group, all of its pages now: what the reports said may have been
            outdated by rejected drafts or a sliding window. Empty where the host does not tell.
    """
    state.tokens += tokens[len(state.tokens) :]
    valid = max(0, len(tokens) - 1) // geometry.chunk_tokens
    is_sliding = any(group.window_tokens for group in geometry.groups)
    told = pages if is_sliding else ()
    if geometry.num_ranks > 1:
        return LastWord(min(valid, state.named_chunks), pages=told)
    if pages:
        state.pages = [[int(page) for page in group] for group in pages]
    return LastWord(valid, name_chunks(state, valid, geometry), told)


def name_chunks(state: RequestState, after: int, geometry: Geometry) -> SaveNames | None:
    """Names the chunks before ``after`` that were not named yet.

    Args:
        state: of the request; notes what was named.
        after: chunk behind the last whose tokens are computed then.
        geometry: block and chunk sizes.

    Returns:
        None when there is nothing to name.
    """
    if state.chain is None or after <= state.named_chunks:
        return None
    start = state.named_chunks
    stop = min(after, state.extend_chain() // geometry.chunk_blocks)
    stop, pages = _pages(state, start, stop, geometry)
    if stop <= start:
        return None
    state.named_chunks = stop
    return SaveNames(
        request_id=state.facts.request_id,
        key=state.key,
        first_chunk=start,
        parent=state.parent_key(start, geometry.chunk_blocks),
        keys=state.chunk_keys(start, stop, geometry.chunk_blocks),
        pages=pages,
        tenant=state.tenant,
    )


def _pages(
    state: RequestState, start: int, stop: int, geometry: Geometry
) -> tuple[int, NDArray[np.int32]]:
    """Pages of chunks ``[start, stop)``: int32[num_groups, blocks], and the stop they allow.

    A chunk without all of its pages in a group of full attention ends the run, for nothing behind
    it can be saved; in a group with a window it is left out (host contract rule 11).
    """
    chunk, num_groups = geometry.chunk_blocks, geometry.num_groups
    first, num_blocks = start * chunk, max(0, stop - start) * chunk
    rows = np.full((num_groups, num_blocks), -1, dtype=np.int32)
    for at, pages in enumerate(state.pages):
        part = pages[first : first + num_blocks]
        rows[at, : len(part)] = part
    by_chunk = (rows >= 0).reshape(num_groups, -1, chunk)
    for at, group in enumerate(geometry.groups):
        holes = np.flatnonzero(~by_chunk[at].all(axis=1))
        if not group.window_tokens:
            stop = min(stop, start + int(holes[0])) if holes.size else stop
        else:
            rows[at].reshape(-1, chunk)[holes] = -1
    return stop, rows[:, : max(0, stop - start) * chunk]
