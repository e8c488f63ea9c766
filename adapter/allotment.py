"""The pages that the host's callbacks bring: by layer group, and as many as the prompt needs.

Must not know: the host's classes, sockets. Plain data; runs in the executor's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from adapter.geometry import Geometry
from adapter.requeststate import RequestState

_MAX_DRAFT_TOKENS: Final = 64


def groups_of(
    pages: Sequence[Sequence[int] | None] | None, num_groups: int
) -> list[list[int]] | None:
    """Page ids of each layer group.

    Args:
        pages: as the host gave them; a flat list comes as the only group. The outer list is empty
            when the host has no pages any more.
        num_groups: of the cache.

    Returns:
        A list per group, by block ordinal, -1 in place for none; None when there are no pages.

    Raises:
        ValueError: pages for another number of groups.
    """
    lists = [[int(page) for page in group or ()] for group in pages or ()]
    if not any(lists):
        return None
    if len(lists) != num_groups:
        raise ValueError(f"pages of {len(lists)} layer groups came, there are {num_groups}")
    return lists


def why_misfit(state: RequestState, geometry: Geometry, is_drafting: bool) -> str:
    """Each allocation must agree with the block size read off a V1 pool (host contract §2).

    Drafts of a speculative model may take further pages behind the prompt's.

    Args:
        state: of a request that was just allocated, whole.
        geometry: block size.
        is_drafting: whether drafts are made.

    Returns:
        What does not agree; empty when all is well.
    """
    size, num_pages = geometry.tokens_per_block, len(state.pages[0])
    expected = -(-state.prompt_tokens // size)
    most = expected + (1 + _MAX_DRAFT_TOKENS // size if is_drafting else 0)
    if expected <= num_pages <= most:
        return ""
    return (
        f"a prompt of {state.prompt_tokens} tokens got {num_pages} pages, blocks of "
        f"{size} tokens need {expected}: the block size could not be derived"
    )
