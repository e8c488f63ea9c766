"""The loop's end of a child process: sends commands without blocking, knows what is outstanding.

Purpose: what the socket has no room for waits here; every command is answered, so an answer comes
and makes room. A child that stops answering, or that a command cannot be sent to, is given up: its
socket is shut down, whereupon its supervisor kills it and starts another. Every child maps extents.
Must not know: how the process is started, what else it is asked. Runs in: the loop thread.
"""

from __future__ import annotations

import array
import socket
from abc import ABC, abstractmethod
from collections import deque

from protocol.ids import ExtentId
from server.shell import clock
from server.shell.descriptors import Descriptor
from server.shell.extents import ExtentFile

STALL_LIMIT_S = 10.0
"""Time without any answer, commands outstanding, after which a child counts as wedged. A piece of
32 MiB takes a copier about 5 ms."""


class Link(ABC):
    """Commands to one child; a subclass knows how they are packed.

    Attributes:
        num_outstanding: commands without an answer.
        pid: of the running child, or 0.
    """

    def __init__(self, stall_limit_s: float = STALL_LIMIT_S) -> None:
        self.num_outstanding = 0
        self.pid = 0
        self._stall_limit_ns = int(stall_limit_s * clock.NS_PER_S)
        self._progress_ns = 0
        self._channel: socket.socket | None = None
        self._waiting: deque[tuple[bytes, Descriptor | None]] = deque()
        self._extents: dict[ExtentId, ExtentFile] = {}

    @abstractmethod
    def pack_map(self, file: ExtentFile) -> bytes:
        """The command to map an extent, whose descriptor rides on it."""

    @abstractmethod
    def pack_unmap(self, extent: ExtentId) -> bytes:
        """The command to unmap an extent."""

    def take_over(self, channel: socket.socket, pid: int, now_ns: int) -> None:
        """Takes over a child that has started, and passes it every extent.

        Args:
            channel: SOCK_SEQPACKET to it; owned from here on.
            pid: its process id, for people.
            now_ns: the clock.
        """
        self._channel = channel
        self.pid = pid
        self._progress_ns = now_ns
        for file in self._extents.values():
            self.send(self.pack_map(file), file.writable, now_ns)

    def detach(self) -> None:
        """Forgets a child that is gone, and what it owed."""
        while self._waiting:
            _, descriptor = self._waiting.popleft()
            if descriptor is not None:
                descriptor.give_back()
        if self._channel is not None:
            self._channel.close()
        self._channel, self.pid, self.num_outstanding = None, 0, 0

    def add_extent(self, file: ExtentFile, now_ns: int) -> None:
        """Passes an extent to this child and to those that follow it."""
        self._extents[file.geometry.extent] = file
        self.send(self.pack_map(file), file.writable, now_ns)

    def forget_extents(self) -> None:
        """The child is gone, and its successor is passed only what is asked for again."""
        self._extents.clear()

    def has_extent(self, extent: ExtentId) -> bool:
        """Whether an extent is passed to this child and its successors."""
        return extent in self._extents

    def remove_extent(self, extent: ExtentId, now_ns: int) -> bool:
        """Has an extent unmapped.

        Args:
            extent: which.
            now_ns: the clock.

        Returns:
            Whether an answer (or the child's loss) will follow; without one, nothing maps it.
        """
        if self._extents.pop(extent, None) is None or self._channel is None:
            return False
        self.send(self.pack_unmap(extent), None, now_ns)
        return True

    def heard(self, now_ns: int, is_answer: bool = True) -> None:
        """Notes a packet of the child, which also means that the socket may have room again.

        Args:
            now_ns: the clock.
            is_answer: whether it answers a command; else it only shows that the child gets on.
        """
        if is_answer:
            self.num_outstanding = max(0, self.num_outstanding - 1)
        self._progress_ns = now_ns
        self._flush()

    def stall_limit_ns(self) -> int:
        """How long what is outstanding now may take without any answer."""
        return self._stall_limit_ns

    def deadline_ns(self) -> int | None:
        """When ``check`` has something to do, or None."""
        if self._channel is None or self.num_outstanding == 0:
            return None
        return self._progress_ns + self.stall_limit_ns()

    def silent_s(self, now_ns: int) -> float:
        """For how long something has been outstanding without any answer, in seconds; 0 for none.

        Args:
            now_ns: the clock.
        """
        if self._channel is None or self.num_outstanding == 0:
            return 0.0
        return max(0, now_ns - self._progress_ns) / clock.NS_PER_S

    def check(self, now_ns: int) -> bool:
        """Gives the child up if it is wedged.

        Args:
            now_ns: the clock.

        Returns:
            Whether it was given up; the report of its loss follows.
        """
        due_ns = self.deadline_ns()
        if due_ns is None or now_ns < due_ns:
            return False
        self._progress_ns = now_ns
        self._give_up()
        return True

    def send(
        self, packet: bytes, descriptor: Descriptor | None, now_ns: int, is_whole: bool = True
    ) -> None:
        """Queues and sends. Without a child it is dropped: the next one is told everything.

        Args:
            packet: a command.
            descriptor: borrowed until it is sent.
            now_ns: the clock.
            is_whole: whether an answer follows; else more packets of the command do.
        """
        if self._channel is None:
            return
        if is_whole:
            if self.num_outstanding == 0:
                self._progress_ns = now_ns
            self.num_outstanding += 1
        borrowed = None if descriptor is None else descriptor.borrow()
        self._waiting.append((packet, borrowed))
        self._flush()

    def _give_up(self) -> None:
        if self._channel is not None:
            try:
                self._channel.shutdown(socket.SHUT_RDWR)
            except OSError:  # its other end is closed: the supervisor knows
                pass

    def _flush(self) -> None:
        while self._waiting and self._channel is not None:
            packet, descriptor = self._waiting[0]
            rights = []
            if descriptor is not None:
                fds = array.array("i", [descriptor.fd])
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
            try:
                self._channel.sendmsg([packet], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                # Its other end is closed, or the kernel refuses the packet or its descriptor. A
                # command left out would be waited for for ever, so it is given up either way: the
                # report of its loss follows and settles what was outstanding.
                self._give_up()
            self._waiting.popleft()
            if descriptor is not None:
                descriptor.give_back()
