"""The copier of one device: ``python -m server.copier.gpu FD PARENT_PID UUID_HEX``.

Purpose: obeys the packets of ``server.copier.wire`` until their socket ends. Pools are opened by
handle, jobs go through ``pipeline``, several at once; each command is answered when it is done,
which is not the order in which they came. A copier whose device fails answers its jobs as failed
and ends: after a sticky error nothing of this process works on the device any more, and the
supervisor starts another. Must not know: the index, peers, leases; which implementation its device
has. Runs in: its own process; one main thread that waits for nothing but its socket, threads for
opening (``pools``) and writing (``writers``).
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time

import numpy as np
from numpy.typing import NDArray

from protocol.device.backends import device_by_uuid
from protocol.device.interface import Device, DeviceError
from server import logsetup, numa
from server.copier.bounce import Bounce
from server.copier.channel import begin, receive, send
from server.copier.mappings import Mappings
from server.copier.pieces import check_bounds, cut
from server.copier.pipeline import Job, Passage, Pipeline
from server.copier.pools import Pools
from server.copier.wake import Wake
from server.copier.wire import Answer, Command, Kind
from server.copier.writers import Writers

ASK_S = 50e-6
"""Time between questions to the device while it is at work; a piece takes it some 150 us."""

DRIVER_LIMIT_S = 20.0
"""Longest for one piece, or for one pool to open or close, while others go on. When nothing goes
on, the server gives the copier up before."""

MAX_JOBS = 1024
"""Jobs taken in; the server's window of bytes holds them to far fewer."""

_MAX_WRITERS = 4
_SETTLE_S = 5.0
_LOOK_S = 1.0


class DeviceLostError(Exception):
    """Nothing of this process works on the device any more, or it hangs."""


class Copier:
    """Obeys commands.

    Args:
        channel: to the server.
        device: bound to this thread.
        bounce: used by nobody else.
        device_bytes: memory of the device that this process takes, 0 for unknown.
        numa_node: on which this process was placed, -1 for none.
    """

    def __init__(
        self,
        channel: socket.socket,
        device: Device,
        bounce: Bounce,
        device_bytes: int = 0,
        numa_node: int = -1,
    ) -> None:
        self._channel = channel
        self._ready = Answer(Kind.READY, os.getpid(), None, device_bytes, numa_node)
        self._wake = Wake()
        num_writers = min(_MAX_WRITERS, len(os.sched_getaffinity(0)))
        self._writers: Writers[Passage] = Writers(num_writers, self._wake)
        self._pools = Pools(device, self._wake)
        self._pipeline = Pipeline(device, bounce, self._writers)
        self._piece_bytes = bounce.bay_bytes
        self._mappings = Mappings()
        self._parts: list[NDArray[np.int64]] = []
        self._using: dict[tuple[Kind, int], int] = {}
        self._unmaps: list[Command] = []

    def run(self) -> None:
        """Serves until the server closes the socket.

        Raises:
            DeviceLostError: what was copied is answered as failed.
        """
        send(self._channel, self._ready)
        try:
            while self._turn():
                pass
        except DeviceError as error:
            self._abandon(str(error))
            raise DeviceLostError(f"the device failed: {error}") from error
        finally:
            self._writers.stop()
            self._pools.stop()

    def _turn(self) -> bool:
        mappings, pipeline = self._mappings, self._pipeline
        is_idle = mappings.is_cold and not pipeline.num_jobs
        channel, wake = self._channel.fileno(), self._wake.fileno()
        awaited = [wake, channel] if pipeline.num_jobs < MAX_JOBS else [wake]
        readable, _, _ = select.select(awaited, [], [], self._patience_s(is_idle))
        if wake in readable:
            self._wake.clear()
        if channel in readable:
            received = receive(self._channel)
            if received is None:
                return False
            self._obey(*received)
        elif is_idle and not readable:
            mappings.populate_step()
        now_s = time.monotonic()
        for job in pipeline.step(now_s):
            self._end(job)
        for answer in self._pools.collect():
            # A pool that could not be closed is open until this process has ended, which says so.
            if answer.kind != Kind.UNMAP_POOL or answer.error is None:
                send(self._channel, answer)
        if self._pools.failure is not None:
            raise self._pools.failure
        self._check(now_s)
        return True

    def _patience_s(self, is_idle: bool) -> float | None:
        if is_idle:
            return 0
        if self._pipeline.is_asking:
            return ASK_S
        return None if self._pools.oldest_s is None else _LOOK_S

    def _check(self, now_s: float) -> None:
        for oldest_s in (self._pipeline.oldest_s, self._pools.oldest_s):
            if oldest_s is not None and now_s - oldest_s > DRIVER_LIMIT_S:
                raise DeviceLostError(f"the device did not answer for {DRIVER_LIMIT_S:.0f} s")

    def _abandon(self, error: str) -> None:
        """Answers every copy that this process was given; opening and closing end with it."""
        self._channel.shutdown(socket.SHUT_RD)
        for job in self._pipeline.abandon(error, _SETTLE_S):
            self._end(job)
        # To the last packet: while one is unread, the server would not get the answers.
        while (received := receive(self._channel)) is not None:
            command, fd = received
            if fd >= 0:
                os.close(fd)
            if command.kind == Kind.COPY and command.last:
                send(self._channel, Answer(Kind.COPY, command.number, error))

    # --- commands ---------------------------------------------------------------------------

    def _obey(self, command: Command, fd: int) -> None:
        try:
            error = self._perform(command, fd)
        except (ValueError, OSError) as caught:
            error = f"{type(caught).__name__}: {caught}"
        finally:
            if fd >= 0:
                os.close(fd)
        if error is not None:
            send(self._channel, Answer(command.kind, command.number, error))

    def _perform(self, command: Command, fd: int) -> str | None:
        """Begins a command.

        Returns:
            Why it failed; None when it is answered elsewhere.
        """
        if command.kind == Kind.COPY and command.parts is not None:
            self._take_parts(command, command.parts)
        elif command.kind == Kind.OPEN_POOL:
            self._pools.open(command, time.monotonic())
        elif command.kind == Kind.MAP_EXTENT:
            self._mappings.map_extent(command.number, fd, command.size_bytes, command.offset_bytes)
            send(self._channel, Answer(command.kind, command.number, None))
        elif command.kind in (Kind.UNMAP_POOL, Kind.UNMAP_EXTENT):
            self._unmaps.append(command)
            self._unmap_unused()
        else:
            return f"command {command.kind} is not for a device"
        return None

    def _take_parts(self, command: Command, parts: NDArray[np.int64]) -> None:
        self._parts.append(parts)
        if not command.last:
            return
        whole, self._parts = np.concatenate(self._parts, axis=1), []
        pool, extent = self._pools.find(command.pool), self._mappings.extent(command.extent)
        if pool is None or extent is None:
            raise ValueError(f"pool {command.pool} or extent {command.extent} is not mapped")
        check_bounds(whole, pool.size_bytes, extent.first_byte, extent.view.size)
        job = Job(
            number=command.number,
            pool=command.pool,
            extent=command.extent,
            address=pool.address,
            target=extent.view,
            pieces=cut(whole, self._piece_bytes),
        )
        for key in _keys(job):
            self._using[key] = self._using.get(key, 0) + 1
        self._pipeline.add(job)

    def _end(self, job: Job) -> None:
        for key in _keys(job):
            self._using[key] -= 1
            if not self._using[key]:
                del self._using[key]
        send(self._channel, Answer(Kind.COPY, job.number, job.error))
        self._unmap_unused()

    def _unmap_unused(self) -> None:
        """What is under a copy is unmapped after it: the answer says that nothing touches it."""
        unmaps, self._unmaps = self._unmaps, []
        for command in unmaps:
            if (command.kind, command.number) in self._using:
                self._unmaps.append(command)
            elif command.kind == Kind.UNMAP_POOL:
                self._pools.close(command, time.monotonic())
            else:
                self._mappings.unmap_extent(command.number)
                send(self._channel, Answer(command.kind, command.number, None))


