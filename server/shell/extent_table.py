"""The extents that exist, and the order in which one goes and another comes.

Purpose: memory of a removed extent is free only once the copiers have unmapped it too; an extent
that takes its place in the budget is made after that, or a full file system could refuse it. But a
copier that does not answer is killed only after ten seconds, and nobody is to wait so long for room
that there may well be: after one second the next extent is made all the same. Must not know: who
reads an extent (the core waited for readers before). Runs in: the loop thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from protocol.extents import ExtentGeometry
from protocol.ids import ExtentId
from server.core.effects import CopierId
from server.shell import clock
from server.shell.copiers import CopierLink
from server.shell.extents import Allocator, ExtentFile

PATIENCE_S = 1.0
"""How long making an extent waits for one that goes. Unmapping takes milliseconds."""


@dataclass
class _Leaving:
    """An extent that copiers are asked to unmap."""

    file: ExtentFile
    awaited: set[CopierId]
    until_ns: int


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

    def create(self, geometry: ExtentGeometry, now_ns: int) -> None:
        """Has an extent made, after those that are leaving are gone or took too long.

        Args:
            geometry: how it is cut.
            now_ns: the clock.
        """
        self._wanted.append(geometry)
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
                self._allocator.create(self._wanted.popleft())

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
        until_ns = now_ns + int(PATIENCE_S * clock.NS_PER_S)
        self._leaving[extent] = _Leaving(file, awaited, until_ns)
        self._settle(extent, now_ns)

    def unmapped(self, copier: CopierId, extent: ExtentId, now_ns: int) -> None:
        """A copier has unmapped an extent."""
        if extent in self._leaving:
            self._leaving[extent].awaited.discard(copier)
            self._settle(extent, now_ns)

    def copier_lost(self, copier: CopierId, now_ns: int) -> None:
        """A copier is gone, and its mappings with it."""
        for extent in list(self._leaving):
            self.unmapped(copier, extent, now_ns)

    def close(self) -> None:
        """Closes everything that is left."""
        for file in [*self._files.values(), *(left.file for left in self._leaving.values())]:
            file.close()
        self._files.clear()
        self._leaving.clear()

    def _settle(self, extent: ExtentId, now_ns: int) -> None:
        if not self._leaving[extent].awaited:
            self._allocator.remove(self._leaving.pop(extent).file)
            self.check(now_ns)
