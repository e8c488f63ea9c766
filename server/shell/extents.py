"""Extent files: made and removed in a thread of their own, records written by the loop.

Purpose: a file is allocated whole before anybody maps it, so that a full file system is an error
of that extent and never a SIGBUS (host contract of the arena: never truncated, only unlinked).
Must not know: who an extent is for, which slots are in use. Runs in: ``Allocator`` in its own
thread; ``ExtentFile`` in the loop thread once it was reported.
"""

from __future__ import annotations

import logging
import mmap
import os
import select
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.extents import RECORD_DTYPE, RECORDS_OFFSET_BYTES, ExtentGeometry, pack_header
from protocol.ids import ArenaId, Fingerprint
from protocol.namespace import Namespace
from server import numa
from server.core.effects import DropOwed, KeepOwed, KeepQuotas
from server.shell import namespacefiles, owedfiles, quotafile
from server.shell.descriptors import Descriptor
from server.shell.inbox import Inbox
from server.shell.reports import ExtentCreated, OwedKept, Reporter

_log = logging.getLogger("kvkeep.server")

EXTENT_SUFFIX = ".extent"

_ONE_NODE: numa.Nodes = {}


def extent_path(directory: str, extent: int) -> str:
    """Where an extent file lies."""
    return f"{directory}/{extent:08d}{EXTENT_SUFFIX}"


