"""Mapped extents without a server, and pages to load them into."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapter.copy import ShardLoad, load_pages
from adapter.extents import ExtentTable, MappedExtent
from adapter.pagememory import GroupPages, PagePart
from protocol.ids import ArenaId, Epoch
from protocol.layout import SLOT_DTYPE
from tests.adapter.responder import ExtentFile, geometry, namespace

EPOCH = Epoch(b"e" * 16)
POOL_PAGES = 24
UNTOUCHED = 0xEE


class Arena:
    """Two mapped extents of four slots for each group; generation of slot i is i + 1.

    Extents of group g are 1 + 10 g and 2 + 10 g.
    """

    def __init__(self, chunk_blocks: int, *page_bytes: int) -> None:
        self.table = ExtentTable(lambda: None)
        self.epoch = EPOCH
        self.files: dict[int, ExtentFile] = {}
        self.chunk_blocks = chunk_blocks
        self.page_bytes = page_bytes
        for group, size in enumerate(page_bytes):
            owner = namespace(chunk_blocks=chunk_blocks, page_bytes=size)
            for number in (1 + 10 * group, 2 + 10 * group):
                file = ExtentFile(geometry(number, owner), ArenaId(b"a" * 16), seed=number)
                file_bytes = file.geometry.file_bytes
                mapping = mmap.mmap(file.fd, file_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
                self.table.add(MappedExtent(EPOCH, file.geometry, mapping))
                self.files[number] = file

    def page(self, extent: int, slot: int, index: int) -> NDArray[np.uint8]:
        size = self.page_bytes[extent // 10]
        page: NDArray[np.uint8] = self.files[extent].payloads[slot][index * size :][:size]
        return page

    def memory(self, *parts: tuple[int, int], group: int = 0) -> GroupPages:
        """Untouched pages of parts of (size, stride); packed without any."""
        size = self.page_bytes[group]
        made = []
        for part, stride in parts or ((size, size),):
            flat = np.full(stride * (POOL_PAGES - 1) + part, UNTOUCHED, dtype=np.uint8)
            made.append(PagePart(flat, part, stride))
        return GroupPages(tuple(made), POOL_PAGES)

    def shard(
        self, memory: GroupPages, places: list[tuple[int, int]], pages: Any, group: int = 0
    ) -> ShardLoad:
        wanted = np.asarray(pages, dtype=np.int32).reshape(len(places), self.chunk_blocks)
        return ShardLoad(group, memory, slots(*places), wanted)

    def load(self, *shards: ShardLoad) -> int:
        return load_pages(self.table, EPOCH, shards)

    def users(self) -> int:
        """Holds on extents."""
        found = [self.table.get(number, EPOCH) for number in self.files]
        return sum(extent.num_users for extent in found if extent is not None)

    def close(self) -> None:
        for file in self.files.values():
            file.close()


def slots(*places: tuple[int, int]) -> NDArray[Any]:
    return np.array([(e, s, s + 1) for e, s in places], dtype=SLOT_DTYPE)


def content(memory: GroupPages) -> NDArray[np.uint8]:
    """uint8[pages, page_bytes], read part by part."""
    pages = [
        np.concatenate([p.host[p.stride_bytes * page :][: p.size_bytes] for p in memory.parts])
        for page in range(memory.num_pages)
    ]
    return np.stack(pages)


def check_untouched(memory: GroupPages) -> None:
    for part in memory.parts:
        assert (part.host == UNTOUCHED).all()
