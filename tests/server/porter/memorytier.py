"""A tier in memory for tests: keeps values whole, and does wrong what it is told to.

As the module of an engine it is opened by ``open``; a spec's location names what it does then.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from server.core.tiers.parts import Status
from server.tiers.interface import Health, Name, Part, TierError
from server.tierspec import TierSpec


class MemoryTier:
    """Values by name.

    Attributes:
        kept: header and payload by name.
        calls: what was called, in order of beginning.
        gate: calls that move bytes wait for it.
        statuses: by key, what a call says of it instead of what it does.
        raises: what every call raises, or None.
        raises_later: what calls that move bytes raise, or None.
        registered: memory it was told of, by address.
        forget_s: how long ``clear`` takes.
    """

    def __init__(self) -> None:
        self.kept: dict[Name, tuple[bytes, bytes]] = {}
        self.calls: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.statuses: dict[bytes, Status] = {}
        self.raises: BaseException | None = None
        self.raises_later: BaseException | None = None
        self.registered: dict[int, int] = {}
        self.is_closed = False
        self.health_now = Health(ok=True, used_bytes=1, capacity_bytes=2)
        self._lock = threading.Lock()
        self.num_inside = self.most_inside = 0

    def _begin(self, what: str) -> None:
        with self._lock:
            self.calls.append(what)
            self.num_inside += 1
            self.most_inside = max(self.most_inside, self.num_inside)
        assert self.gate.wait(20)
        with self._lock:
            self.num_inside -= 1
        error = self.raises or self.raises_later
        if error is not None:
            raise error

    def batch_exists(self, names: Sequence[Name]) -> list[bool]:
        self.calls.append(f"exists {len(names)}")
        if self.raises is not None:
            raise self.raises
        return [name in self.kept for name in names]

    def batch_get_into(self, parts: Sequence[Part]) -> list[Status]:
        self._begin(f"get {len(parts)}")
        return [self._get(part) for part in parts]

    def _get(self, part: Part) -> Status:
        if part.name.key in self.statuses:
            return self.statuses[part.name.key]
        if part.name not in self.kept:
            return Status.ABSENT
        header, payload = self.kept[part.name]
        part.header[:] = header
        part.room[: len(payload)] = payload
        return Status.OK

    def batch_put(self, parts: Sequence[Part]) -> list[Status]:
        self._begin(f"put {len(parts)}")
        for part in parts:
            self.kept[part.name] = (bytes(part.header), bytes(part.payload))
        return [self.statuses.get(part.name.key, Status.OK) for part in parts]

    def delete(self, names: Sequence[Name]) -> None:
        self._begin(f"delete {len(names)}")
        for name in names:
            self.kept.pop(name, None)

    def clear(self, fingerprint: bytes) -> None:
        self._begin("clear")
        for name in [name for name in self.kept if name.fingerprint == fingerprint]:
            del self.kept[name]

    def health(self) -> Health:
        self.calls.append("health")
        if self.raises is not None:
            raise self.raises
        return self.health_now

    def register(self, address: int, size_bytes: int) -> None:
        if self.raises is not None:
            raise self.raises
        self.registered[address] = size_bytes

    def unregister(self, address: int, size_bytes: int) -> None:
        assert self.registered.pop(address) == size_bytes

    def close(self) -> None:
        self.is_closed = True


class LosingTier(MemoryTier):
    """One that loses values by itself, and says which."""

    def touch(self, names: Sequence[Name]) -> list[Status]:
        self._begin(f"touch {len(names)}")
        there = (Status.OK if name in self.kept else Status.ABSENT for name in names)
        return [self.statuses.get(name.key, one) for name, one in zip(names, there, strict=True)]


class SlowTier(MemoryTier):
    """Each call that moves bytes takes a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def _begin(self, what: str) -> None:
        super()._begin(what)
        time.sleep(self._seconds)


def open(spec: TierSpec) -> MemoryTier:  # noqa: A001 - as engines have it
    """What the last word of the spec's location says.

    Raises:
        TierError: it says ``refuses``, or a file of that name is there.
    """
    word = spec.location.rpartition("/")[2]
    if word == "refuses" or Path(spec.location, "refuses").exists():
        raise TierError("the tier is\n asleep")
    if word == "breaks":
        raise RuntimeError("password=hunter2")
    if word == "fails":
        tier = MemoryTier()
        tier.raises_later = OSError(errno.EIO, os.strerror(errno.EIO))
        return tier
    if word == "slow":
        return SlowTier(0.2)
    if word == "hangs":
        tier = MemoryTier()
        tier.gate.clear()
        return tier
    return MemoryTier()
