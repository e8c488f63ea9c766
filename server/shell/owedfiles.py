"""What tiers are still to forget, a small file for each namespace and tier, in the arena's folder.

Purpose: a CLEAR that a tier has not carried out yet outlives this server: the next one reads the
file, and neither reads nor writes that namespace there before it is done. A file that cannot be
read stands for all of the namespace. Must not know: who asked, how a tier forgets. Runs in: the
arena's thread; ``read`` in the main thread, at start.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from protocol.ids import ID_BYTES, Fingerprint
from server.core.effects import KeepOwed, TierId
from server.core.tiers.forgetting import MAX_OWED_KEYS
from server.core.tiers.parts import MAX_KEYS
from server.shell.namespacefiles import SHORTAGES, read_whole, write_whole
from server.tierspec import TierSpec

FOLDER = "owed"

_HEAD = struct.Struct("<8sI")
_MAGIC = b"kvowed1\n"
_MAX_BYTES = _HEAD.size + (MAX_OWED_KEYS + MAX_KEYS) * ID_BYTES
_NAME = re.compile(r"([0-9a-f]{32})\.([0-9a-f]{32})")


@dataclass(frozen=True)
class OwedFile:
    """What one file says.

    Attributes:
        tier: of this server.
        fingerprint: of the namespace.
        shards: parts of a chunk; 0 where it does not count.
        keys: 16 bytes per chunk; empty for all of the namespace.
    """

    tier: TierId
    fingerprint: Fingerprint
    shards: int
    keys: bytes


def store_of(spec: TierSpec) -> str:
    """The store that a tier keeps its values in, whatever place and name a server gives it."""
    return sha256(spec.store.encode()).hexdigest()[:32]


def keep(directory: str, store: str, owed: KeepOwed) -> None:
    """Writes a file anew.

    Args:
        directory: the arena's.
        store: of the tier.
        owed: what to write.

    Raises:
        OSError: it cannot be written; what it said before still stands.
    """
    head = _HEAD.pack(_MAGIC, owed.shards)
    write_whole(_path(directory, owed.fingerprint, store), head + owed.keys)


def drop(directory: str, store: str, fingerprint: Fingerprint) -> None:
    """Removes a file; one that is gone already is fine."""
    try:
        os.unlink(_path(directory, fingerprint, store))
    except FileNotFoundError:
        pass


def read(directory: str, specs: Sequence[TierSpec]) -> list[OwedFile]:
    """Reads what a predecessor left for these tiers; what is for others stays for who has them.

    Args:
        directory: the arena's; its folder exists.
        specs: this server's tiers, in the order of asking.

    Raises:
        OSError: out of descriptors or memory.
    """
    tiers = {store_of(spec): TierId(number) for number, spec in enumerate(specs)}
    found = []
    for entry in sorted(os.listdir(f"{directory}/{FOLDER}")):
        name = _NAME.fullmatch(entry)
        if name is None or name[2] not in tiers:
            continue
        shards, keys = _content(f"{directory}/{FOLDER}/{entry}")
        fingerprint = Fingerprint(bytes.fromhex(name[1]))
        found.append(OwedFile(tiers[name[2]], fingerprint, shards, keys))
    return found


def _content(path: str) -> tuple[int, bytes]:
    """Shards and keys; none of both, which is all, of a file that is torn or something else."""
    try:
        data = read_whole(path, _MAX_BYTES)
    except OSError as error:
        if error.errno in SHORTAGES:
            raise
        return 0, b""
    if len(data) < _HEAD.size:
        return 0, b""
    (magic, shards), keys = _HEAD.unpack_from(data), data[_HEAD.size :]
    if magic != _MAGIC or not shards or len(keys) % ID_BYTES:
        return 0, b""
    return shards, keys


def _path(directory: str, fingerprint: Fingerprint, store: str) -> str:
    return f"{directory}/{FOLDER}/{fingerprint.hex()}.{store}"
