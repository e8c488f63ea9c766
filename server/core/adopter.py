"""Taking over what a predecessor left: from extents found to owners that serve them.

Purpose: choose which extents stay within the budget, build each namespace's index from the records
that hang together, seal what former processes may still touch, and say what was left out and why.
Must not know: files, processes. Runs in: the main thread before the loop.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from protocol.ids import ExtentId, Fingerprint, InstanceId
from server.core import lineage
from server.core.adoption import HOLDS_NOTHING, Adoption, FoundExtent, Heritage
from server.core.arena import Arena
from server.core.clock import Clock
from server.core.config import CoreConfig
from server.core.effects import DropNamespace, VoidRecords
from server.core.extents import Extent, Phase
from server.core.families import MAX_EXTENT, Family, misfit, read
from server.core.growth import Growth
from server.core.index import ABSENT
from server.core.indexload import Loaded, Nodes, load
from server.core.lineage import Ints
from server.core.namespaces import Owner
from server.core.outbox import Outbox
from server.core.publishing import Publisher
from server.core.quarantine import Quarantine
from server.core.roster import Roster
from server.core.slots import HELD


class Adopter:
    """Takes over, once.

    Args:
        config: settings.
        clock: current time.
        outbox: where effects go.
        roster: gets the owners.
        arena: gets the extents.
        growth: the budget.
        publisher: gets the next generation.
        quarantine: seals.

    Attributes:
        adopted: called with an owner and int64[n], the last chunk of each of its chains, the most
            recently used ones last; None without lower tiers.
    """

    def __init__(
        self,
        config: CoreConfig,
        clock: Clock,
        outbox: Outbox,
        roster: Roster,
        arena: Arena,
        growth: Growth,
        publisher: Publisher,
        quarantine: Quarantine,
    ) -> None:
        self._config = config
        self._clock = clock
        self._outbox = outbox
        self._roster = roster
        self._arena = arena
        self._slots = arena.slots
        self._growth = growth
        self._publisher = publisher
        self._quarantine = quarantine
        self.adopted: Callable[[Owner, Ints], None] | None = None

    def adopt(self, heritage: Heritage) -> Adoption:
        """Takes over what is whole and fits.

        Args:
            heritage: what was found.

        Returns:
            What was kept, and what is to be unlinked.
        """
        result = Adoption()
        with _uncollected():
            self._quarantine.begin(heritage.parties)
            families = self._families(heritage, result)
            kept = self._choose(families, result)
            for family in families:
                self._settle(family, kept, result)
            self._finish(heritage, result)
        return result

    # --- looking ----------------------------------------------------------------------------

    def _families(self, heritage: Heritage, result: Adoption) -> list[Family]:
        by_name: dict[Fingerprint, list[FoundExtent]] = {}
        for one in heritage.extents:
            why = misfit(one.geometry, heritage.namespaces)
            if why:
                result.dropped[one.geometry.extent] = why
            else:
                by_name.setdefault(one.geometry.fingerprint, []).append(one)
        dropped: Counter[str] = Counter()
        rows = {name: read(found, dropped) for name, found in by_name.items()}
        result.records_dropped.update(+dropped)
        self._adjust(list(rows.values()), [one for found in by_name.values() for one in found])
        families = []
        for name, found in by_name.items():
            graph = lineage.graph(rows[name])
            family = Family(name, heritage.namespaces[name], found, graph)
            family.weigh(np.ones(len(graph.node), np.bool_))
            families.append(family)
        return families

    def _adjust(self, parts: list[lineage.Rows], found: list[FoundExtent]) -> None:
        """Makes times and generations of what was found the past."""
        stamps = [int(rows.stamp.max()) for rows in parts if rows.stamp.size]
        # Of another boot's clock, whose zero was elsewhere: their order is all that counts.
        ahead = np.uint64(max(0, max(stamps, default=0) - self._clock.now_ns))
        for rows in parts:
            rows.stamp = np.maximum(rows.stamp, ahead) - ahead
        # Those of forgotten chunks, too: by its generation a late reader knows what it was told of.
        given = [int(rows.generation.max()) for rows in parts if rows.generation.size]
        given += [lineage.newest_forgotten(one.records) for one in found]
        newest = max(given, default=0)
        self._publisher.next_generation = max(self._publisher.next_generation, newest + 1)

    # --- choosing ---------------------------------------------------------------------------

    def _choose(self, families: list[Family], result: Adoption) -> set[ExtentId]:
        """Extents that stay: the most recently used ones within the limits."""
        families.sort(key=lambda family: float(family.used_us.max()), reverse=True)
        room_bytes = self._config.arena_bytes
        kept: set[ExtentId] = set()
        candidates = []
        for rank, family in enumerate(families):
            for one, used in zip(family.found, family.used_us.tolist(), strict=True):
                if used < 0:
                    result.dropped[one.geometry.extent] = HOLDS_NOTHING
                elif rank >= self._config.max_namespaces:
                    result.dropped[one.geometry.extent] = "too many namespaces"
                else:
                    candidates.append((used, one.geometry))
        candidates.sort(key=lambda pair: pair[0], reverse=True)
        for _, geometry in candidates:
            if geometry.file_bytes <= room_bytes:
                room_bytes -= geometry.file_bytes
                kept.add(geometry.extent)
            else:
                result.dropped[geometry.extent] = "no room in the arena"
        return kept

    def _settle(self, family: Family, kept: set[ExtentId], result: Adoption) -> None:
        """Takes over what of a namespace was chosen."""
        stays = np.array([one.geometry.extent in kept for one in family.found])
        if (family.used_us[~stays] >= 0).any():
            family.weigh(stays[family.graph.rows.file])
            for number in np.flatnonzero(stays & (family.used_us < 0)).tolist():
                stays[number] = False
                result.dropped[family.found[number].geometry.extent] = HOLDS_NOTHING
        reasons: Counter[str] = Counter(result.records_dropped)
        num_rows = len(family.graph.node)
        reasons["replaced by a newer one"] += family.held.num_older
        reasons["without its ancestors"] += family.held.num_lost
        rows = family.rows()
        reasons["in an extent that was dropped"] += (
            num_rows - rows.size - family.held.num_older - family.held.num_lost
        )
        result.records_dropped = dict(+reasons)
        if rows.size:
            self._take_over(family, stays, rows, result)

    # --- taking over ------------------------------------------------------------------------

    def _take_over(
        self, family: Family, stays: NDArray[np.bool_], rows: Ints, result: Adoption
    ) -> None:
        owner = self._roster.adopt(family.namespace, family.fingerprint)
        found_rows = family.graph.rows
        base = np.zeros(len(family.found), np.int64)
        rows = rows[np.argsort(found_rows.file[rows], kind="stable")]
        ends = np.searchsorted(found_rows.file[rows], np.arange(len(base) + 1))
        extents = []
        for number in np.flatnonzero(stays).tolist():
            local = found_rows.local[rows[ends[number] : ends[number + 1]]].astype(np.int64)
            extent = self._add_extent(owner, family.found[number], local)
            extent.used_us = float(family.used_us[number])
            base[number] = extent.base
            extents.append(extent)
        self._growth.adopt(extents, max(extent.extent for extent in extents) + 1)
        result.kept += [extent.extent for extent in extents]
        result.num_sealed += sum(extent.sealed for extent in extents)
        result.num_records += rows.size
        result.num_chunks += self._load(owner, family, base)

    def _add_extent(self, owner: Owner, found: FoundExtent, local: Ints) -> Extent:
        geometry, slots = found.geometry, self._slots
        base = slots.add_extent(geometry.extent, geometry.num_slots)
        end = base + geometry.num_slots
        is_held = np.zeros(geometry.num_slots, np.bool_)
        is_held[local] = True
        slots.state[base:end][is_held] = HELD
        # Of free slots too: whatever is not zero in the file is zeroed before it is used again.
        slots.generation[base:end] = found.records["generation"]
        free = (base + np.flatnonzero(~is_held))[::-1].tolist()
        extent = Extent(geometry, owner, base, Phase.LIVE, free)
        extent.add_held(int(is_held.sum()))
        self._arena.extents[geometry.extent] = extent
        owner.add_extent(extent)
        self._quarantine.seal(extent)
        # What was left out stays out: its ancestors may come again, and a DELETE between.
        others = np.flatnonzero((found.records["checksum"] != 0) & ~is_held)
        if others.size:
            self._outbox.add(VoidRecords(geometry.extent, others.astype(np.uint32)))
        return extent

    def _load(self, owner: Owner, family: Family, base: Ints) -> int:
        """Fills the index and the order of eviction; how many chunks that were."""
        graph, held, rows = family.graph, family.held, family.graph.rows
        nodes = np.flatnonzero(held.depth >= 0)
        place = np.full(len(held.depth), lineage.ROOT, np.int64)
        place[nodes] = np.arange(nodes.size)
        above = graph.parent[nodes]
        cells = held.cells[nodes]
        slots = np.where(cells >= 0, base[rows.file[cells]] + rows.local[cells], ABSENT)
        loaded = load(
            owner.index,
            Nodes(
                key=graph.key[nodes],
                parent=np.where(above >= 0, place[above], lineage.ROOT),
                depth=held.depth[nodes],
                cells=slots.astype(np.int32),
                stamp_us=family.stamps_us()[nodes],
            ),
        )
        self._count(owner, family, loaded.number, cells)
        self._offer(owner, loaded, slots)
        if self.adopted is not None:
            leaves = np.flatnonzero(loaded.is_leaf)
            order = np.argsort(family.stamps_us()[nodes][leaves], kind="stable")
            self.adopted(owner, loaded.number[leaves[order]])
        newest = cells.max(axis=1)
        order = np.flatnonzero(loaded.lacks)
        for at in order[np.argsort(held.depth[nodes[order]], kind="stable")].tolist():
            row = newest[at]
            record = family.found[rows.file[row]].records[rows.local[row]]
            instance = InstanceId(bytes(record["owner"]))
            owner.leaves.watch(int(loaded.number[at]), instance, self._clock.now_us)
        return nodes.size

    def _count(self, owner: Owner, family: Family, nodes: Ints, cells: NDArray[np.int32]) -> None:
        """Counts chunks for the quotas of the salts whose requests stored them."""
        accounts = self._arena.accounts
        if not accounts.by_number:
            return
        rows, newest = family.graph.rows, cells.max(axis=1)
        numbers = np.zeros(nodes.size, np.int32)
        for file, one in enumerate(family.found):
            mine = np.flatnonzero(rows.file[newest] == file)
            tenants = one.records["tenant"][rows.local[newest[mine]]].tolist()
            numbers[mine] = [accounts.number(tenant) for tenant in tenants]
        if numbers.any():
            self._roster.count_accounts(owner)
            owner.index.assign(nodes, numbers)
            accounts.adopted(owner, numbers, cells)

    def _offer(self, owner: Owner, loaded: Loaded, slots: Ints) -> None:
        is_sealed = ((slots != ABSENT) & (self._slots.sealed[slots] != 0)).any(axis=1)
        owner.leaves.load(
            loaded.number[loaded.is_leaf & ~is_sealed].tolist(),
            loaded.number[loaded.is_leaf & is_sealed].tolist(),
        )

    def _finish(self, heritage: Heritage, result: Adoption) -> None:
        dropped = [one for one in heritage.extents if one.geometry.extent in result.dropped]
        for one in dropped:
            self._quarantine.count_foreign(one.geometry)
        for name in heritage.namespaces:
            if name not in self._roster.owners:
                self._outbox.add(DropNamespace(name))
        ids = [one.geometry.extent for one in heritage.extents]
        usable = [number for number in ids if number < MAX_EXTENT]
        self._growth.adopt([], max([heritage.next_extent, *(one + 1 for one in usable)]))
        self._outbox.counters["adopted_chunks"] += result.num_chunks


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without collections, which would go through millions of new objects again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
