"""One extent goes before another takes its place; a copier's death settles what it owed."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from protocol.extents import ExtentGeometry, cut
from protocol.ids import ArenaId, ExtentId, Fingerprint
from server.copier.wire import MAX_COMMAND_BYTES, Kind, unpack_command
from server.core.effects import HOST_COPIER, CopierId, PoolHandle
from server.shell.copiers import CopierLink
from server.shell.extent_table import ExtentTable
from server.shell.extents import Allocator, ExtentFile
from server.shell.porterlink import PorterLink
from server.shell.reports import ExtentCreated
from tests.server.shell.geometry import make_geometry
from tests.server.shell.reporting import Reports
from tests.wire.process import wait_until


@dataclass
class Setup:
    table: ExtentTable
    link: CopierLink
    reports: Reports
    folder: Path
    links: dict[CopierId, CopierLink]

    def create(self, extent: int, numa_node: int | None = None) -> None:
        self.table.create(make_geometry(extent), 0, numa_node)

    def created(self) -> ExtentFile:
        file = self.reports.wait_for(ExtentCreated).file
        assert file is not None
        self.table.created(file, 0)
        return file

    def names(self) -> set[int]:
        return {int(path.name.partition(".")[0]) for path in self.folder.iterdir()}


@pytest.fixture
def setup(shm_dir: Path) -> Iterator[Setup]:
    with Reports() as reports:
        allocator = Allocator(str(shm_dir), ArenaId(b"a" * 16), reports.reporter)
        allocator.start()
        link = CopierLink()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.attach(ours, os.getpid(), 0)
        links = {HOST_COPIER: link}
        table = ExtentTable(allocator, links)
        yield Setup(table, link, reports, shm_dir, links)
        theirs.close()
        assert allocator.stop(5)
        link.detach()
        table.close()


def test_it_tells_how_much_lies_on_each_node_where_that_is_known(setup: Setup) -> None:
    for extent, lies_on in ((1, 0), (2, 1), (3, 1), (4, None)):
        setup.create(extent, 1)
        setup.created().numa_node = lies_on  # a machine with one node says nothing by itself
    size = make_geometry(1).file_bytes
    assert setup.table.figures() == {"arena_bytes_node_0": size, "arena_bytes_node_1": 2 * size}
    setup.table.remove(ExtentId(1), 0)
    assert setup.table.figures() == {"arena_bytes_node_1": 2 * size}


def test_an_extent_stays_until_the_copier_has_unmapped_it(setup: Setup) -> None:
    setup.create(1)
    first = setup.created()
    assert setup.table[ExtentId(1)] is first
    setup.table.remove(ExtentId(1), 0)
    with pytest.raises(KeyError):
        setup.table[ExtentId(1)]
    setup.create(2)
    setup.create(3)
    setup.table.unmapped(setup.links[HOST_COPIER], ExtentId(9), 0)
    assert setup.names() == {1}
    assert first.writable.is_open()
    setup.table.unmapped(setup.links[HOST_COPIER], ExtentId(1), 0)
    assert [setup.created().geometry.extent for _ in range(2)] == [2, 3]
    assert setup.names() == {2, 3}
    assert not first.writable.is_open()


def test_a_dead_copier_owes_no_answer(setup: Setup) -> None:
    for extent in (1, 2):
        setup.create(extent)
        setup.created()
        setup.table.remove(ExtentId(extent), 0)
        if extent == 1:
            setup.table.unmapped(setup.links[HOST_COPIER], ExtentId(1), 0)
    setup.create(3)
    assert setup.names() <= {2}
    setup.link.detach()
    setup.table.copier_lost(HOST_COPIER, 0)
    assert setup.created().geometry.extent == 3
    # Without a copier nothing maps an extent, so nothing is waited for.
    setup.table.remove(ExtentId(3), 0)
    assert wait_until(lambda: setup.names() == set())


def test_a_copier_that_does_not_answer_keeps_nobody_waiting_for_long(setup: Setup) -> None:
    second_ns = 1_000_000_000
    setup.create(1)
    setup.created()
    assert setup.table.deadline_ns() is None
    setup.table.remove(ExtentId(1), 5 * second_ns)
    assert setup.table.deadline_ns() is None  # nobody waits
    setup.create(2)
    assert setup.table.deadline_ns() == 6 * second_ns
    setup.table.check(6 * second_ns - 1)
    assert setup.names() == {1}
    setup.table.check(6 * second_ns)
    assert setup.created().geometry.extent == 2
    assert setup.names() == {1, 2}  # the file of 1 stays while the copier may write into it
    assert setup.table.deadline_ns() is None
    setup.table.create(make_geometry(3), 7 * second_ns)
    assert setup.created().geometry.extent == 3
    setup.table.unmapped(setup.links[HOST_COPIER], ExtentId(1), 8 * second_ns)
    assert wait_until(lambda: setup.names() == {2, 3})


def test_what_is_left_is_closed(setup: Setup) -> None:
    setup.create(1)
    setup.create(2)
    files = [setup.created(), setup.created()]
    setup.table.remove(ExtentId(1), 0)
    setup.table.close()
    assert not any(file.writable.is_open() for file in files)


# --- devices' copiers -----------------------------------------------------------------------------

DEVICE = CopierId(1)
MINE, THEIRS = Fingerprint(b"f" * 16), Fingerprint(b"o" * 16)


@dataclass
class Peer:
    """A device's copier that answers only when told to."""

    link: CopierLink
    channel: socket.socket

    def commands(self) -> list[tuple[Kind, int]]:
        """What it was sent since the last call."""
        found: list[tuple[Kind, int]] = []
        self.channel.setblocking(False)
        while True:
            try:
                packet, fds, _, _ = socket.recv_fds(self.channel, MAX_COMMAND_BYTES, 1)
            except BlockingIOError:
                return found
            for fd in fds:
                os.close(fd)
            command = unpack_command(packet)
            found.append((command.kind, command.number))


