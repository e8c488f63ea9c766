"""Keeps one copier running: what ``server.shell.keeper`` has to know of it.

Must not know: what the jobs mean, which are outstanding (``server.shell.copiers`` does). Runs in:
the keeper's thread.
"""

from __future__ import annotations

import os
import socket
import sys
import uuid
from pathlib import Path
from typing import Literal

from server.copier.wire import MAX_ANSWER_BYTES, Kind, unpack_answer
from server.core.effects import CopierId
from server.shell.keeper import END_TIMEOUT_S, MAX_BACKOFF_S, Keeper
from server.shell.parties import Parties
from server.shell.reports import (
    CopierAnswered,
    CopierEnded,
    CopierGone,
    CopierLost,
    CopierReady,
    CopierRefused,
    CopierStuck,
    Report,
    Reporter,
)

#: For a device that refuses: one that comes back does so in seconds, and a start of CUDA takes one.
_MAX_REFUSED_BACKOFF_S = 10.0
#: glibc copies with non-temporal stores from 256 KiB on: 8.4 to 13.1 GB/s for pages of 4 MiB.
_TUNABLE = "glibc.cpu.x86_non_temporal_threshold=0x40000"
_ROOT = str(Path(__file__).resolve().parents[2])


def device_name(device_uuid: bytes) -> str:
    """A device as CUDA and nvidia-smi name it.

    Args:
        device_uuid: 16 bytes.
    """
    return f"GPU-{uuid.UUID(bytes=device_uuid)}"


def child_environment(
    environ: dict[str, str], machine: str, libc: str, device_uuid: bytes = b""
) -> dict[str, str]:
    """Environment of a copier.

    Args:
        environ: of this process.
        machine: as ``os.uname`` says.
        libc: as ``libc_name`` says.
        device_uuid: 16 bytes of the one device that a device's copier sees; empty for host memory.

    Returns:
        A copy with this installation first on the import path, one numerics thread, and the
        store tunable where glibc on x86 reads it.
    """
    own = dict(environ)
    rest = own.get("PYTHONPATH", "")
    own["PYTHONPATH"] = f"{_ROOT}{os.pathsep}{rest}" if rest else _ROOT
    own["OPENBLAS_NUM_THREADS"] = "1"
    if device_uuid:
        own["CUDA_VISIBLE_DEVICES"] = device_name(device_uuid)
    if machine in ("x86_64", "AMD64") and libc == "glibc":
        others = [
            entry
            for entry in own.get("GLIBC_TUNABLES", "").split(":")
            if entry and not entry.startswith("glibc.cpu.x86_non_temporal_threshold=")
        ]
        own["GLIBC_TUNABLES"] = ":".join([*others, _TUNABLE])
    return own


def libc_name() -> str:
    """The C library of this process.

    Returns:
        ``glibc``, or nothing for another one.
    """
    try:
        found = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # musl does not know the name
        return ""
    return found.split()[0] if found else ""


class CopierRole:
    """A copier as its keeper sees it.

    Args:
        copier: which one.
        module: what to run; takes the socket's number and this process's id.
        device_uuid: 16 bytes of the device whose copier it is; empty for host memory.
    """

    party: Literal["copier", "porter"] = "copier"
    end_timeout_s = END_TIMEOUT_S

    def __init__(self, copier: CopierId, module: str, device_uuid: bytes) -> None:
        # As status and metrics call it; its number says nothing to anybody.
        self.label = f"copier {device_name(device_uuid) if device_uuid else 'host'}"
        self.max_backoff_s = _MAX_REFUSED_BACKOFF_S if device_uuid else MAX_BACKOFF_S
        self._copier = copier
        self._module = module
        self._device_uuid = device_uuid

    def command(self, fd: int) -> list[str]:
        """What to run."""
        device = [self._device_uuid.hex()] if self._device_uuid else []
        return [sys.executable, "-m", self._module, str(fd), str(os.getpid()), *device]

    def environment(self) -> dict[str, str]:
        """Of the copier."""
        return child_environment(
            dict(os.environ), os.uname().machine, libc_name(), self._device_uuid
        )

    def greet(self, channel: socket.socket) -> None:
        """Its arguments say all."""

    def receive(self, channel: socket.socket) -> bytes:
        """The next packet."""
        return channel.recv(MAX_ANSWER_BYTES)

    def refusal(self, packet: bytes) -> str | None:
        """Why it is not ready."""
        answer = unpack_answer(packet)
        if answer.kind == Kind.READY and answer.error is None:
            return None
        return answer.error or "it talks nonsense"

    def ready(self, packet: bytes, pid: int, channel: socket.socket) -> Report:
        """It is ready."""
        answer = unpack_answer(packet)
        return CopierReady(self._copier, pid, channel, answer.device_bytes, answer.numa_node)

    def answered(self, packet: bytes) -> Report:
        """It answered a command."""
        return CopierAnswered(self._copier, unpack_answer(packet))

    def lost(self) -> Report:
        """It is gone."""
        return CopierLost(self._copier)

    def stuck(self, life: int, pid: int) -> Report:
        """It was killed and does not end."""
        return CopierStuck(self._copier, life, pid)

    def gone(self, life: int) -> Report:
        """A stuck one is gone after all."""
        return CopierGone(self._copier, life)

    def refused(self, why: str) -> Report | None:
        """Engines of a device without a copier are told; they can do without the device's pool."""
        if not self._device_uuid:
            return None
        reason = f"{device_name(self._device_uuid)} has no copier: {why}"
        return CopierRefused(self._copier, reason)

    def ended(self) -> Report:
        """It is gone for good."""
        return CopierEnded(self._copier)


class Supervisor(Keeper):
    """One copier and its restarts.

    Args:
        copier: which one.
        reporter: used by the thread alone.
        module: what to run; takes the socket's number and this process's id.
        parties: writes down that the copier may touch the arena; None to leave that out.
        device_uuid: 16 bytes of the device whose copier it is; empty for host memory.
    """

    def __init__(
        self,
        copier: CopierId,
        reporter: Reporter,
        module: str = "server.copier.host",
        parties: Parties | None = None,
        device_uuid: bytes = b"",
    ) -> None:
        super().__init__(CopierRole(copier, module, device_uuid), reporter, parties)
