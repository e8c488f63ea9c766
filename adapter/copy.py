"""Loads: from mapped extents into the engine's pages, checked afterwards.

The reader copies from its own mapping, so a load needs no server (design rule 2). When bytes have
been copied, every slot must still carry the generation that RETRIEVE named: leases and quarantine
guarantee that, and this check is the tripwire.

Must not know: sockets, requests, streams (the caller ordered the copy after the engine's work).
Runs in: the thread that calls it; numpy copies without holding the GIL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapter.extents import ExtentTable, MappedExtent
from adapter.pagememory import Cut, GroupPages
from protocol.errors import ErrorCode, KvkeepError
from protocol.ids import Epoch


class LoadError(KvkeepError):
    """Pages were not filled with what was promised; nothing may be computed on them."""


@dataclass(frozen=True)
class ShardLoad:
    """Chunks of one shard and where their pages go.

    Attributes:
        group: index of the layer group.
        memory: pages of that group.
        slots: SLOT_DTYPE[n], one per chunk: the shard's column of the RETRIEVE reply. Those of
            chunks without a wanted page are not looked at.
        pages: int[n, chunk_blocks], page ids; -1 for a page that is not wanted.
    """

    group: int
    memory: GroupPages
    slots: NDArray[Any]
    pages: NDArray[np.int32]


@contextmanager
def held_load(table: ExtentTable, epoch: Epoch, shards: Sequence[ShardLoad]) -> Iterator[HeldLoad]:
    """Checks a load and keeps its extents mapped for the length of a ``with`` block.

    Args:
        table: this process's mapped extents.
        epoch: ``Joined.epoch`` at the time of the RETRIEVE.
        shards: what to load.

    Yields:
        The load; nothing is written before its methods are called.

    Raises:
        LoadError: an extent is not mapped, or a descriptor or a page is out of range.
    """
    rows = [_wanted_rows(shard) for shard in shards]
    numbers = {owner for wanted in rows for (owner, _, _), _ in wanted}
    with table.hold(epoch, numbers) as extents:
        yield HeldLoad(extents, shards, rows)


def load_pages(table: ExtentTable, epoch: Epoch, shards: Sequence[ShardLoad]) -> int:
    """Copies chunks into their pages, complete on return.

    Args:
        table: this process's mapped extents.
        epoch: ``Joined.epoch`` at the time of the RETRIEVE.
        shards: what to load.

    Returns:
        Bytes copied.

    Raises:
        LoadError: as ``held_load`` (nothing was written then), or a slot was changed while it was
            copied.
    """
    with held_load(table, epoch, shards) as load:
        load.copy()
        load.check()
        return load.num_bytes


# Plain integers on purpose: a copy streams through the caches, and each numpy call beside it runs
# cold. For 32 pages of 4 MiB they cost a twentieth of the load.

_Row = tuple[tuple[int, int, int], list[int]]
"""A chunk's (extent, slot, generation) and its pages."""

Place = tuple[int, int, int]
"""A wanted page: extent, first byte in it, page id."""


class HeldLoad:
    """A load that was found possible, its extents held. Belongs to one thread at a time.

    Attributes:
        extents: by number.
        rows: each chunk's extent, slot and generation.
        groups: each layer group's index, its memory and what is wanted of it.
        num_pages: pages that are wanted.
        num_bytes: their bytes.
    """

    def __init__(
        self,
        extents: Mapping[int, MappedExtent],
        shards: Sequence[ShardLoad],
        rows: Sequence[Sequence[_Row]],
    ) -> None:
        """Use ``held_load``."""
        self.extents = extents
        self.rows = [row for wanted in rows for row, _ in wanted]
        self.groups: list[tuple[int, GroupPages, list[Place]]] = []
        self.num_pages = self.num_bytes = 0
        for shard, wanted in zip(shards, rows, strict=True):
            _check_memory(shard.memory)
            places = _places(extents, shard, wanted)
            self.groups.append((shard.group, shard.memory, places))
            self.num_pages += len(places)
            self.num_bytes += len(places) * shard.memory.page_bytes

    def copy(self, is_stopped: Callable[[], bool] | None = None) -> None:
        """Copies whole pages.

        Args:
            is_stopped: asked before each run of bytes, where the memory may be taken away.

        Raises:
            LoadError: it was stopped.
        """
        for _, memory, places in self.groups:
            for cut in memory.whole:
                self._copy(places, cut, memory, is_stopped)

    def check(self) -> None:
        """The tripwire: no slot was reused before the bytes copied so far had left it.

        Raises:
            LoadError: one was.
        """
        generations = {number: extent.generations for number, extent in self.extents.items()}
        for number, slot, wanted in self.rows:
            now = int(generations[number][slot])
            if now != wanted or now == 0:
                raise _reused(number, slot, now, wanted)

    def _copy(
        self,
        places: Sequence[Place],
        cut: Cut,
        memory: GroupPages,
        is_stopped: Callable[[], bool] | None,
    ) -> None:
        flat = memory.parts[cut.part].host
        for owner, source, target, length in _runs(places, cut):
            if is_stopped is not None and is_stopped():
                raise stopped()
            view = self.extents[owner].view
            np.copyto(flat[target : target + length], view[source : source + length])


