"""Where an engine's memory lies and what runs its work: host memory and threads, or a device.

The host's parts take memory as tensors of bytes and streams by the methods of ``WorkStream``, so
that the same engine runs on host memory or on a simulated CUDA device (``simulated``).

Must not know: models, pages, the connector. Called on the main thread, ``bind`` on any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from adapter.conformance.host.options import HostOptions
from adapter.conformance.host.streams import HostStream
from adapter.pages import SharedPool


class WorkEvent(Protocol):
    """A point in a stream, as ``torch.cuda.Event``."""

    def query(self) -> bool:
        """Whether the work before it is done; raises if that failed."""

    def synchronize(self, timeout_s: float | None = None) -> None:
        """Block the calling thread until then; raises if that failed or takes too long."""


class WorkStream(Protocol):
    """What the host needs of a stream; names as ``torch.cuda.Stream``, and ``enqueue``."""

    @property
    def name(self) -> str:
        """For messages."""

    def enqueue(self, work: Callable[[], object]) -> None:
        """Queue work, as a kernel launch."""

    def record_event(self) -> Any:
        """Mark the present end of the queue; returns a ``WorkEvent``."""

    def wait_event(self, event: Any) -> None:
        """Make work queued later wait for the point that ``event`` marks now."""

    def wait_stream(self, stream: Any) -> None:
        """Make work queued later wait for what ``stream`` has queued now."""

    def query(self) -> bool:
        """Whether everything queued before is done; raises if some of it failed."""

    def synchronize(self, timeout_s: float | None = None) -> None:
        """Block until everything queued before is done."""

    def close(self, timeout_s: float) -> None:
        """Let queued work end; later work would never run."""


class Hardware(Protocol):
    """One rank's share of the machine."""

    def allocate(self, num_bytes: int, *, private: bool, is_virtual: bool = False) -> Tensor:
        """Memory for KV.

        Args:
            num_bytes: Positive.
            private: Whether no other process can map it.
            is_virtual: Whether it belongs to a V2 cache.

        Returns:
            ``uint8[num_bytes]``; the memory lives as long as somebody holds the tensor.
        """

    def stream(self, name: str) -> WorkStream:
        """A stream of the engine."""

    def bind(self) -> None:
        """Make the device the calling thread's, as engines do in their own threads."""


class HostHardware:
    """Memory that a server can map, or not; streams that are threads."""

    def allocate(self, num_bytes: int, *, private: bool, is_virtual: bool = False) -> Tensor:
        """Memory of this process; see ``Hardware``."""
        if private:
            return torch.empty(num_bytes, dtype=torch.uint8)
        return torch.frombuffer(SharedPool.create(num_bytes).mapping, dtype=torch.uint8)

    def stream(self, name: str) -> WorkStream:
        """A thread that works off its queue."""
        return HostStream(name)

    def bind(self) -> None:
        """Every thread reaches host memory."""


def make_hardware(options: HostOptions, rank: int) -> Hardware:
    """What the options name.

    Args:
        options: Of the host.
        rank: Its number in the job; each has a device of its own.
    """
    if options.device == "simulated":
        from adapter.conformance.host.simulated import SimulatedHardware

        return SimulatedHardware(rank)
    return HostHardware()
