"""The extents that exist, and the order in which one goes and another comes.

Purpose: memory of a removed extent is free only once the copiers have unmapped it too; an extent
that takes its place in the budget is made after that, or a full file system could refuse it. A
copier that does not answer is killed by its own limit, so nothing waits for ever. Must not know:
who reads an extent (the core waited for readers before). Runs in: the loop thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from protocol.extents import ExtentGeometry
from protocol.ids import ExtentId
from server.core.effects import CopierId
from server.shell.copiers import CopierLink
from server.shell.extents import Allocator, ExtentFile


@dataclass
class _Leaving:
    """An extent that copiers are asked to unmap."""

    file: ExtentFile
    awaited: set[CopierId]


class ExtentTable:
    """Extents by id.

    Args:
        allocator: makes and removes the files.
        copiers: map every extent.
    """

    def __init__(self, allocator: Allocator, copiers: Mapping[CopierId, CopierLink]) -> None:
        self._allocator = allocator
        self._copiers = copiers
        self._files: dict[ExtentId, ExtentFile] = {}
        self._leaving: dict[ExtentId, _Leaving] = {}
        self._wanted: deque[ExtentGeometry] = deque()

    def __getitem__(self, extent: ExtentId) -> ExtentFile:
        """The extent of that id; KeyError when it does not exist (any more)."""
        return self._files[extent]

    def create(self, geometry: ExtentGeometry) -> None:
        """Has an extent made, after those that are leaving are gone."""
        self._wanted.append(geometry)
        self._go_on()

    def created(self, file: ExtentFile, now_ns: int) -> None:
        """Takes over a new extent and passes it to the copiers."""
        self._files[file.geometry.extent] = file
        for link in self._copiers.values():
            link.add_extent(file, now_ns)

    def remove(self, extent: ExtentId, now_ns: int) -> None:
        """Has an extent unmapped by the copiers, then unlinked.

        Args:
            extent: which; KeyError when it does not exist.
            now_ns: the clock.
        """
        file = self._files.pop(extent)
        awaited = {
            copier for copier, link in self._copiers.items() if link.remove_extent(extent, now_ns)
        }
        self._leaving[extent] = _Leaving(file, awaited)
        self._settle(extent)

    def unmapped(self, copier: CopierId, extent: ExtentId) -> None:
        """A copier has unmapped an extent."""
        if extent in self._leaving:
            self._leaving[extent].awaited.discard(copier)
            self._settle(extent)

    def copier_lost(self, copier: CopierId) -> None:
        """A copier is gone, and its mappings with it."""
        for extent in list(self._leaving):
            self.unmapped(copier, extent)

    def close(self) -> None:
        """Closes everything that is left."""
        for file in [*self._files.values(), *(left.file for left in self._leaving.values())]:
            file.close()
        self._files.clear()
        self._leaving.clear()

    def _settle(self, extent: ExtentId) -> None:
        if not self._leaving[extent].awaited:
            self._allocator.remove(self._leaving.pop(extent).file)
            self._go_on()

    def _go_on(self) -> None:
        while self._wanted and not self._leaving:
            self._allocator.create(self._wanted.popleft())