def check_generations(
    number: int,
    generations: NDArray[np.uint64],
    slots: NDArray[np.integer[Any]],
    wanted: NDArray[np.uint64],
) -> None:
    """The tripwire, for many slots of an extent at once.

    Args:
        number: of the extent.
        generations: of all its slots, as they are now.
        slots: integers[n], which of them.
        wanted: uint64[n], what they must carry.

    Raises:
        LoadError: one does not.
    """
    now = generations[slots]
    is_bad = (now != wanted) | (now == 0)
    if is_bad.any():
        at = int(is_bad.argmax())
        raise _reused(number, int(slots[at]), int(now[at]), int(wanted[at]))


def stopped() -> LoadError:
    """What ends a load whose engine ends."""
    return LoadError(ErrorCode.UNAVAILABLE, "the engine ends, the load was stopped")


def _reused(number: int, slot: int, now: int, wanted: int) -> LoadError:
    return LoadError(
        ErrorCode.COPY_FAILED,
        f"slot {slot} of extent {number} carries generation {now}, not {wanted}: it was reused "
        "while a lease stood on it",
        extent=number,
        slot=slot,
    )


def _wanted_rows(shard: ShardLoad) -> list[_Row]:
    """The chunks of which some page is wanted."""
    slots, pages = shard.slots, shard.pages
    if pages.ndim != 2 or slots.ndim != 1 or len(pages) != len(slots):
        raise LoadError(
            ErrorCode.COUNT_MISMATCH,
            f"slots of shape {slots.shape} do not go with pages of shape {pages.shape}",
        )
    rows = zip(slots.tolist(), pages.tolist(), strict=True)
    return [(row, wanted) for row, wanted in rows if any(page != -1 for page in wanted)]


def _places(
    extents: Mapping[int, MappedExtent], shard: ShardLoad, rows: Sequence[_Row]
) -> list[Place]:
    page_bytes, num_pages = shard.memory.page_bytes, shard.memory.num_pages
    facts = _extent_facts(
        extents, {owner for (owner, _, _), _ in rows}, shard.pages.shape[1] * page_bytes
    )
    places: list[Place] = []
    for (owner, slot, _), wanted in rows:
        num_slots, first_byte, slot_bytes = facts[owner]
        if slot >= num_slots:
            raise LoadError(
                ErrorCode.INVALID_ARGUMENT,
                f"slot {slot} is not within 0..{num_slots - 1} of extent {owner}",
            )
        source = first_byte + slot * slot_bytes
        for page in wanted:
            if page != -1:
                if not 0 <= page < num_pages:
                    raise LoadError(
                        ErrorCode.PAGE_OUT_OF_RANGE,
                        f"page {page} is not within 0..{num_pages - 1} of group {shard.group}",
                    )
                places.append((owner, source, page))
            source += page_bytes
    return places


def extent_of(extents: Mapping[int, MappedExtent], number: int, chunk_bytes: int) -> MappedExtent:
    """The extent that a slot descriptor names, if it is mapped and its slots hold such chunks.

    Args:
        extents: held.
        number: which.
        chunk_bytes: of a chunk in the engine's pages.

    Raises:
        LoadError: UNAVAILABLE or PAGE_SIZE_MISMATCH.
    """
    extent = extents.get(number)
    if extent is None:
        raise LoadError(ErrorCode.UNAVAILABLE, f"extent {number} is not mapped here", extent=number)
    payload_bytes = extent.geometry.payload_bytes
    if payload_bytes != chunk_bytes:
        raise LoadError(
            ErrorCode.PAGE_SIZE_MISMATCH,
            f"a chunk of {chunk_bytes} bytes is not the {payload_bytes} bytes of a slot of extent "
            f"{number}",
        )
    return extent


def _extent_facts(
    extents: Mapping[int, MappedExtent], numbers: Iterable[int], chunk_bytes: int
) -> dict[int, tuple[int, int, int]]:
    """Slots, first byte and bytes of a slot of each extent."""
    facts = {}
    for number in numbers:
        geometry = extent_of(extents, number, chunk_bytes).geometry
        facts[number] = (geometry.num_slots, geometry.data_offset_bytes, geometry.slot_bytes)
    return facts


def _runs(places: Sequence[Place], cut: Cut) -> list[tuple[int, int, int, int]]:
    """(extent, source, target, length), neighbours on both sides in one go."""
    runs: list[tuple[int, int, int, int]] = []
    from_byte, first, stride, num_bytes = cut.page_byte, cut.part_byte, cut.stride, cut.num_bytes
    owner_now = source_end = target_end = -1
    for owner, page_source, page in places:
        source, target = page_source + from_byte, first + page * stride
        if owner == owner_now and source == source_end and target == target_end:
            _, begin, to, length = runs[-1]
            runs[-1] = (owner, begin, to, length + num_bytes)
        else:
            runs.append((owner, source, target, num_bytes))
        owner_now, source_end, target_end = owner, source + num_bytes, target + num_bytes
    return runs


def _check_memory(memory: GroupPages) -> None:
    for part in memory.parts:
        flat = part.host
        if flat.dtype != np.uint8 or flat.ndim != 1 or not flat.flags.c_contiguous:
            raise LoadError(ErrorCode.POOL_INVALID, "pages must be contiguous arrays of uint8")
        if not flat.flags.writeable:
            raise LoadError(ErrorCode.POOL_INVALID, "the pages are not writable")
        if part.stride_bytes * (memory.num_pages - 1) + part.size_bytes > flat.size:
            raise LoadError(
                ErrorCode.POOL_INVALID,
                f"{memory.num_pages} pages do not fit into {flat.size} bytes",
            )
