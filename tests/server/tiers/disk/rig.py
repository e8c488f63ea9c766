"""Values, rooms and broken disks for the tests of the disk tier. Runs in the pytest process."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from server.core.tiers.parts import Status
from server.tiers import values
from server.tiers.disk.files import Files
from server.tiers.interface import HEADER_BYTES, Name, Part, Tier

MIB = 1 << 20
ROOM = 16_384
FINGERPRINT = bytes(range(16))
OTHER = bytes(range(16, 32))
PARENT = bytes(16)


def name_of(number: int, fingerprint: bytes = FINGERPRINT, shard: int = 0) -> Name:
    # The first byte differs, as those of digests do.
    key = bytes([number % 251]) + number.to_bytes(15, "little")
    return Name(fingerprint, key, shard)


def empty(
    number: int,
    fingerprint: bytes = FINGERPRINT,
    room: int = ROOM,
    payload: int = 0,
    shard: int = 0,
) -> Part:
    """A part to get into: page-aligned, all ones."""
    memory = memoryview(mmap.mmap(-1, room))
    memory[:] = b"\xff" * room
    header = memoryview(bytearray(b"\xff" * HEADER_BYTES))
    return Part(name_of(number, fingerprint, shard), header, memory, payload or room, 0)


def filled(
    number: int,
    fingerprint: bytes = FINGERPRINT,
    room: int = ROOM,
    payload: int = 0,
    shard: int = 0,
) -> Part:
    """A part to put: its bytes follow from its name, its header is sealed."""
    part = empty(number, fingerprint, room, payload, shard)
    pattern = fingerprint + number.to_bytes(8, "little") + shard.to_bytes(8, "little")
    part.room[:] = (pattern * (room // len(pattern)))[:room]
    values.seal(part, PARENT)
    return part


def put(
    tier: Tier, *numbers: int, room: int = ROOM, fingerprint: bytes = FINGERPRINT
) -> set[Status]:
    return {tier.batch_put([filled(one, fingerprint, room)])[0] for one in numbers}


def get(
    tier: Tier, number: int, room: int = ROOM, fingerprint: bytes = FINGERPRINT, payload: int = 0
) -> Status:
    """Gets, compares, and looks at each byte."""
    part = empty(number, fingerprint, room, payload)
    (status,) = tier.batch_get_into([part])
    if status is Status.OK:
        status = values.check(part, PARENT)
    if status is Status.OK:
        assert part.payload == filled(number, fingerprint, room, payload).payload
    return status


def held(tier: Tier, numbers: Sequence[int], room: int = ROOM) -> list[int]:
    """Those that are there whole."""
    found = []
    for number in numbers:
        status = get(tier, number, room)
        assert status in (Status.OK, Status.ABSENT), (number, status)
        if status is Status.OK:
            found.append(number)
    return found


def disk_use(folder: Path) -> int:
    """As ``du`` counts, the folder itself included."""
    total = 0
    for path, _, names in os.walk(folder):
        for one in (path, *(os.path.join(path, name) for name in names)):
            try:
                total += os.lstat(one).st_blocks * 512
            except FileNotFoundError:
                pass  # deleted meanwhile
    return total


def flip(path: Path, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0xFF]))


@dataclass
class Rule:
    """What happens to calls: skip some, then act on some."""

    act: Callable[[], object]
    skip: int
    times: int


class FaultyFiles(Files):
    """Real files; what a test planned fails."""

    def __init__(self) -> None:
        self._rules: dict[str, Rule] = {}
        self.calls: dict[str, int] = {}
        self.shortened = 0
        self.synced: list[str] = []
        self.small: tuple[int, int] | None = None

    def fail(self, call: str, number: int = errno.EIO, skip: int = 0, times: int = 1 << 30) -> None:
        def act() -> None:
            raise OSError(number, os.strerror(number))

        self._rules[call] = Rule(act, skip, times)

    def shorten(self, call: str, skip: int = 0, times: int = 1 << 30) -> None:
        """Half of what was asked is done, in whole blocks."""
        self._rules[call] = Rule(lambda: True, skip, times)

    def heal(self) -> None:
        self._rules.clear()

    def _struck(self, call: str) -> bool:
        self.calls[call] = self.calls.get(call, 0) + 1
        rule = self._rules.get(call)
        if rule is None:
            return False
        if rule.skip:
            rule.skip -= 1
            return False
        if not rule.times:
            return False
        rule.times -= 1
        return bool(rule.act())

    def _halved(self, buffers: Sequence[memoryview]) -> list[memoryview]:
        self.shortened += 1
        if len(buffers) > 1:
            return list(buffers[:-1])
        half = max(4096, len(buffers[0]) // 2 // 4096 * 4096)
        return [buffers[0][:half]]

    def make_folder(self, path: str) -> bool:
        self._struck("make_folder")
        return super().make_folder(path)

    def open(self, path: str, flags: int) -> int:
        if flags & os.O_DIRECT:
            self._struck("open_direct")
        self._struck("open")
        return super().open(path, flags)

    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if self._struck("preadv"):
            buffers = self._halved(buffers)
        return super().preadv(fd, buffers, offset)

    def pwritev(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        # The lock and the count of starts are written by it, too: they are no values.
        if len(buffers[0]) >= 4096 and self._struck("pwritev"):
            buffers = self._halved(buffers)
        return super().pwritev(fd, buffers, offset)

    def allocate(self, fd: int, num_bytes: int) -> None:
        self._struck("allocate")
        super().allocate(fd, num_bytes)

    def set_length(self, fd: int, num_bytes: int) -> None:
        self._struck("set_length")
        super().set_length(fd, num_bytes)

    def sync(self, fd: int) -> None:
        self._struck("sync")
        super().sync(fd)

    def sync_folder(self, path: str) -> None:
        self.synced.append(path)
        self._struck("sync_folder")
        super().sync_folder(path)

    def room(self, path: str) -> tuple[int, int]:
        return self.small or super().room(path)

    def remove(self, path: str) -> None:
        self._struck("remove")
        super().remove(path)

    def rename(self, path: str, target: str) -> None:
        self._struck("rename")
        super().rename(path, target)

    def touch(self, fd: int, time_ns: int) -> None:
        self._struck("touch")
        super().touch(fd, time_ns)

    def names(self, path: str) -> list[str]:
        self._struck("names")
        return super().names(path)
