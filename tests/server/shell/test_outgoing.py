"""Queued packets keep their descriptors alive until they are sent or thrown away."""

import os
import socket

import pytest

from server.shell import outgoing
from server.shell.descriptors import Descriptor
from server.shell.outgoing import Outgoing
from server.shell.packets import close_all, receive


def test_what_finds_no_room_is_sent_later_in_order_with_its_descriptor() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptor = Descriptor(os.memfd_create("x"))
    queue = Outgoing()
    with ours, theirs:
        for number in range(2000):
            queue.put(b"%d" % number + bytes(900), descriptor.borrow())
        descriptor.give_back()
        queue.flush(ours)
        assert 0 < len(queue) < 2000
        assert descriptor.is_open()
        for number in range(2000):
            packet, fds, _ = receive(theirs)
            assert packet.rstrip(b"\0") == b"%d" % number
            assert len(fds) == 1
            close_all(fds)
            queue.flush(ours)
    assert len(queue) == 0
    assert not descriptor.is_open()


def test_thrown_away_gives_back() -> None:
    descriptor = Descriptor(os.memfd_create("x"))
    queue = Outgoing()
    for _ in range(outgoing.MAX_PACKETS + 1):
        assert not queue.is_too_long
        queue.put(b"x", descriptor.borrow())
    assert queue.is_too_long
    descriptor.give_back()
    assert descriptor.is_open()
    queue.clear()
    assert not descriptor.is_open()


def is_full(queue: Outgoing) -> bool:
    return queue.is_too_long


def test_long_packets_are_counted_by_their_bytes() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    queue = Outgoing()
    with ours, theirs:
        while not is_full(queue):
            queue.put(bytes(4096), None)
        assert len(queue) == outgoing.MAX_BYTES // 4096 + 1
        queue.flush(ours)
        assert not is_full(queue)
        queue.clear()
    for _ in range(outgoing.MAX_BYTES // 4096):
        queue.put(bytes(4096), None)
    assert not is_full(queue)  # what was thrown away is not counted any more


def test_a_broken_connection_is_an_error() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    queue = Outgoing()
    queue.put(b"x", None)
    with ours, pytest.raises(OSError, match=r"Broken pipe|reset"):
        queue.flush(ours)
