"""What the shell's own threads report to the loop, and how it gets there.

Purpose: one queue in order of posting, and an empty frame over ``inproc`` that wakes the loop.
The loop empties the queue before each request, so whatever a thread posted before it answered a
peer is known before that peer's next request is read. Must not know: what follows from a report.
Runs in: ``Reporter`` in its one thread, the queue's reading end in the loop thread.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq

from protocol.ids import ExtentId, Fingerprint, InstanceId, PoolId, Token
from server.copier.wire import Answer
from server.core.adoption import PartyId
from server.core.effects import CopierId, ProcessId, TierId
from server.porter import wire as porter_wire
from server.shell.descriptors import Descriptor

if TYPE_CHECKING:
    from server.shell.extents import ExtentFile

INTERNAL_ENDPOINT = "inproc://kvkeep-reports"


@dataclass(frozen=True)
class ProcessJoined:
    """A peer said SideHello; its Welcome follows this report. ``pid`` is 0 where it is unseen."""

    process: ProcessId
    token: Token
    instance: InstanceId
    pid: int = 0


@dataclass(frozen=True)
class PoolOffered:
    """A peer passed a pool that is sealed and as long as said. The receiver owns ``descriptor``."""

    process: ProcessId
    pool: PoolId
    size_bytes: int
    descriptor: Descriptor


@dataclass(frozen=True)
class ProcessQuiet:
    """A peer's side connection ended; the process may still run."""

    process: ProcessId


@dataclass(frozen=True)
class ProcessExited:
    """The kernel says that a process is gone."""

    process: ProcessId


@dataclass(frozen=True)
class PartyGone:
    """A process of a former incarnation exited, or said that it reads nothing any more."""

    party: PartyId


@dataclass(frozen=True)
class ExtentCreated:
    """An extent file is allocated and headed, or ``error`` says why not."""

    extent: ExtentId
    file: ExtentFile | None
    error: str | None


@dataclass(frozen=True)
class CopierReady:
    """A copier has started. The receiver owns ``channel`` until CopierLost.

    One of a device says how much of the device's memory it takes, and on which node of the
    machine's memory it was placed (-1 for none).
    """

    copier: CopierId
    pid: int
    channel: socket.socket
    device_bytes: int = 0
    numa_node: int = -1


@dataclass(frozen=True)
class CopierAnswered:
    """A copier answered a command."""

    copier: CopierId
    answer: Answer


@dataclass(frozen=True)
class CopierLost:
    """A copier's process is gone; nothing of it touches memory any more."""

    copier: CopierId


@dataclass(frozen=True)
class CopierStuck:
    """A copier was killed and its process does not end; ``life`` tells it from its successors."""

    copier: CopierId
    life: int
    pid: int


@dataclass(frozen=True)
class CopierGone:
    """A stuck copier's process is gone after all."""

    copier: CopierId
    life: int


@dataclass(frozen=True)
class CopierRefused:
    """A device's copier could not be started; that is tried again until it is retired."""

    copier: CopierId
    reason: str


@dataclass(frozen=True)
class CopierEnded:
    """A retired copier is gone for good; its supervisor's thread posts nothing after this."""

    copier: CopierId


@dataclass(frozen=True)
class PorterReady:
    """A porter has opened its tier. The receiver owns ``channel`` until PorterLost."""

    tier: TierId
    pid: int
    channel: socket.socket
    used_bytes: int = 0
    capacity_bytes: int = 0


@dataclass(frozen=True)
class PorterAnswered:
    """A porter answered a command, or says that it gets on."""

    tier: TierId
    answer: porter_wire.Answer


@dataclass(frozen=True)
class PorterLost:
    """A porter's process is gone; nothing of it touches memory any more."""

    tier: TierId


@dataclass(frozen=True)
class PorterStuck:
    """A porter was killed and its process does not end; ``life`` tells it from its successors."""

    tier: TierId
    life: int
    pid: int


@dataclass(frozen=True)
class PorterGone:
    """A stuck porter's process is gone after all."""

    tier: TierId
    life: int


@dataclass(frozen=True)
class OwedKept:
    """What a tier is still to forget is written down, or could not be, which the log says."""

    tier: TierId
    fingerprint: Fingerprint
    serial: int


@dataclass(frozen=True)
class PorterRefused:
    """A tier could not be opened; that is tried again until the server ends."""

    tier: TierId
    reason: str


@dataclass(frozen=True)
class PorterEnded:
    """A porter is gone for good; its supervisor's thread posts nothing after this."""

    tier: TierId


@dataclass(frozen=True)
class DrainAsked:
    """SIGTERM or SIGINT came."""


@dataclass(frozen=True)
class Here:
    """First report of each reporter; see ``Loop.bind``."""


Report = (
    ProcessJoined
    | PoolOffered
    | ProcessQuiet
    | ProcessExited
    | PartyGone
    | ExtentCreated
    | CopierReady
    | CopierAnswered
    | CopierLost
    | CopierStuck
    | CopierGone
    | CopierRefused
    | CopierEnded
    | PorterReady
    | PorterAnswered
    | PorterLost
    | PorterStuck
    | PorterGone
    | OwedKept
    | PorterRefused
    | PorterEnded
    | DrainAsked
    | Here
)

ReportQueue = deque[Report]


class Reporter:
    """One thread's way to the loop.

    Created before its thread starts and used by that thread alone from then on; after that thread
    was joined, by another.

    Attributes:
        routing_id: by which the loop's socket knows its wake-up frames; who knew it could take
            this one's place.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], name: str, queue: ReportQueue
    ) -> None:
        self.routing_id = b"kvkeep-" + name.encode() + b"-" + os.urandom(16)
        self._queue = queue
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.setsockopt(zmq.ROUTING_ID, self.routing_id)
        self._socket.connect(INTERNAL_ENDPOINT)

    def post(self, report: Report) -> None:
        """Hands one report over; never blocks and never loses it.

        Args:
            report: what happened.
        """
        self._queue.append(report)
        try:
            self._socket.send(b"", zmq.NOBLOCK)
        except zmq.Again:
            # As many wake-ups as fit are on their way; the loop empties the queue on each.
            pass

    def close(self) -> None:
        """Closes the socket; its thread has ended."""
        self._socket.close()
