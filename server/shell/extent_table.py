"""The extents that exist, which copier maps which, and how one goes before another comes.

Purpose: the copier for host memory maps every extent, and so does each porter. A device's copier
maps those of the namespaces that its pools are copied to, from the first such pool to the last: an
arena may have hundreds of GiB, of which it needs a part. Memory of a removed extent is free only
once they have unmapped it too; an extent that takes its place in the budget is made after that, or
a full file system could refuse it. But one that does not answer is killed only after ten seconds,
and nobody is to wait so long for room that there may well be: after one second the next extent is
made all the same. Must not know: who reads an extent (the core waited for readers before). Runs
in: the loop thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from protocol.extents import ExtentGeometry
from protocol.ids import ExtentId, Fingerprint
from server.core.effects import HOST_COPIER, CopierId, PoolHandle
from server.shell import clock
from server.shell.copiers import CopierLink
from server.shell.extents import Allocator, ExtentFile
from server.shell.link import Link

PATIENCE_S = 1.0
"""How long making an extent waits for one that goes. Unmapping takes milliseconds."""


@dataclass
class _Leaving:
    """An extent that copiers are asked to unmap."""

    file: ExtentFile
    until_ns: int


class ExtentTable:
    """Extents by id.

    Args:
        allocator: makes and removes the files.
        copiers: map extents.
        porters: map all of them.
    """

    def __init__(
        self,
        allocator: Allocator,
        copiers: Mapping[CopierId, CopierLink],
        porters: Iterable[Link] = (),
    ) -> None:
        self._allocator = allocator
        self._copiers = copiers
        self._porters = tuple(porters)
        self._files: dict[ExtentId, ExtentFile] = {}
        self._leaving: dict[ExtentId, _Leaving] = {}
        self._wanted: deque[tuple[ExtentGeometry, int | None]] = deque()
        self._served: dict[CopierId, dict[PoolHandle, Fingerprint]] = {}
        #: Commands to unmap an extent that a copier or porter has not answered.
        self._unmapping: dict[ExtentId, dict[Link, int]] = {}

    def __getitem__(self, extent: ExtentId) -> ExtentFile:
        """The extent of that id; KeyError when it does not exist (any more)."""
        return self._files[extent]

    def create(self, geometry: ExtentGeometry, now_ns: int, numa_node: int | None = None) -> None:
        """Has an extent made, after those that are leaving are gone or took too long.

        Args:
            geometry: how it is cut.
            now_ns: the clock.
            numa_node: where its memory had better lie; None for anywhere.
        """
        self._wanted.append((geometry, numa_node))
        self.check(now_ns)

    def deadline_ns(self) -> int | None:
        """When ``check`` has something to do, or None."""
        if not self._wanted or not self._leaving:
            return None
        return max(left.until_ns for left in self._leaving.values())

    def check(self, now_ns: int) -> None:
        """Has wanted extents made if nothing stands in their way any more.

        Args:
            now_ns: the clock.
        """
        if all(left.until_ns <= now_ns for left in self._leaving.values()):
            while self._wanted:
                self._allocator.create(*self._wanted.popleft())

    def created(self, file: ExtentFile, now_ns: int) -> None:
        """Takes over a new extent and passes it to the porters, and to the copiers that want it."""
        self._files[file.geometry.extent] = file
        for copier, link in self._copiers.items():
            if self._serves(copier, file.geometry.fingerprint):
                link.add_extent(file, now_ns)
        for porter in self._porters:
            porter.add_extent(file, now_ns)

    def remove(self, extent: ExtentId, now_ns: int) -> None:
        """Has an extent unmapped by the copiers and porters, then unlinked.

        Args:
            extent: which; KeyError when it does not exist.
            now_ns: the clock.
        """
        file = self._files.pop(extent)
        for link in (*self._copiers.values(), *self._porters):
            self._unmap(link, extent, now_ns)
        until_ns = now_ns + int(PATIENCE_S * clock.NS_PER_S)
        self._leaving[extent] = _Leaving(file, until_ns)
        self._settle(extent, now_ns)

    def figures(self) -> dict[str, int]:
        """For STATS: bytes of the extents made by this server on each node where that is known."""
        found: dict[str, int] = {}
        for file in self._files.values():
            if file.numa_node is not None:
                name = f"arena_bytes_node_{file.numa_node}"
                found[name] = found.get(name, 0) + file.geometry.file_bytes
        return found

    # --- whose copier needs what --------------------------------------------------------------

    def serve(
        self, copier: CopierId, handle: PoolHandle, fingerprint: Fingerprint, now_ns: int
    ) -> None:
        """A device's copier has opened a pool: passes it the extents of its namespace.

        Args:
            copier: which.
            handle: the pool.
            fingerprint: of the namespace.
            now_ns: the clock.
        """
        if copier == HOST_COPIER:
            return
        link = self._copiers[copier]
        self._served.setdefault(copier, {})[handle] = fingerprint
        for file in self._files.values():
            geometry = file.geometry
            if geometry.fingerprint == fingerprint and not link.has_extent(geometry.extent):
                link.add_extent(file, now_ns)

    def leave(self, copier: CopierId, handle: PoolHandle, now_ns: int) -> None:
        """A device's copier has a pool no longer: with the last one, its extents are unmapped.

        Args:
            copier: which.
            handle: the pool; one that is unknown, or of host memory, changes nothing.
            now_ns: the clock.
        """
        fingerprint = self._served.get(copier, {}).pop(handle, None)
        if fingerprint is None or self._serves(copier, fingerprint):
            return
        for extent, file in self._files.items():
            if file.geometry.fingerprint == fingerprint:
                self._unmap(self._copiers[copier], extent, now_ns)

    def _serves(self, copier: CopierId, fingerprint: Fingerprint) -> bool:
        return copier == HOST_COPIER or fingerprint in self._served.get(copier, {}).values()

    # --- unmapping ----------------------------------------------------------------------------

    def _unmap(self, link: Link, extent: ExtentId, now_ns: int) -> None:
        if link.remove_extent(extent, now_ns):
            counts = self._unmapping.setdefault(extent, {})
            counts[link] = counts.get(link, 0) + 1

    def unmapped(self, link: Link, extent: ExtentId, now_ns: int) -> None:
        """A copier or porter has unmapped an extent."""
        counts = self._unmapping.get(extent, {})
        left = counts.pop(link, 0) - 1
        if left > 0:
            counts[link] = left
        elif not counts:
            self._unmapping.pop(extent, None)
        self._settle(extent, now_ns)

    def copier_lost(self, copier: CopierId, now_ns: int) -> None:
        """A copier is gone, and its mappings with it.

        What a device's next copier needs is passed to it with its pools.
        """
        link = self._copiers.get(copier)
        if link is None:
            return
        if self._served.pop(copier, None) is not None:
            link.forget_extents()
        self.lost(link, now_ns)

    def lost(self, link: Link, now_ns: int) -> None:
        """A copier or porter is gone, and its mappings with it."""
        for extent in list(self._unmapping):
            self._unmapping[extent].pop(link, None)
            if not self._unmapping[extent]:
                del self._unmapping[extent]
            self._settle(extent, now_ns)

    def close(self) -> None:
        """Closes everything that is left."""
        for file in [*self._files.values(), *(left.file for left in self._leaving.values())]:
            file.close()
        self._files.clear()
        self._leaving.clear()

    def _settle(self, extent: ExtentId, now_ns: int) -> None:
        if extent in self._leaving and extent not in self._unmapping:
            self._allocator.remove(self._leaving.pop(extent).file)
            self.check(now_ns)
