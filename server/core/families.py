"""What was found of one namespace: its extents, what they hold, and how useful each is.

Purpose: what the adopter chooses from and builds an index of. Must not know: the budget, other
namespaces, slots. Runs in: the main thread before the loop.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protocol.extents import ExtentGeometry
from protocol.ids import Fingerprint
from protocol.namespace import Namespace
from server.core import lineage
from server.core.adoption import FoundExtent
from server.core.lineage import Ints
from server.core.namespaces import shard_groups

MAX_EXTENT = 1 << 31
"""Ids beyond are none that a server gave; one must not make the next ids overflow."""


@dataclass
class Family:
    """One namespace's extents and what they hold.

    Attributes:
        fingerprint: of the namespace.
        namespace: the namespace.
        found: its extents; the rows of the graph name them by their place here.
        graph: chunks that their records name.
        held: which of them may be held.
        used_us: float64[extents], mean time of last use of what each holds; -1 where that is
            nothing.
    """

    fingerprint: Fingerprint
    namespace: Namespace
    found: list[FoundExtent]
    graph: lineage.Graph
    held: lineage.Survivors = field(init=False)
    used_us: NDArray[np.float64] = field(init=False)

    def weigh(self, usable: NDArray[np.bool_]) -> None:
        """Finds out what may be held and how useful each extent is.

        Args:
            usable: bool[n], rows of the graph that count.
        """
        groups = self.namespace.groups
        full = tuple(groups[one].window_tokens == 0 for one in shard_groups(self.namespace))
        graph = self.graph
        self.held = lineage.survivors(graph, usable, full)
        latest_us = lineage.last_used(graph.parent, self.held.depth, self.stamps_us())
        rows, num = self.rows(), len(self.found)
        files = graph.rows.file[rows]
        counts = np.bincount(files, minlength=num)
        sums = np.bincount(files, weights=latest_us[graph.node[rows]], minlength=num)
        self.used_us = np.where(counts > 0, sums / np.maximum(counts, 1), -1.0)

    def rows(self) -> Ints:
        """int64[held], rows that are held."""
        cells = self.held.cells
        rows: Ints = cells[cells >= 0].astype(np.int64)
        return rows

    def stamps_us(self) -> Ints:
        """int64[nodes], when each was stored last, in microseconds; 0 where nothing is held."""
        newest = self.held.cells.max(axis=1, initial=-1)
        stamps_us = (self.graph.rows.stamp[newest] // np.uint64(1000)).astype(np.int64)
        return np.where(newest >= 0, stamps_us, 0)


def misfit(geometry: ExtentGeometry, namespaces: dict[Fingerprint, Namespace]) -> str:
    """Why an extent cannot be taken over.

    Args:
        geometry: from its header.
        namespaces: those that are known.

    Returns:
        A few words, or nothing when it can.
    """
    namespace = namespaces.get(geometry.fingerprint)
    if namespace is None:
        return "of an unknown namespace"
    if geometry.shard >= namespace.num_shards or geometry.extent >= MAX_EXTENT:
        return "contradicts its namespace"
    stated = (geometry.chunk_blocks, geometry.payload_bytes)
    if stated != (namespace.chunk_blocks, namespace.slot_payload_bytes(geometry.shard)):
        return "contradicts its namespace"
    return ""


def read(found: list[FoundExtent], dropped: Counter[str]) -> lineage.Rows:
    """Reads the records of one namespace.

    Args:
        found: its extents; put in the order of their creation.
        dropped: records that do not count are added to it, by reason.

    Returns:
        The others; each names its extent by its place in ``found``.
    """
    found.sort(key=lambda one: one.geometry.extent)
    parts = []
    for number, one in enumerate(found):
        rows, others = lineage.sound_rows(one.records, one.geometry, number)
        parts.append(rows)
        dropped.update(others)
    return lineage.joined(parts)