def _keys(job: Job) -> tuple[tuple[Kind, int], tuple[Kind, int]]:
    return (Kind.UNMAP_POOL, job.pool), (Kind.UNMAP_EXTENT, job.extent)


def prepare(uuid: bytes, nodes: numa.Nodes) -> tuple[Device, Bounce, int, int]:
    """Finds the device, goes near to it and takes what a copier needs of it.

    Args:
        uuid: 16 bytes.
        nodes: of the machine's memory.

    Returns:
        The device, bound to this thread; the bounce buffer; memory of the device that this process
        takes in bytes, as far as the device tells; the node on which this thread, all that it
        starts and the buffer are, -1 for any.

    Raises:
        DeviceError: no such device, or it has no room.
    """
    device = device_by_uuid(uuid)
    # For good, and before there is a thread or a buffer: both follow the thread that makes them.
    numa_node = _go_near(device.numa_node, nodes)
    before_bytes = _free_bytes(device)
    device.bind()
    bounce = Bounce(device)
    taken_bytes = 0 if before_bytes is None else before_bytes - device.memory().free_bytes
    return device, bounce, max(0, taken_bytes), numa_node


def _go_near(node: int | None, nodes: numa.Nodes) -> int:
    """Places this thread; says so where that is in vain."""
    if node is None or len(nodes) < 2:
        return -1
    if numa.place(node, nodes):
        return node
    logsetup.say(
        "copier",
        "numa_place",
        f"not placed on NUMA node {node}, which is near its device: neither its "
        "memory nor its CPUs may be chosen here (container, cpuset), or another policy was "
        "(numactl). Saves work, and may be slower",
    )
    return -1


def _free_bytes(device: Device) -> int | None:
    """Before this process uses the device; None where only who uses it may ask."""
    try:
        return device.memory().free_bytes
    except DeviceError:
        return None


def main(arguments: list[str]) -> None:
    """Runs the copier.

    Args:
        arguments: number of the inherited socket, process id of the parent, uuid of the device in
            hexadecimal digits.
    """
    fd, parent_pid, uuid = int(arguments[0]), int(arguments[1]), bytes.fromhex(arguments[2])
    begin(parent_pid)
    # The lowest number that is free: it came with the one of a server that may have thousands, and
    # select(2) knows none above 1023. poll(2) would do, but waits for whole milliseconds only.
    low = os.dup(fd)
    os.close(fd)
    with socket.socket(fileno=low) as channel:
        try:
            try:
                device, bounce, *told = prepare(uuid, numa.nodes_of())
            except (DeviceError, ValueError, ImportError, OSError) as error:
                send(channel, Answer(Kind.READY, os.getpid(), str(error)))
                logsetup.say("copier", "no_device", f"no device {uuid.hex()}: {error}")
                raise SystemExit(1) from None
            Copier(channel, device, bounce, *told).run()
        except (BrokenPipeError, ConnectionResetError):
            return
        except DeviceLostError as error:
            # Without Python's clean-up, which would call into the device that failed.
            logsetup.say("copier", "device_lost", str(error))
            os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
