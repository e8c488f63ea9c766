"""The loop's end of a copier: pools and copies, over the link that every child has.

Must not know: how the process is started, what jobs are for. Runs in: the loop thread.
"""

from __future__ import annotations

import socket

from protocol.ids import ExtentId
from protocol.layout import CudaIpcMemory
from server.copier.wire import Answer, Command, Kind, copy_commands, pack_command
from server.core.effects import PoolHandle, StartCopy
from server.shell.descriptors import Descriptor
from server.shell.extents import ExtentFile
from server.shell.link import STALL_LIMIT_S, Link


class CopierLink(Link):
    """Commands to one copier.

    Attributes:
        device_bytes: memory of a device that the running copier takes, 0 for none or unknown.
        numa_node: of the machine's memory on which the running copier was placed, -1 for none.
    """

    def __init__(self, stall_limit_s: float = STALL_LIMIT_S) -> None:
        super().__init__(stall_limit_s)
        self.device_bytes = 0
        self.numa_node = -1

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
        self.device_bytes = device_bytes
        self.numa_node = numa_node
        self.take_over(channel, pid, now_ns)

    def detach(self) -> None:
        """Forgets a copier that is gone, and what it owed."""
        super().detach()
        self.device_bytes, self.numa_node = 0, -1

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
        """Notes an answer.

        Args:
            answer: from the copier.
            now_ns: the clock.
        """
        self.heard(now_ns)

    def pack_map(self, file: ExtentFile) -> bytes:
        """The command to map an extent."""
        geometry = file.geometry
        return pack_command(
            Command(
                Kind.MAP_EXTENT,
                geometry.extent,
                size_bytes=geometry.file_bytes,
                offset_bytes=geometry.data_offset_bytes,
            )
        )

    def pack_unmap(self, extent: ExtentId) -> bytes:
        """The command to unmap an extent."""
        return pack_command(Command(Kind.UNMAP_EXTENT, extent))

    def _send(self, command: Command, descriptor: Descriptor | None, now_ns: int) -> None:
        self.send(pack_command(command), descriptor, now_ns, is_whole=command.last)
