"""Where parts lie while a tier has them: in L1 itself, or encrypted in memory of the porter's own.

Purpose: engines read L1's slots while they are written below, so what is encrypted is made beside
them; and what comes back is in a slot only as what it was. Must not know: tiers' kinds, sockets.
Runs in: a porter's worker threads; each has memory of its own.
"""

from __future__ import annotations

import importlib
import mmap
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from protocol.extras import install
from server.core.tiers.parts import Status
from server.tiers import values
from server.tiers.interface import Part, Tier, TierError
from server.tiers.keyfile import Keyring

if TYPE_CHECKING:
    from server.tiers.keyfile import Key, Keys

ROOM_BYTES = 16 << 20
"""Of a thread's memory, unless one call has more: that grows it."""

WARNED_S = 600.0
"""So long after the last value that could not be decrypted a tier is warned of."""

_STEP_BYTES = 2 << 20


class Vault(Protocol):
    """What becomes of values before they go below, and after they came from there."""

    def lend(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Those that the tier is given in place of parts; good until the thread's next call."""
        ...

    def seal(self, part: Part, lent: Part, parent: bytes) -> bool:
        """Makes what is lent what is to be put; False: this one must not be."""
        ...

    def check(self, part: Part, lent: Part, parent: bytes) -> Status:
        """Compares what the tier filled in with what was asked for, which it is then in L1."""
        ...

    def warning(self) -> str:
        """What people should know, empty for nothing."""
        ...


class Open:
    """Values as they are, in the place where they are."""

    def lend(self, parts: Sequence[Part]) -> Sequence[Part]:
        """See ``Vault``."""
        return parts

    def seal(self, part: Part, lent: Part, parent: bytes) -> bool:
        """See ``Vault``."""
        values.seal(part, parent)
        return True

    def check(self, part: Part, lent: Part, parent: bytes) -> Status:
        """See ``Vault``."""
        return values.check(part, parent)

    def warning(self) -> str:
        """See ``Vault``."""
        return ""


class Locked:
    """Values encrypted.

    Args:
        tier: told of the memory in which parts lie.
        keys: to encrypt and decrypt with.
        clock: seconds, never going back.

    Raises:
        TierError: the package that does it is missing.
    """

    def __init__(
        self, tier: Tier, keys: Keyring, clock: Callable[[], float] = time.monotonic
    ) -> None:
        try:
            cipher = importlib.import_module("server.tiers.encryption")
        except ImportError:
            text = f"keys=: the package cryptography is missing: {install('encryption')}"
            raise TierError(text) from None
        self._encrypt = cast("Callable[[Part, bytes, Key, memoryview], None]", cipher.encrypt)
        self._decrypt = cast("Callable[[Part, bytes, Keys, memoryview], Status]", cipher.decrypt)
        self._tier = tier
        self._keys = keys
        self._clock = clock
        self._rooms = threading.local()
        self._locked_s = self._keyless_s = -WARNED_S

    def lend(self, parts: Sequence[Part]) -> Sequence[Part]:
        """See ``Vault``; the headers are those of the parts, which are not in L1.

        Raises:
            Exception: whatever a tier raises that cannot use more memory.
        """
        room = self._room(sum(len(part.room) for part in parts))
        lent, at = [], 0
        for part in parts:
            end = at + len(part.room)
            lent.append(replace(part, room=room.data[at:end], address=room.address + at))
            at = end
        return lent

    def seal(self, part: Part, lent: Part, parent: bytes) -> bool:
        """See ``Vault``."""
        key = self._keys.now().writing(part.name.fingerprint)
        if key is None:
            self._keyless_s = self._clock()
            return False
        self._encrypt(part, parent, key, lent.payload)
        return True

    def check(self, part: Part, lent: Part, parent: bytes) -> Status:
        """See ``Vault``."""
        status = self._decrypt(part, parent, self._keys.now(), lent.payload)
        if status == Status.LOCKED:
            self._locked_s = self._clock()
        return status

    def warning(self) -> str:
        """See ``Vault``."""
        path, now_s = self._keys.path, self._clock()
        self._keys.now()
        found = [self._keys.trouble]
        if now_s - self._locked_s < WARNED_S:
            found.append(f"values are there that no key of {path} was used for: they are misses")
        if now_s - self._keyless_s < WARNED_S:
            found.append(f"a namespace has no key in {path}: its values are not written")
        return "; ".join(filter(None, found))

    def _room(self, num_bytes: int) -> _Room:
        room: _Room | None = getattr(self._rooms, "room", None)
        if room is not None and len(room.data) >= num_bytes:
            return room
        if room is not None:
            del self._rooms.room
            self._tier.unregister(room.address, len(room.data))
        wanted = max(ROOM_BYTES, -(-num_bytes // _STEP_BYTES) * _STEP_BYTES)
        room = _Room(wanted)
        self._tier.register(room.address, wanted)
        self._rooms.room = room
        return room


class _Room:
    """Memory at whole pages, which the system gives as it is written; never given back."""

    def __init__(self, num_bytes: int) -> None:
        self.data = memoryview(mmap.mmap(-1, num_bytes))
        self.address = int(np.frombuffer(self.data, np.uint8).ctypes.data)


def vault_of(tier: Tier, path: str) -> Vault:
    """Opens what becomes of a tier's values.

    Args:
        tier: opened.
        path: of the file of keys; empty: values stay as they are.

    Raises:
        TierError: the file will not do, or a package is missing.
    """
    return Locked(tier, Keyring(path)) if path else Open()