@pytest.fixture
def peer(setup: Setup) -> Iterator[Peer]:
    link = CopierLink()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.attach(ours, os.getpid(), 0)
    setup.links[DEVICE] = link
    made = Peer(link, theirs)
    yield made
    made.channel.close()
    link.detach()


def other(extent: int) -> ExtentGeometry:
    return cut(ExtentId(extent), THEIRS, 0, 1, 16_384, 1 << 20)


def test_a_device_is_passed_the_extents_of_its_namespaces_only(setup: Setup, peer: Peer) -> None:
    setup.create(1)
    setup.created()
    setup.table.create(other(2), 0)
    setup.created()
    assert peer.commands() == []
    setup.table.serve(DEVICE, PoolHandle(5), MINE, 0)
    assert peer.commands() == [(Kind.MAP_EXTENT, 1)]
    setup.table.serve(DEVICE, PoolHandle(6), MINE, 0)
    setup.create(3)
    setup.created()
    setup.table.create(other(4), 0)
    setup.created()
    assert peer.commands() == [(Kind.MAP_EXTENT, 3)]
    setup.table.leave(DEVICE, PoolHandle(5), 0)
    assert peer.commands() == []
    setup.table.leave(DEVICE, PoolHandle(6), 0)
    setup.table.leave(DEVICE, PoolHandle(6), 0)
    assert sorted(peer.commands()) == [(Kind.UNMAP_EXTENT, 1), (Kind.UNMAP_EXTENT, 3)]
    setup.create(5)
    setup.created()
    assert peer.commands() == []


def test_memory_is_free_only_when_a_device_that_left_it_has_unmapped_it(
    setup: Setup, peer: Peer
) -> None:
    """Also when it was mapped again and removed before the first answer came."""
    setup.create(1)
    setup.created()
    setup.table.serve(DEVICE, PoolHandle(5), MINE, 0)
    setup.table.leave(DEVICE, PoolHandle(5), 0)
    setup.table.serve(DEVICE, PoolHandle(6), MINE, 0)
    setup.table.remove(ExtentId(1), 0)
    kinds = [Kind.MAP_EXTENT, Kind.UNMAP_EXTENT, Kind.MAP_EXTENT, Kind.UNMAP_EXTENT]
    assert [kind for kind, _ in peer.commands()] == kinds
    setup.create(2)
    setup.table.unmapped(setup.links[HOST_COPIER], ExtentId(1), 0)
    setup.table.unmapped(setup.links[DEVICE], ExtentId(1), 0)
    assert setup.names() == {1}
    setup.table.unmapped(setup.links[DEVICE], ExtentId(1), 0)
    assert setup.created().geometry.extent == 2
    assert peer.commands() == [(Kind.MAP_EXTENT, 2)]
    assert setup.names() == {2}


def test_the_next_copier_of_a_device_is_passed_what_its_pools_need(
    setup: Setup, peer: Peer
) -> None:
    setup.create(1)
    setup.created()
    setup.table.serve(DEVICE, PoolHandle(5), MINE, 0)
    setup.table.remove(ExtentId(1), 0)
    setup.create(2)
    setup.table.unmapped(setup.links[HOST_COPIER], ExtentId(1), 0)
    peer.link.detach()
    setup.table.copier_lost(DEVICE, 0)
    assert setup.created().geometry.extent == 2
    peer.channel.close()
    ours, peer.channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.link.attach(ours, os.getpid(), 0)
    assert peer.commands() == []
    setup.table.serve(DEVICE, PoolHandle(7), MINE, 0)
    assert peer.commands() == [(Kind.MAP_EXTENT, 2)]


def test_an_extent_stays_until_every_porter_has_unmapped_it_or_is_gone(setup: Setup) -> None:
    porters = [PorterLink(), PorterLink(), PorterLink()]
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in porters[:2]]
    for porter, (ours, _) in zip(porters, pairs, strict=False):
        porter.take_over(ours, os.getpid(), 0)
    table = ExtentTable(setup.table._allocator, setup.links, porters)
    setup.create(1)
    file = setup.reports.wait_for(ExtentCreated).file
    assert file is not None
    table.created(file, 0)
    assert all(porter.has_extent(ExtentId(1)) for porter in porters)
    table.remove(ExtentId(1), 0)
    table.unmapped(setup.link, ExtentId(1), 0)
    table.unmapped(porters[0], ExtentId(1), 0)
    assert setup.names() == {1}
    table.lost(porters[1], 0)
    assert wait_until(lambda: setup.names() == set())
    assert not porters[2].has_extent(ExtentId(1))
    for porter, (_, theirs) in zip(porters, pairs, strict=False):
        porter.detach()
        theirs.close()
    table.close()
