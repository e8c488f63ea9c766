"""One node's memory (L1): the server's own index and order of eviction, without bytes.

Purpose: answer what is held and take in what is new, evicting as a STORE does. A chunk is one node
with one full-attention shard. Must not know: tiers, prompts, time beyond the stamp it is given.
Runs in: the process of the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from protocol.ids import ID_BYTES
from server.core.eviction import LeafLru
from server.core.index import ABSENT, ROOT, ChunkIndex
from server.core.slots import SlotTable

_NEVER_US = 1 << 60
_SPREAD = 0x9E3779B97F4A7C15F39CC0605CEDC835
"""Odd, so that it maps numbers to keys one to one; its bits spread over the index's tables."""

_MASK = (1 << 8 * ID_BYTES) - 1


def key(chunk: int) -> bytes:
    """The index key of a chunk's number."""
    return (chunk * _SPREAD & _MASK).to_bytes(ID_BYTES, "big")


class Memory:
    """Chunks of one node.

    Args:
        num_chunks: how many fit.
        evicted: called with chunks that were just evicted, children before parents.
    """

    def __init__(self, num_chunks: int, evicted: Callable[[list[int]], None]) -> None:
        self._room = num_chunks
        self._evicted = evicted
        self._index = ChunkIndex(SlotTable(), (True,), room=num_chunks)
        self._leaves = LeafLru(self._index, _NEVER_US)
        self._chunk_of: dict[int, int] = {}

    def __len__(self) -> int:
        """Chunks held."""
        return len(self._index)

    def held(self, chunks: Sequence[int], now_us: int) -> int:
        """How many leading chunks of a chain are held; the deepest counts as used now.

        Args:
            chunks: from a chain's start.
            now_us: the stamp.
        """
        count, node = self._index.complete_prefix(b"".join(map(key, chunks)), 0)
        if count:
            self._index.touch(node, now_us)
        return count

    def add(self, chunks: Sequence[int], held: int, now_us: int) -> int:
        """Takes in what follows the held part of a chain, evicting what was used least recently.

        Args:
            chunks: from a chain's start.
            held: leading ones that are held, and no more are.
            now_us: the stamp of the new ones.

        Returns:
            How many of the rest were taken in; fewer where nothing more can be evicted.
        """
        wanted = len(chunks) - held
        if wanted <= 0:
            return 0
        index = self._index
        tip = index.find(key(chunks[held - 1])) if held else ROOT
        if tip != ROOT:
            index.locks[tip] += 1
        self._evict(len(index) + wanted - self._room, now_us)
        count = min(wanted, self._room - len(index))
        if count > 0:
            new = chunks[held : held + count]
            nodes = index.add_chain([key(chunk) for chunk in new], tip, now_us)
            self._chunk_of.update(zip(nodes.tolist(), new, strict=True))
            leaves, _ = index.publish(nodes, 0, now_us)
            for node in leaves:
                self._leaves.offer(node)
        if tip != ROOT:
            index.locks[tip] -= 1
            self._leaves.offer(tip)
        return max(count, 0)

    def parent(self, chunk: int) -> int | None:
        """The chunk before a held one, or None for a chain's first."""
        node = self._index.parent[self._index.find(key(chunk))]
        return None if node == ROOT else self._chunk_of[node]

    def _evict(self, count: int, now_us: int) -> None:
        index = self._index
        while count > 0:
            leaf, stamp = self._leaves.take(now_us, self._evictable)
            if leaf == ABSENT:
                return
            line = index.only_line(leaf, stamp, count)
            # Told before they go, so that who is told still finds their parents.
            self._evicted([self._chunk_of[node] for node in line])
            for node in line:
                del self._chunk_of[node]
            parent = index.remove_line(line)
            if parent != ROOT:
                self._leaves.offer(parent)
            count -= len(line)

    def _evictable(self, node: int) -> bool:
        return self._index.first_child[node] == ABSENT and not self._index.locks[node]
