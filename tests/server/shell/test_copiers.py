"""The loop's end of a copier: never blocks, loses nothing, kills what is wedged."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import numpy as np
import pytest

from protocol.ids import ArenaId, ExtentId
from server.copier.wire import (
    MAX_COMMAND_BYTES,
    Answer,
    Kind,
    unpack_command,
)
from server.core.effects import HOST_COPIER, JobId, PoolHandle, StartCopy
from server.shell import clock, extents
from server.shell.copiers import CopierLink
from server.shell.descriptors import Descriptor
from server.shell.packets import close_all
from server.shell.reports import CopierLost, CopierReady
from server.shell.supervisor import Supervisor
from tests.server.shell.geometry import make_geometry
from tests.server.shell.reporting import Reports

Pair = tuple[socket.socket, socket.socket]


def make_pair() -> Pair:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.settimeout(10)
    return ours, theirs


def make_copy(job: int, num_parts: int = 64) -> StartCopy:
    offsets = np.arange(num_parts, dtype=np.int64)
    return StartCopy(HOST_COPIER, JobId(job), PoolHandle(1), ExtentId(1), offsets, offsets, offsets)


def receive(theirs: socket.socket) -> tuple[Kind, int, int]:
    packet, fds, _, _ = socket.recv_fds(theirs, MAX_COMMAND_BYTES, 4)
    close_all(fds)
    command = unpack_command(packet)
    return command.kind, command.number, len(fds)


def test_what_has_no_room_waits_and_goes_out_with_the_answers() -> None:
    link = CopierLink()
    ours, theirs = make_pair()
    link.attach(ours, os.getpid(), 0)
    descriptor = Descriptor(os.memfd_create("x"))
    for job in range(1000):
        link.start(make_copy(job), 0)
    link.open_pool(PoolHandle(5), descriptor, 4096, 0)
    descriptor.give_back()
    assert descriptor.is_open()  # it waits with its packet
    assert link.num_outstanding == 1001
    for job in range(1000):
        assert receive(theirs) == (Kind.COPY, job, 0)
        link.answered(Answer(Kind.COPY, job, None), 0)
    assert receive(theirs) == (Kind.MAP_POOL, 5, 1)
    assert not descriptor.is_open()
    assert link.num_outstanding == 1
    link.detach()
    theirs.close()


def test_a_job_in_several_packets_is_one_outstanding() -> None:
    link = CopierLink()
    ours, theirs = make_pair()
    link.attach(ours, os.getpid(), 0)
    link.start(make_copy(1, 5000), 0)
    assert link.num_outstanding == 1
    assert [receive(theirs)[1] for _ in range(3)] == [1, 1, 1]
    link.detach()
    theirs.close()


def test_every_copier_is_passed_all_extents(shm_dir: Path) -> None:
    files = [
        extents.create(str(shm_dir), make_geometry(number), ArenaId(b"a" * 16))
        for number in (1, 2, 3)
    ]
    link = CopierLink()
    link.add_extent(files[0], 0)  # nobody there yet
    ours, theirs = make_pair()
    link.attach(ours, os.getpid(), 0)
    link.add_extent(files[1], 0)
    link.add_extent(files[2], 0)
    link.remove_extent(ExtentId(2), 0)
    link.remove_extent(ExtentId(2), 0)
    expected = [(Kind.MAP_EXTENT, number, 1) for number in (1, 2, 3)]
    assert [receive(theirs) for _ in range(3)] == expected
    assert receive(theirs) == (Kind.UNMAP_EXTENT, 2, 0)
    link.detach()
    theirs.close()
    ours, theirs = make_pair()
    link.attach(ours, os.getpid(), 0)
    assert [receive(theirs) for _ in range(2)] == [expected[0], expected[2]]
    link.detach()
    theirs.close()
    for file in files:
        file.close()


def test_without_a_copier_commands_are_dropped_and_waiting_ones_given_back() -> None:
    link = CopierLink()
    link.start(make_copy(1), 0)
    link.close_pool(PoolHandle(1), 0)
    assert link.num_outstanding == 0
    assert link.deadline_ns() is None
    ours, theirs = make_pair()
    link.attach(ours, os.getpid(), 0)
    descriptor = Descriptor(os.memfd_create("x"))
    for number in range(2000):
        link.open_pool(PoolHandle(number), descriptor, 4096, 0)
    link.detach()
    assert link.num_outstanding == 0
    descriptor.give_back()
    assert not descriptor.is_open()
    theirs.close()


def test_a_copier_that_is_gone_takes_commands_silently() -> None:
    link = CopierLink()
    ours, theirs = make_pair()
    link.attach(ours, os.getpid(), 0)
    theirs.close()
    link.start(make_copy(1), 0)
    link.start(make_copy(2), 0)
    link.detach()


def test_a_copier_that_a_command_cannot_be_sent_to_is_replaced() -> None:
    with Reports() as reports:
        supervisor = Supervisor(HOST_COPIER, reports.reporter)
        supervisor.start()
        ready = reports.wait_for(CopierReady)
        link = CopierLink()
        link.attach(ready.channel, ready.pid, 0)
        # More than a packet may hold: the kernel refuses it, and no answer would ever come.
        ready.channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        link.start(make_copy(1, 2000), 0)
        reports.wait_for(CopierLost)
        link.detach()
        assert link.num_outstanding == 0
        again = reports.wait_for(CopierReady)
        assert again.pid != ready.pid
        assert supervisor.stop(10)
        again.channel.close()


@pytest.mark.parametrize("with_progress", [False, True])
def test_a_wedged_copier_is_killed_and_one_that_answers_is_not(with_progress: bool) -> None:
    with Reports() as reports:
        supervisor = Supervisor(HOST_COPIER, reports.reporter)
        supervisor.start()
        ready = reports.wait_for(CopierReady)
        os.kill(ready.pid, signal.SIGSTOP)
        link = CopierLink(stall_limit_s=5)
        link.attach(ready.channel, ready.pid, 0)
        link.start(make_copy(1), 1)
        link.start(make_copy(2), 1)
        assert link.deadline_ns() == 1 + 5 * clock.NS_PER_S
        if with_progress:
            link.answered(Answer(Kind.COPY, 1, None), 4 * clock.NS_PER_S)
            assert not link.check(6 * clock.NS_PER_S)
            assert not reports.queue
        assert not link.check(4 * clock.NS_PER_S)
        assert link.check(20 * clock.NS_PER_S)
        reports.wait_for(CopierLost)
        link.detach()
        again = reports.wait_for(CopierReady)
        assert supervisor.stop(10)
        again.channel.close()
