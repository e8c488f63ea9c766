"""The keys that values below are encrypted with: read from a file, read again when it changes.

Purpose: which key writes a namespace's values, and which one a value was written with. The file is
the operator's: a line ``name = 64 hexadecimal digits`` is a key for all namespaces, and ``name
fingerprint = …`` one for that namespace alone; of those that are for a namespace alone, or without
any of those for all, the last one writes, and each reads. Must not know: values, tiers. Runs in:
the porter, on its worker threads.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from server.tiers.credentials import text_of, unfit
from server.tiers.interface import Name, TierError

OPTION = "keys"
MAX_FILE_BYTES = 256 << 10
SECRET_BYTES, ID_BYTES = 32, 8
LOOK_EVERY_S = 1.0
"""How often a thread looks whether the file is another one."""

_LINE = re.compile(
    r"(?P<name>[A-Za-z0-9._-]{1,40})(?:\s+(?P<space>[0-9a-f]{32}))?\s*=\s*(?P<secret>[0-9a-fA-F]{64})"
)
_EXPECTED = "expected name = 64 hexadecimal digits, or name fingerprint = 64 hexadecimal digits"
_TO_NAME, _TO_ENCRYPT = b"kvkeep/l2/key-id/1", b"kvkeep/l2/aes-256-gcm/1"


@dataclass(frozen=True)
class Key:
    """One key of the file.

    Attributes:
        name: the operator's word for it.
        space: fingerprint of the one namespace that it is for, empty for all.
        id: 8 bytes that values carry; they follow from the secret, which does not follow from them.
    """

    name: str
    space: bytes
    secret: bytes = field(repr=False)
    id: bytes = b""

    def of_value(self, name: Name) -> bytes:
        """The 32 bytes that one value is encrypted with.

        A key of its own for each: 96 random bits would meet again too soon if one key had to do for
        all values of a large store.
        """
        words = (_TO_ENCRYPT, name.fingerprint, name.key, name.shard.to_bytes(4, "little"))
        return hmac.digest(self.secret, b"".join(words), hashlib.sha256)


class Keys:
    """All keys of a file, which does not change.

    Args:
        found: in the file's order.
    """

    def __init__(self, found: Sequence[Key]) -> None:
        self._by_id = {key.id: key for key in found}
        self._writing = {key.space: key for key in found}

    def writing(self, fingerprint: bytes) -> Key | None:
        """The key that a namespace's values are encrypted with; None: they cannot be."""
        return self._writing.get(fingerprint) or self._writing.get(b"")

    def reading(self, fingerprint: bytes, key_id: bytes) -> Key | None:
        """The key of that id, if it is one for that namespace."""
        key = self._by_id.get(key_id)
        return key if key is not None and key.space in (b"", fingerprint) else None


def read_keys(path: str) -> Keys:
    """Reads a file of keys.

    Args:
        path: absolute.

    Raises:
        TierError: it cannot be read, is not ours alone, has a line that is none, the same name or
            secret twice, or no key. The text shows nothing of it.
    """
    found: list[Key] = []
    lines = text_of(OPTION, path, MAX_FILE_BYTES, is_ours=True).splitlines()
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise unfit(OPTION, path, f"line {number}: {_EXPECTED}")
        secret = bytes.fromhex(match["secret"])
        key_id = hmac.digest(secret, _TO_NAME, hashlib.sha256)[:ID_BYTES]
        key = Key(match["name"], bytes.fromhex(match["space"] or ""), secret, key_id)
        if any(key.name == one.name or key.id == one.id for one in found):
            raise unfit(OPTION, path, f"line {number}: that name or that secret was there before")
        found.append(key)
    if not found:
        raise unfit(OPTION, path, f"no key is in it; {_EXPECTED}")
    return Keys(found)


class Keyring:
    """The keys of a file as they are now.

    Args:
        path: absolute.
        clock: seconds, never going back.

    Raises:
        TierError: as ``read_keys``.

    Attributes:
        path: of the file.
        trouble: why the file as it is now is not used, but the one before; empty for none.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.trouble = ""
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_s = clock()
        # Before it is read: what changes meanwhile is seen at the next look.
        self._seen = self._state()
        self._keys = read_keys(path)

    def now(self) -> Keys:
        """The keys; the file is read again if it changed, and what cannot be used changes nothing.

        A thread that finds another one at it takes what was there before.
        """
        if self._clock() - self._looked_s >= LOOK_EVERY_S and self._lock.acquire(blocking=False):
            try:
                self._looked_s = self._clock()
                self._look()
            finally:
                self._lock.release()
        return self._keys

    def _look(self) -> None:
        state = self._state()
        # One that could not be used may be in order though its times are what they were.
        if state == self._seen and not self.trouble:
            return
        self._seen = state
        try:
            self._keys = read_keys(self.path)
            self.trouble = ""
        except TierError as error:
            self.trouble = f"{error}; the keys read before are used on"

    def _state(self) -> tuple[int, ...]:
        try:
            found = os.stat(self.path)
        except OSError:
            return ()
        return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
