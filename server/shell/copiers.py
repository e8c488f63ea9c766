"""The loop's end of a copier: sends commands without blocking, knows what is outstanding.

Purpose: what the socket has no room for waits here; every command is answered, so an answer comes
and makes room. A copier that stops answering, or that a command cannot be sent to, is given up:
its socket is shut down, whereupon its supervisor kills it and starts another. Must not know: how
the process is started, what jobs are for. Runs in: the loop thread.
"""

from __future__ import annotations

import array
import socket
from collections import deque

from protocol.ids import ExtentId
from protocol.layout import CudaIpcMemory
from server.copier.wire import Answer, Command, Kind, copy_commands, pack_command
from server.core.effects import PoolHandle, StartCopy
from server.shell import clock
from server.shell.descriptors import Descriptor
from server.shell.extents import ExtentFile

STALL_LIMIT_S = 10.0
"""Time without any answer, commands outstanding, after which a copier counts as wedged. A piece
of 32 MiB takes about 5 ms."""


class CopierLink:
    """Commands to one copier.

    Attributes:
        num_outstanding: commands without an answer.
        pid: of the running copier, or 0.
        device_bytes: memory of a device that the running copier takes, 0 for none or unknown.
        numa_node: of the machine's memory on which the running copier was placed, -1 for none.
    """

    def __init__(self, stall_limit_s: float = STALL_LIMIT_S) -> None:
        self.num_outstanding = 0
        self.pid = 0
        self.device_bytes = 0
        self.numa_node = -1
        self._stall_limit_ns = int(stall_limit_s * clock.NS_PER_S)
        self._progress_ns = 0
        self._channel: socket.socket | None = None
        self._waiting: deque[tuple[bytes, Descriptor | None]] = deque()
        self._extents: dict[ExtentId, ExtentFile] = {}

    def attach(
        self,
        channel: socket.socket,
        pid: int,
        now_ns: int,
        device_bytes: int = 0,
        numa_node: int = -1,
    ) -> None:
        """Takes over a copier that has started, and passes it every extent.

        Args:
            channel: SOCK_SEQPACKET to it; owned from here on.
            pid: its process id, for people.
            now_ns: the clock.
            device_bytes: memory of a device that it takes.
            numa_node: where it was placed, -1 for nowhere.
        """
        self._channel = channel
        self.pid = pid
        self.device_bytes = device_bytes
        self.numa_node = numa_node
        self._progress_ns = now_ns
        for file in self._extents.values():
            self._map_extent(file, now_ns)

    def detach(self) -> None:
        """Forgets a copier that is gone, and what it owed."""
        while self._waiting:
            _, descriptor = self._waiting.popleft()
            if descriptor is not None:
                descriptor.give_back()
        if self._channel is not None:
            self._channel.close()
        self._channel, self.pid, self.num_outstanding = None, 0, 0
        self.device_bytes, self.numa_node = 0, -1

    def add_extent(self, file: ExtentFile, now_ns: int) -> None:
        """Passes an extent to this copier and to those that follow it."""
        self._extents[file.geometry.extent] = file
        self._map_extent(file, now_ns)

    def forget_extents(self) -> None:
        """The copier is gone, and its successor is passed only what is asked for again."""
        self._extents.clear()

    def has_extent(self, extent: ExtentId) -> bool:
        """Whether an extent is passed to this copier and its successors."""
        return extent in self._extents

    def remove_extent(self, extent: ExtentId, now_ns: int) -> bool:
        """Has an extent unmapped.

        Args:
            extent: which.
            now_ns: the clock.

        Returns:
            Whether an answer (or CopierLost) will follow; without a copier, nothing maps it.
        """
        if self._extents.pop(extent, None) is None or self._channel is None:
            return False
        self._send(Command(Kind.UNMAP_EXTENT, extent), None, now_ns)
        return True

    def open_pool(
        self, handle: PoolHandle, descriptor: Descriptor, size_bytes: int, now_ns: int
    ) -> None:
        """Has a pool mapped.

        Args:
            handle: its number.
            descriptor: borrowed until it is sent.
            size_bytes: length to map.
            now_ns: the clock.
        """
        command = Command(Kind.MAP_POOL, handle, size_bytes=size_bytes)
        self._send(command, descriptor, now_ns)

    def open_handle(self, handle: PoolHandle, memory: CudaIpcMemory, now_ns: int) -> None:
        """Has a pool of device memory opened.

        Args:
            handle: its number.
            memory: where it lies.
            now_ns: the clock.
        """
        command = Command(
            Kind.OPEN_POOL,
            handle,
            size_bytes=memory.size_bytes,
            offset_bytes=memory.base_offset_bytes,
            handle=memory.handle,
        )
        self._send(command, None, now_ns)

    def close_pool(self, handle: PoolHandle, now_ns: int) -> None:
        """Has a pool unmapped."""
        self._send(Command(Kind.UNMAP_POOL, handle), None, now_ns)

    def start(self, copy: StartCopy, now_ns: int) -> None:
        """Has a piece copied."""
        commands = copy_commands(
            copy.job, copy.pool, copy.extent, copy.sources, copy.targets, copy.lengths
        )
        for command in commands:
            self._send(command, None, now_ns)

    def answered(self, answer: Answer, now_ns: int) -> None:
        """Notes an answer, which also means that the socket has room again.

        Args:
            answer: from the copier.
            now_ns: the clock.
        """
        self.num_outstanding = max(0, self.num_outstanding - 1)
        self._progress_ns = now_ns
        self._flush()

    def deadline_ns(self) -> int | None:
        """When ``check`` has something to do, or None."""
        if self._channel is None or self.num_outstanding == 0:
            return None
        return self._progress_ns + self._stall_limit_ns

    def check(self, now_ns: int) -> bool:
        """Gives the copier up if it is wedged.

        Args:
            now_ns: the clock.

        Returns:
            Whether it was given up; CopierLost follows.
        """
        due_ns = self.deadline_ns()
        if due_ns is None or now_ns < due_ns:
            return False
        self._progress_ns = now_ns
        self._give_up()
        return True

    def _give_up(self) -> None:
        if self._channel is not None:
            try:
                self._channel.shutdown(socket.SHUT_RDWR)
            except OSError:  # its other end is closed: the supervisor knows
                pass

    def _map_extent(self, file: ExtentFile, now_ns: int) -> None:
        geometry = file.geometry
        command = Command(
            Kind.MAP_EXTENT,
            geometry.extent,
            size_bytes=geometry.file_bytes,
            offset_bytes=geometry.data_offset_bytes,
        )
        self._send(command, file.writable, now_ns)

    def _send(self, command: Command, descriptor: Descriptor | None, now_ns: int) -> None:
        """Queues and sends. Without a copier it is dropped: the next one is told everything."""
        if self._channel is None:
            return
        if command.last:
            if self.num_outstanding == 0:
                self._progress_ns = now_ns
            self.num_outstanding += 1
        borrowed = None if descriptor is None else descriptor.borrow()
        self._waiting.append((pack_command(command), borrowed))
        self._flush()

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
                # command left out would be waited for for ever, so it is given up either way:
                # CopierLost follows and settles what was outstanding.
                self._give_up()
            self._waiting.popleft()
            if descriptor is not None:
                descriptor.give_back()
