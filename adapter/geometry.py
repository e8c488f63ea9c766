"""How requests map to pages and chunks in one engine's pool.

Purpose: the arithmetic that scheduler, worker and saver share, whatever host version described the
pool. Must not know: the host's classes, addresses, sockets. Plain data, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.ids import ShardIndex
from protocol.namespace import Namespace


@dataclass(frozen=True)
class GroupGeometry:
    """The pages of one layer group on one rank.

    Attributes:
        num_pages: page ids are 0 <= id < num_pages.
        page_bytes: bytes of one page.
        window_tokens: attention window, or 0 for full attention.
    """

    num_pages: int
    page_bytes: int
    window_tokens: int = 0


@dataclass(frozen=True)
class Geometry:
    """One rank's view of the engine's pages.

    Attributes:
        tokens_per_block: tokens of one page.
        chunk_blocks: pages of one chunk, in each group.
        groups: layer groups in the engine's order; V1 has one.
        shards: this rank's shard of each group.
        rank: of this process among the attention ranks.
        num_ranks: attention ranks; 1 under attention data parallelism.
        pools: for each group the number of the pool its pages are from: groups of one pool have
            the same pages, each of which belongs to one group at a time. Empty when each group has
            its own.
        chunk_tokens: tokens of one chunk.
    """

    tokens_per_block: int
    chunk_blocks: int
    groups: tuple[GroupGeometry, ...]
    shards: tuple[ShardIndex, ...]
    rank: int = 0
    num_ranks: int = 1
    pools: tuple[int, ...] = ()
    chunk_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        """Multiplies once: this is asked for each request in each iteration."""
        object.__setattr__(self, "chunk_tokens", self.tokens_per_block * self.chunk_blocks)

    @property
    def num_groups(self) -> int:
        """Layer groups."""
        return len(self.groups)

    @classmethod
    def of(
        cls,
        namespace: Namespace,
        rank: int,
        num_pages: tuple[int, ...],
        pools: tuple[int, ...] = (),
    ) -> Geometry:
        """The geometry that goes with a namespace.

        Args:
            namespace: of the engine.
            rank: of this process.
            num_pages: pages of each group's pool.
            pools: number of each group's pool; empty when each has its own.
        """
        groups = tuple(
            GroupGeometry(pages, group.page_bytes, group.window_tokens)
            for pages, group in zip(num_pages, namespace.groups, strict=True)
        )
        return cls(
            tokens_per_block=namespace.tokens_per_block,
            chunk_blocks=namespace.chunk_blocks,
            groups=groups,
            shards=namespace.shards_of_rank(rank),
            rank=rank,
            num_ranks=namespace.num_ranks,
            pools=pools,
        )
