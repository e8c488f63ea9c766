"""Values for tests of stores: slots in a mapping of their own, sealed and checked as a porter does.

Knows the header's module, no store. Runs in the pytest process.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import numpy as np

from server.core.tiers.parts import Status
from server.tiers import values
from server.tiers.interface import HEADER_BYTES, Name, Part, Tier

FINGERPRINT = b"f" * 16
OTHER_FINGERPRINT = b"o" * 16
PARENT = b"p" * 16
SLOT_BYTES = 65_536
PAYLOAD_BYTES = SLOT_BYTES - 1000


def key(number: int) -> bytes:
    """A key of a chunk."""
    return number.to_bytes(16, "little")


def part(
    number: int,
    shard: int = 0,
    fingerprint: bytes = FINGERPRINT,
    slot_bytes: int = SLOT_BYTES,
    payload_bytes: int | None = None,
) -> Part:
    """An empty slot for a value."""
    memory = mmap.mmap(-1, slot_bytes)
    return Part(
        name=Name(fingerprint, key(number), shard),
        header=memoryview(bytearray(HEADER_BYTES)),
        room=memoryview(memory),
        payload_bytes=slot_bytes - 1000 if payload_bytes is None else payload_bytes,
        address=ctypes.addressof(ctypes.c_char.from_buffer(memory)),
    )


def content(one: Part) -> bytes:
    """What the payload of such a name is, in every test."""
    name = one.name
    seed = int.from_bytes(name.fingerprint[:2] + name.key + bytes([name.shard]), "little")
    return np.random.default_rng(seed).bytes(one.payload_bytes)


def filled(*numbers: int, **kwargs: int | bytes) -> list[Part]:
    """Parts to be put: payload and header are theirs."""
    made = [part(number, **kwargs) for number in numbers]  # type: ignore[arg-type]
    for one in made:
        one.payload[:] = content(one)
        values.seal(one, PARENT)
    return made


def fetched(tier: Tier, *numbers: int, **kwargs: int | bytes) -> list[Status]:
    """Gets values and checks them as a porter does; what is OK has the right bytes."""
    wanted = [part(number, **kwargs) for number in numbers]  # type: ignore[arg-type]
    statuses = tier.batch_get_into(wanted)
    assert len(statuses) == len(wanted)
    return [_judged(one, status) for one, status in zip(wanted, statuses, strict=True)]


def names(parts: Sequence[Part]) -> list[Name]:
    """The names of parts."""
    return [one.name for one in parts]


def _judged(one: Part, status: Status) -> Status:
    if status is not Status.OK:
        return status
    status = values.check(one, PARENT)
    assert status is not Status.OK or bytes(one.payload) == content(one)
    return status
