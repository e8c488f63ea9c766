"""Tenants of a shared folder, for its tests: what they have as it says, and as its files say.

Runs in the pytest process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from server.core.tiers.parts import Share, Status
from server.tiers.disk.files import BLOCK_BYTES, Files
from server.tiers.disk.shared import SharedTier
from server.tiers.interface import Name
from tests.server.tiers.disk.rig import FINGERPRINT, MIB, ROOM, filled

SIZE = 16 * MIB
BIG = 262_144 - BLOCK_BYTES
"""Of a value: with its header it takes 256 KiB."""

FULL = 56
"""So many of them at least fill the folder."""

LENGTH = ROOM + BLOCK_BYTES
BIG_LENGTH = BIG + BLOCK_BYTES
A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
FIRST_OF_B = 1000
Open = Callable[..., SharedTier]
"""Of the fixture ``opened``."""

BOTH = [Share(True, A, 1, 0), Share(True, B, 1, 0)]


class Unsynced(Files):
    """For many values, where no machine crashes."""

    def sync(self, fd: int) -> None:
        """At once."""


def put(
    tier: SharedTier,
    salt: bytes,
    numbers: range,
    room: int = ROOM,
    fingerprint: bytes = FINGERPRINT,
) -> Counter[Status]:
    parts = (replace(filled(one, fingerprint, room), salt=salt) for one in numbers)
    return Counter(tier.batch_put([part])[0] for part in parts)


def told(tier: SharedTier) -> dict[bytes, int]:
    """What each tenant has, as the tier counts."""
    health = tier.health()
    return {name: size for name, size in (*health.shares, *health.salts) if size}


def recounted(tier: SharedTier, folder: Path, *salts: bytes) -> dict[bytes, int]:
    """The same out of the folder, file by file."""
    sums: Counter[bytes] = Counter()
    sizes = {}
    for path in folder.glob("[0-9a-f]*/*/*-*"):
        if path.name[0] != ".":
            key, _, shard = path.name.partition("-")
            name = Name(bytes.fromhex(path.parts[-3]), bytes.fromhex(key), int(shard))
            sizes[name] = path.stat().st_size // BLOCK_BYTES * BLOCK_BYTES
            sums[name.fingerprint] += sizes[name]
    for salt in salts:
        sums[salt] = sum(sizes[name] for name in tier.of_salt(salt, 1 << 20))
    return {name: size for name, size in sums.items() if size}


def agreed(tier: SharedTier, folder: Path, *salts: bytes) -> bool:
    return told(tier) == recounted(tier, folder, *salts)
