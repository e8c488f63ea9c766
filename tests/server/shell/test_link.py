"""The loop's end of a child: never blocks, counts what is owed, gives up who does not answer."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from protocol.ids import ArenaId, ExtentId
from server.shell import clock, extents
from server.shell.extents import ExtentFile
from server.shell.link import Link
from tests.server.shell.geometry import make_geometry

SECOND = clock.NS_PER_S


class Plain(Link):
    """Packets that say what they are."""

    def pack_map(self, file: ExtentFile) -> bytes:
        return b"map %d" % file.geometry.extent

    def pack_unmap(self, extent: ExtentId) -> bytes:
        return b"unmap %d" % extent


class Rig:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.link = Plain(stall_limit_s=5)
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.theirs.settimeout(5)
        self.files: list[ExtentFile] = []

    def attach(self) -> None:
        self.link.take_over(self.ours, os.getpid(), 0)

    def file(self, number: int) -> ExtentFile:
        made = extents.create(self.folder, make_geometry(number), ArenaId(b"a" * 16))
        self.files.append(made)
        return made

    def received(self) -> tuple[bytes, int]:
        """The next packet, and the number of the file that came with it, 0 for none."""
        packet, ancillary, _, _ = self.theirs.recvmsg(100_000, socket.CMSG_SPACE(4))
        inode = 0
        for _, _, data in ancillary:
            fd = int.from_bytes(data[:4], "little")
            inode = os.fstat(fd).st_ino
            os.close(fd)
        return packet, inode


@pytest.fixture
def rig(shm_dir: object) -> Iterator[Rig]:
    made = Rig(str(shm_dir))
    yield made
    made.link.detach()
    made.theirs.close()
    made.ours.close()
    for file in made.files:
        file.close()


def test_every_child_is_passed_every_extent(rig: Rig) -> None:
    first = rig.file(1)
    rig.link.add_extent(first, 0)
    assert rig.link.num_outstanding == 0
    rig.attach()
    rig.link.add_extent(rig.file(2), 0)
    assert rig.link.num_outstanding == 2
    packet, inode = rig.received()
    assert (packet, inode) == (b"map 1", os.stat(first.path).st_ino)
    assert rig.received()[0] == b"map 2"
    assert rig.link.has_extent(ExtentId(2))
    assert rig.link.remove_extent(ExtentId(2), 0)
    assert not rig.link.remove_extent(ExtentId(2), 0)
    assert rig.received()[0] == b"unmap 2"


def test_without_a_child_nothing_is_sent_and_no_answer_will_come(rig: Rig) -> None:
    rig.link.send(b"x", None, 0)
    rig.link.add_extent(rig.file(1), 0)
    assert not rig.link.remove_extent(ExtentId(1), 0)
    assert rig.link.num_outstanding == 0
    assert rig.link.deadline_ns() is None


def test_what_does_not_fit_waits_and_goes_in_order_when_there_is_room(rig: Rig) -> None:
    rig.attach()
    packets = [b"%06d" % number + bytes(20_000) for number in range(100)]
    for packet in packets:
        rig.link.send(packet, None, 0)
    assert rig.link.num_outstanding == 100
    for packet in packets:
        assert rig.received()[0] == packet
        rig.link.heard(1)
    assert rig.link.num_outstanding == 0


def test_only_a_whole_command_is_answered(rig: Rig) -> None:
    rig.attach()
    rig.link.send(b"half", None, 0, is_whole=False)
    rig.link.send(b"whole", None, 0)
    assert rig.link.num_outstanding == 1


def test_a_child_that_answers_nothing_is_given_up_and_signs_of_life_count(rig: Rig) -> None:
    rig.attach()
    rig.link.send(b"x", None, 1 * SECOND)
    assert rig.link.deadline_ns() == 6 * SECOND
    rig.link.heard(4 * SECOND, is_answer=False)
    assert rig.link.num_outstanding == 1
    assert not rig.link.check(6 * SECOND)
    assert rig.link.check(9 * SECOND)
    assert rig.received()[0] == b"x"
    assert rig.received()[0] == b""


def test_what_is_first_after_a_pause_has_the_whole_limit(rig: Rig) -> None:
    rig.attach()
    rig.link.send(b"x", None, 0)
    rig.link.heard(1)
    rig.link.send(b"y", None, 100 * SECOND)
    assert not rig.link.check(104 * SECOND)


def test_a_command_that_cannot_be_sent_gives_the_child_up(rig: Rig) -> None:
    rig.attach()
    rig.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    rig.link.send(bytes(100_000), None, 0)
    assert rig.received()[0] == b""


def test_a_lost_child_owes_nothing_and_its_descriptors_are_given_back(rig: Rig) -> None:
    rig.attach()
    for number in range(200):
        rig.link.send(bytes(20_000), None, number)
    rig.link.add_extent(rig.file(1), 0)
    num_fds = len(os.listdir("/proc/self/fd"))
    rig.link.detach()
    assert (rig.link.num_outstanding, rig.link.pid) == (0, 0)
    rig.link.forget_extents()
    assert not rig.link.has_extent(ExtentId(1))
    assert len(os.listdir("/proc/self/fd")) <= num_fds


def test_one_that_owes_an_answer_is_silent_until_it_is_heard(rig: Rig) -> None:
    rig.link.add_extent(rig.file(1), 0)
    assert rig.link.silent_s(9 * SECOND) == 0, "nothing runs that could answer"
    rig.attach()
    assert rig.link.silent_s(2 * SECOND) == 2
    rig.link.add_extent(rig.file(2), 3 * SECOND)
    assert rig.link.silent_s(4 * SECOND) == 4, "more work is no answer"
    rig.link.heard(4 * SECOND)
    assert rig.link.silent_s(5 * SECOND) == 1
    rig.link.heard(5 * SECOND)
    assert rig.link.silent_s(9 * SECOND) == 0
