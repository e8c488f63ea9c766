"""What the scheduler tells every rank's worker in one iteration: plain data that pickles small.

Purpose: say which pages changed hands, which requests live and how far they are computed, which
chunks may be saved and which are to be loaded, so that a worker needs nothing else from the
scheduler's process. Must not know: the host, sockets. Built and read on executor threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


def _no_int32() -> NDArray[np.int32]:
    return np.empty(0, dtype=np.int32)


def _no_int64() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class SaveNames:
    """Chunks of one request that may be saved once they are known to be computed.

    Attributes:
        request_id: the host's id, for its own reports.
        key: our number of the request, never reused by this engine.
        first_chunk: ordinal of the first chunk named; follows what was named before.
        parent: key of the chunk before it, empty when there is none.
        keys: 16 bytes per chunk.
        pages: int32[num_groups, num_chunks * chunk_blocks]; -1 where a sliding window has no page
            any more, in which case that group's shard of the chunk is not saved.
        tenant: digest of the request's salt, or empty.
    """

    request_id: int
    key: int
    first_chunk: int
    parent: bytes
    keys: bytes
    pages: NDArray[np.int32]
    tenant: bytes = b""


@dataclass(frozen=True)
class LastWord:
    """What is known of a request when the host says that it finished.

    Attributes:
        valid_chunks: whole chunks of it that forwards computed which ended well.
        names: chunks that no report named before; None for none.
        pages: for each layer group, all of its pages by block ordinal, -1 for those that left a
            sliding window; empty where the host does not tell.
    """

    valid_chunks: int
    names: SaveNames | None = None
    pages: Sequence[Sequence[int]] = ()


@dataclass(frozen=True)
class LoadOrder:
    """Chunks to be in the pool before this iteration's forward.

    Attributes:
        request_id: the host's id, for messages.
        key: our number of the request.
        lease: the retrieved lease; each reader gives it back.
        epoch: of the server that named the slots.
        slots: SLOT_DTYPE[num_chunks * num_shards] as bytes, chunk-major.
        num_shards: shards per chunk.
        pages: int32[num_groups, num_chunks, chunk_blocks], -1 for pages outside the load range
            (they are shared with running requests or computed by this one; host contract rule 4)
            or outside a window, in which case the slot is not to be looked at.
        is_async: the request waits outside the batch; its completion is reported by id.
    """

    request_id: int
    key: int
    lease: bytes
    epoch: bytes
    slots: bytes
    num_shards: int
    pages: NDArray[np.int32]
    is_async: bool = False


@dataclass(frozen=True)
class EngineCard:
    """What the other ranks need to join the leader's instance.

    Attributes:
        instance: the engine's id, made by the leader.
        url: of the server that the leader uses.
    """

    instance: bytes
    url: str


@dataclass(frozen=True)
class ConnectorMetadata:
    """One iteration.

    Attributes:
        iteration: 1 and up, one more per call of ``build_connector_meta``.
        new_pages: for each group int32[n], pages handed out since the last iteration, device-
            matched ones not, and pages that left a sliding window, which the host may hand out
            unseen; empty for none in any group.
        alive: int64[r], our numbers of the requests in this batch.
        valid_chunks: int32[r], whole chunks of each that were computed, or queued to be computed,
            before this iteration's forward.
        next_tokens: int64[r], the position that the host computes next of each, or a later one;
            empty where no layer group has a sliding window.
        reached: int64[r], the same should each of them end with this iteration's forward.
        names: chunks that may be saved later on.
        loads: what to load now.
        ended: int64[e], our numbers of requests whose pages are no longer theirs.
        still_open: epochs of offers that are promised and not ordered yet; their servers' extents
            must stay mapped on every rank.
        engine: set by a leader with other ranks.
        may_fire: whether the batch holds a prompt part of two tokens or more, so that the forward
            is not a replayed graph and its layer hooks may be expected.
        failure: why tokens promised to the engine cannot be loaded; empty when all is well.
    """

    iteration: int
    new_pages: tuple[NDArray[np.int32], ...] = ()
    alive: NDArray[np.int64] = field(default_factory=_no_int64)
    valid_chunks: NDArray[np.int32] = field(default_factory=_no_int32)
    next_tokens: NDArray[np.int64] = field(default_factory=_no_int64)
    reached: NDArray[np.int64] = field(default_factory=_no_int64)
    names: tuple[SaveNames, ...] = ()
    loads: tuple[LoadOrder, ...] = ()
    ended: NDArray[np.int64] = field(default_factory=_no_int64)
    still_open: tuple[bytes, ...] = ()
    engine: EngineCard | None = None
    may_fire: bool = False
    failure: str = ""
