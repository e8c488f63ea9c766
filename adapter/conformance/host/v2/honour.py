"""How much of an offer the V2 cache takes up (host contract §5, "V2 rule").

Must not know: pages, requests. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """What a first chunk computes, and from where.

    Attributes:
        start: First token computed; everything from the device match to it is loaded.
        end: The token behind the last one computed.
    """

    start: int
    end: int


def chunk_end(start: int, num_tokens: int, context_len: int, tokens_per_block: int) -> int:
    """Where a chunk of at most ``num_tokens`` ends: at the prompt's end or a block's."""
    end = min(start + num_tokens, context_len)
    return end if end == context_len else end - end % tokens_per_block


def honour(
    matched: int,
    offered: int,
    sized_end: int,
    context_len: int,
    tokens_per_block: int,
    grow: Callable[[int, int], bool],
) -> Window:
    """Move a first chunk behind an offer, as far as it goes.

    Args:
        matched: Tokens matched on the device (L).
        offered: Tokens offered beyond them.
        sized_end: Where the chunk sized before the query ends (C); its pages are there.
        context_len: Tokens of the prompt.
        tokens_per_block: Tokens of a page.
        grow: Takes start and end of a later window; whether it got its pages.

    Returns:
        The chunk to compute; ``start - matched`` tokens are honoured.
    """
    end = min(matched + offered, context_len - 1)
    if end < sized_end:
        return Window(end, sized_end)
    moved = chunk_end(end, sized_end - matched, context_len, tokens_per_block)
    if grow(end, moved):
        return Window(end, moved)
    fallback = (sized_end - 1) // tokens_per_block * tokens_per_block
    return Window(max(fallback, matched), sized_end)
