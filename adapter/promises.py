"""What is promised to the engine, and how much may be at most.

Must not know: the host's classes, the server, pages. Plain data and arithmetic; runs in the
executor's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from adapter.geometry import Geometry
from protocol.ids import Epoch, LeaseId


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
        is_async: the engine was told that the request has to wait for it.
    """

    lease: LeaseId
    epoch: Epoch
    first_chunk: int
    slots: NDArray[Any]
    start_tokens: int
    end_tokens: int
    is_async: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens promised."""
        return self.end_tokens - self.start_tokens

    def later(self, start_tokens: int, geometry: Geometry) -> Offer:
        """The part from a later block on.

        Args:
            start_tokens: whole blocks, before the end.
            geometry: block and chunk sizes.
        """
        first = max(self.first_chunk, start_tokens // geometry.chunk_tokens)
        return replace(
            self,
            first_chunk=first,
            slots=self.slots[first - self.first_chunk :],
            start_tokens=start_tokens,
        )

    def shorter(self, end_tokens: int, geometry: Geometry) -> Offer:
        """The part up to an earlier end.

        Args:
            end_tokens: whole blocks, behind the start.
            geometry: block and chunk sizes.
        """
        stop = -(-end_tokens // geometry.chunk_tokens)
        return replace(self, slots=self.slots[: stop - self.first_chunk], end_tokens=end_tokens)


def why_lost(request_id: int, num_tokens: int | None, offer: Offer | None) -> str:
    """What to say of tokens that the host counts as loaded while nobody will load them.

    Args:
        request_id: the host's id.
        num_tokens: that it counts; None where it does not say.
        offer: what stands offered to the request.

    Returns:
        Empty when the offer is for all of them.
    """
    standing = 0 if offer is None else offer.num_tokens
    if not num_tokens or num_tokens <= standing:
        return ""
    what = f"only {standing} are offered" if standing else "no offer stands"
    return f"request {request_id}: {num_tokens} tokens are counted as loaded, and {what}"


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