@dataclass(eq=False)
class ExtentFile:
    """One extent as the main process holds it: its records and two descriptors.

    Attributes:
        geometry: how the file is cut.
        path: where it lies.
        writable: for copiers.
        readable: for engines; opened read-only, so a mapping of it cannot be made writable.
        records: RECORD_DTYPE[num_slots], mapped; the slots themselves are not mapped here.
        wanted_node: NUMA node on which its memory should lie; None for anywhere.
        numa_node: on which most of it lies; None where that is not known, as of a machine with one
            node, and of files of a former server.
    """

    geometry: ExtentGeometry
    path: str
    writable: Descriptor
    readable: Descriptor
    records: NDArray[Any]
    wanted_node: int | None = None
    numa_node: int | None = None

    @property
    def is_far(self) -> bool:
        """Whether it lies elsewhere than it should."""
        return None not in (self.wanted_node, self.numa_node) and (
            self.wanted_node != self.numa_node
        )

    def void(self, slots: NDArray[np.uint32]) -> None:
        """Zeroes checksums, before the slots' bytes change.

        Args:
            slots: uint32[n].
        """
        self.records["checksum"][slots] = 0

    def reuse(self, slots: NDArray[np.uint32]) -> None:
        """Zeroes checksums, then generations, before other bytes come into the slots.

        A reader that is late, against all rules, then sees that its slot was given away even
        while the new bytes are not published yet. Nobody has a right to read these slots, so
        nobody's check fails who is in time.

        Args:
            slots: uint32[n], without pins.
        """
        self.void(slots)
        self.records["generation"][slots] = 0

    def write(self, slots: NDArray[np.uint32], rows: NDArray[Any]) -> None:
        """Publishes records: checksums are zero while the other fields change.

        Args:
            slots: uint32[n].
            rows: RECORD_DTYPE[n], checksums included.
        """
        body = rows.copy()
        body["checksum"] = 0
        self.records[slots] = body
        # Its own statement after the fields: a kill in between leaves the records void.
        self.records["checksum"][slots] = rows["checksum"]

    def of_salt(
        self, begin: int, end: int, salt: bytes
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Slots whose records name a salt, and the records' generations.

        Args:
            begin: first slot to look at.
            end: behind the last one.
            salt: digest of it.
        """
        rows = self.records[begin:end]
        found = np.flatnonzero((rows["tenant"] == np.void(salt)) & (rows["checksum"] != 0))
        return begin + found, rows["generation"][found].astype(np.int64)

    def close(self) -> None:
        """Gives both descriptors back and drops the mapping."""
        self.writable.give_back()
        self.readable.give_back()
        self.records = np.empty(0, dtype=RECORD_DTYPE)


def create(
    directory: str,
    geometry: ExtentGeometry,
    arena: ArenaId,
    numa_node: int | None = None,
    nodes: numa.Nodes = _ONE_NODE,
) -> ExtentFile:
    """Makes, allocates and heads one extent file.

    Args:
        directory: the arena's.
        geometry: how the file is cut.
        arena: goes into the header.
        numa_node: where its memory had better lie; None for anywhere.
        nodes: of the machine.

    Returns:
        The file; the caller closes it.

    Raises:
        OSError: no room, or the id was used before; nothing is left behind then.
    """
    path = extent_path(directory, geometry.extent)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with numa.near(numa_node, nodes):
            os.posix_fallocate(fd, 0, geometry.file_bytes)
        lies_on = numa.node_of_file(fd, geometry.file_bytes) if len(nodes) > 1 else None
        os.pwrite(fd, pack_header(geometry, arena), 0)
        records = map_records(fd, geometry)
        os.fchmod(fd, 0o400)
        readable = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except BaseException:
        os.close(fd)
        remove(path)
        raise
    return ExtentFile(
        geometry,
        path,
        Descriptor(fd),
        Descriptor(readable),
        records,
        wanted_node=numa_node if numa_node in nodes and len(nodes) > 1 else None,
        numa_node=lies_on,
    )


def map_records(fd: int, geometry: ExtentGeometry) -> NDArray[Any]:
    """Maps the records of an extent file.

    Args:
        fd: of the file, writable; may be closed afterwards.
        geometry: how the file is cut.

    Returns:
        RECORD_DTYPE[num_slots], shared with the file.
    """
    mapping = mmap.mmap(fd, geometry.data_offset_bytes, mmap.MAP_SHARED)
    return np.frombuffer(
        mapping, dtype=RECORD_DTYPE, count=geometry.num_slots, offset=RECORDS_OFFSET_BYTES
    )


def remove(path: str) -> None:
    """Unlinks an extent file; its memory goes with the last mapping.

    Args:
        path: of the file; one that is gone already is fine.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


@dataclass(frozen=True)
class _Make:
    """An extent that is to be made, and the node where its memory had better lie."""

    geometry: ExtentGeometry
    numa_node: int | None


@dataclass(frozen=True)
class _Keep:
    """A namespace whose file is to be written."""

    name: Fingerprint
    namespace: Namespace


@dataclass(frozen=True)
class _Drop:
    """A namespace whose file is to be removed."""

    name: Fingerprint


@dataclass(frozen=True)
class _Owed:
    """What a tier is still to forget, to be written down or removed."""

    what: KeepOwed | DropOwed
    store: str


Item = _Make | ExtentFile | Descriptor | _Keep | _Drop | _Owed | KeepQuotas


class Allocator:
    """The thread that makes and removes files of the arena, in the order asked, and closes pools.

    Args:
        directory: the arena's.
        arena: its id.
        reporter: used by the thread alone.
        stand: makes the directory again if somebody removed it; OSError when it cannot.
        nodes: of the machine's memory.
    """

    def __init__(
        self,
        directory: str,
        arena: ArenaId,
        reporter: Reporter,
        stand: Callable[[], None] = lambda: None,
        nodes: numa.Nodes = _ONE_NODE,
    ) -> None:
        self._stand = stand
        self._nodes = nodes
        self._directory = directory
        self._arena = arena
        self._reporter = reporter
        self._unwritten: dict[Fingerprint, Namespace] = {}
        self._inbox: Inbox[Item | None] = Inbox()
        self._thread = threading.Thread(target=self._run, name="kvkeep-arena", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def create(self, geometry: ExtentGeometry, numa_node: int | None = None) -> None:
        """Asks for an extent; ExtentCreated reports the outcome. Does not block.

        Args:
            geometry: how it is cut.
            numa_node: where its memory had better lie; None for anywhere.
        """
        self._inbox.put(_Make(geometry, numa_node))

    def remove(self, file: ExtentFile) -> None:
        """Hands an extent file over to be unlinked and closed. Does not block.

        Freeing a gigabyte of pages takes tens of milliseconds, which the loop must not spend.
        """
        self._inbox.put(file)

    def keep_namespace(self, name: Fingerprint, namespace: Namespace) -> None:
        """Has a namespace's file written, before extents asked for later. Does not block.

        While that fails, so does making its extents: no later server would know whose they are.
        """
        self._inbox.put(_Keep(name, namespace))

    def drop_namespace(self, name: Fingerprint) -> None:
        """Has a namespace's file removed. Does not block."""
        self._inbox.put(_Drop(name))

    def keep_owed(self, owed: KeepOwed, store: str) -> None:
        """Has written down what a tier's store is still to forget; OwedKept follows. Never blocks.

        Args:
            owed: what.
            store: as ``owedfiles.store_of`` names it.
        """
        self._inbox.put(_Owed(owed, store))

    def drop_owed(self, owed: DropOwed, store: str) -> None:
        """Has that removed again. Does not block."""
        self._inbox.put(_Owed(owed, store))

    def keep_quotas(self, kept: KeepQuotas) -> None:
        """Has the quotas written down. Does not block; a failure is logged."""
        self._inbox.put(kept)

    def close(self, descriptor: Descriptor) -> None:
        """Hands a pool's descriptor over to be given back. Does not block.

        It may be the last one of a dead engine's pool: closing it then frees gigabytes.
        """
        self._inbox.put(descriptor)

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread after what it was asked before.

        Args:
            timeout_s: longest wait.

        Returns:
            Whether it ended.
        """
        if self._thread.ident is None:
            return True
        self._inbox.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._inbox.fd, select.POLLIN)
        while True:
            poller.poll()
            for item in self._inbox.take_all():
                if item is None:
                    return
                if isinstance(item, _Make):
                    self._create(item)
                else:
                    self._do(item)

    def _create(self, wanted: _Make) -> None:
        geometry = wanted.geometry
        try:
            self._stand()
            self._keep(geometry.fingerprint)  # a full file system may have room again
            where = (self._directory, geometry, self._arena, wanted.numa_node, self._nodes)
            file, error = create(*where), None
        except Exception as caught:  # noqa: BLE001 - whatever it is, somebody waits to be told
            file = None
            error = f"extent {geometry.extent} of {geometry.file_bytes} bytes: {caught}"
            _log.warning("%s", error)
        self._reporter.post(ExtentCreated(geometry.extent, file, error))

    def _keep(self, name: Fingerprint) -> None:
        """Writes a namespace's file if it is asked for and not written yet."""
        namespace = self._unwritten.get(name)
        if namespace is not None:
            namespacefiles.keep(self._directory, name, namespace)
            del self._unwritten[name]

    def _owe(self, owed: KeepOwed | DropOwed, store: str) -> None:
        if isinstance(owed, DropOwed):
            owedfiles.drop(self._directory, store, owed.fingerprint)
            return
        try:
            self._stand()
            owedfiles.keep(self._directory, store, owed)
        finally:  # who waits cannot do more about it
            self._reporter.post(OwedKept(owed.tier, owed.fingerprint, owed.serial))

    def _do(self, item: ExtentFile | Descriptor | _Keep | _Drop | _Owed | KeepQuotas) -> None:
        try:
            if isinstance(item, Descriptor):
                item.give_back()
            elif isinstance(item, _Keep):
                self._unwritten[item.name] = item.namespace
                self._stand()
                self._keep(item.name)
            elif isinstance(item, _Drop):
                self._unwritten.pop(item.name, None)
                namespacefiles.drop(self._directory, item.name)
            elif isinstance(item, _Owed):
                self._owe(item.what, item.store)
            elif isinstance(item, KeepQuotas):
                self._stand()
                quotafile.keep(self._directory, item.quotas)
            else:
                try:
                    remove(item.path)
                finally:
                    item.close()
        except OSError as error:
            _log.warning("the arena's folder: %s could not be done: %s", _named(item), error)
        except Exception:  # noqa: BLE001 - the thread outlives it
            _log.exception("%s could not be let go", _named(item))


def _named(item: ExtentFile | Descriptor | _Keep | _Drop | _Owed | KeepQuotas) -> str:
    """What was to be done, for the log: no keys, and no digests but a namespace's fingerprint."""
    if isinstance(item, _Keep | _Drop):
        return f"the file of namespace {item.name.hex()}"
    if isinstance(item, _Owed):
        return f"the file of what a tier is to forget of namespace {item.what.fingerprint.hex()}"
    if isinstance(item, ExtentFile):
        return f"the removal of {item.path}"
    return "the file of quotas" if isinstance(item, KeepQuotas) else "the close of a descriptor"
