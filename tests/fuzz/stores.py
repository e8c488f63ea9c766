"""What a fuzzed lower tier holds: names of parts instead of bytes, and what it says of them.

A store outlives its porters and its servers, and others write to it too. Knows no core, no jobs.
Runs in the fuzzer's process.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from server.core.effects import TierDrop, TierList, TierProbe
from server.core.tiers.listed import Listed
from server.core.tiers.parts import Status, pack_names

ID = 16
_BAD = (Status.ABSENT, Status.CORRUPT, Status.ERROR)


class Name(NamedTuple):
    """One part of one chunk.

    Attributes:
        fingerprint: of the namespace.
        key: of the chunk.
        shard: which part.
    """

    fingerprint: bytes
    key: bytes
    shard: int


class Brought(NamedTuple):
    """What a slot holds after a part was read into it.

    Attributes:
        name: of the part.
        tier: from which one.
        serial: of the last frame before that part was written to the tier.
    """

    name: Name
    tier: int
    serial: int


@dataclass
class Store:
    """One tier's content.

    Attributes:
        parts: what is there, with the serial of the last frame before it was written.
        spoilt: of these, whose bytes are not what they were.
        lost: of these, what it claims to have and cannot read.
        texts: descriptions of namespaces; None for one that cannot list.
        salts: under which salt each part was stored first; none for no salt.
        parents: of each chunk that was ever written, in that order.
        lists: what is still to be told of a list, by namespace.
    """

    parts: dict[Name, int] = field(default_factory=dict)
    spoilt: set[Name] = field(default_factory=set)
    lost: set[Name] = field(default_factory=set)
    texts: dict[bytes, bytes] | None = field(default_factory=dict)
    salts: dict[Name, bytes] = field(default_factory=dict)
    parents: dict[tuple[bytes, bytes], bytes] = field(default_factory=dict)
    lists: dict[bytes, tuple[int, list[bytes]]] = field(default_factory=dict)

    def put(self, name: Name, parent: bytes, serial: int, salt: bytes = b"") -> None:
        """A part is written, over whatever was there."""
        if name not in self.parts:
            self.salts[name] = salt
        self.parts[name] = serial
        self.spoilt.discard(name)
        self.lost.discard(name)
        self.parents.setdefault((name.fingerprint, name.key), parent)

    def get(self, name: Name, draw: random.Random | None) -> Status:
        """How reading a part goes.

        Args:
            name: which.
            draw: makes some fail that need not.
        """
        if draw is not None and draw.random() < 0.3:
            return draw.choice(_BAD)
        if name not in self.parts or name in self.lost:
            return Status.ABSENT
        return Status.CORRUPT if name in self.spoilt else Status.OK

    def probe(self, job: TierProbe) -> int:
        """Leading chunks of which all wanted parts are there."""
        shards = range(job.first, job.first + job.shards)
        for number, at in enumerate(range(0, len(job.keys), ID)):
            key = job.keys[at : at + ID]
            if any(Name(job.fingerprint, key, shard) not in self.parts for shard in shards):
                return number
        return len(job.keys) // ID

    def drop(self, job: TierDrop) -> None:
        """Forgets chunks, or a namespace."""
        keys = {job.keys[at : at + ID] for at in range(0, len(job.keys), ID)}
        gone = [
            name
            for name in self.parts
            if name.fingerprint == job.fingerprint and (not keys or name.key in keys)
        ]
        for name in gone:
            del self.parts[name]
            self.salts.pop(name, None)
        if not keys and self.texts is not None:
            self.texts.pop(job.fingerprint, None)

    def listed(self, job: TierList, page: int) -> bytes | None:
        """What a question for what is there is answered with.

        Args:
            job: the question.
            page: chunks of one answer.
        """
        name = job.fingerprint
        if self.texts is None:
            return None
        if job.what is Listed.OF_SALT:
            mine = (one for one in self.parts if self.salts.get(one) == name)
            return pack_names(islice(mine, job.most))
        if job.what is Listed.NAMESPACES:
            return b"".join(self.texts)
        if job.what is Listed.NAMESPACE:
            return self.texts.get(name, b"")
        if job.what is Listed.HOTTEST:
            pairs = [
                key + parent
                for (space, key), parent in self.parents.items()
                if space == name and Name(name, key, job.shard) in self.parts
            ][: job.most]
            self.lists[name] = (len(pairs), pairs)
        total, left = self.lists.get(name, (0, []))
        self.lists[name] = (total, left[page:])
        more = bool(left[page:])
        return total.to_bytes(4, "little") + more.to_bytes(4, "little") + b"".join(left[:page])
