"""Lists of what a tier has: each chunk once, parents first, a page at a time."""

from __future__ import annotations

import random
import struct
import threading

import pytest

from server.core.tiers.parts import PAGE_CHUNKS
from server.porter.jobs import Performer
from server.porter.listing import MAX_LISTINGS, Listing, Listings
from server.porter.memory import Memory
from server.porter.wire import Command, Kind, pack_answer, pack_command, unpack_answer
from server.tiers import values
from server.tiers.interface import HEADER_BYTES, Name, Part
from tests.server.porter.memorytier import MemoryTier
from tests.server.porter.rows import OTHER, SPACE, key

NOBODY = bytes(16)


def header(name: Name, parent: bytes) -> bytes:
    part = Part(name, memoryview(bytearray(HEADER_BYTES)), memoryview(bytearray(64)), 64, 0)
    values.seal(part, parent)
    return bytes(part.header)


class ListingTier(MemoryTier):
    """Knows what it has: parents by key, the hottest first."""

    def __init__(self, parents: dict[bytes, bytes]) -> None:
        super().__init__()
        self.parents = parents
        self.described: dict[bytes, bytes] = {}
        self.peeks = 0

    def keep_namespace(self, fingerprint: bytes, text: bytes) -> None:
        self.described[fingerprint] = text

    def namespaces(self) -> list[bytes]:
        return list(self.described)

    def namespace(self, fingerprint: bytes) -> bytes:
        return self.described.get(fingerprint, b"")

    def hottest(self, fingerprint: bytes, shard: int, most: int) -> list[bytes]:
        return list(self.parents)[:most]

    def peek(self, name: Name) -> bytes:
        self.peeks += 1
        parent = self.parents.get(name.key)
        return b"" if parent is None else header(name, parent)


def read(listing: Listing) -> list[tuple[bytes, bytes]]:
    pairs: list[bytes] = []
    while not listing.is_over:
        page = listing.page(lambda: None)
        assert len(page) <= PAGE_CHUNKS
        pairs += page
    return [(pair[:16], pair[16:]) for pair in pairs]


def tree(rng: random.Random, size: int) -> dict[bytes, bytes]:
    parents = {}
    for number in range(1, size + 1):
        above = rng.choice([0, number - 1, rng.randrange(number)])
        parents[key(number)] = key(above) if above else NOBODY
    keys = list(parents)
    rng.shuffle(keys)
    return {one: parents[one] for one in keys}


@pytest.mark.parametrize("size", [0, 1, 30, PAGE_CHUNKS, 3 * PAGE_CHUNKS + 7])
def test_any_tree_is_told_once_and_parents_first(size: int) -> None:
    for seed in range(3):
        tier = ListingTier(tree(random.Random(seed), size))
        told = read(Listing(tier, SPACE, 2, tier.hottest(SPACE, 2, 1 << 20)))
        seen = {NOBODY}
        for one, parent in told:
            assert parent in seen
            assert tier.parents[one] == parent
            assert one not in seen
            seen.add(one)
        assert len(told) == size
        assert tier.peeks == size


def test_the_hottest_chain_comes_first_and_whole() -> None:
    chains = [[key(100 * number + at) for at in range(1, 6)] for number in range(3)]
    parents = {
        one: parent
        for keys in chains
        for one, parent in reversed(list(zip(keys, [NOBODY, *keys], strict=False)))
    }
    tier = ListingTier(parents)
    told = [one for one, _ in read(Listing(tier, SPACE, 0, list(parents)))]
    assert told == [one for keys in chains for one in keys]


def test_what_went_meanwhile_or_goes_in_a_ring_is_left_out() -> None:
    gone, ring = key(1), [key(2), key(3)]
    tier = ListingTier({ring[0]: ring[1], ring[1]: ring[0], key(5): key(4)})
    told = read(Listing(tier, SPACE, 0, [gone, *ring, key(5)]))
    # Whoever loads them finds that nothing leads there.
    assert sorted(one for one, _ in told) == sorted([*ring, key(5)])


def test_a_long_chain_takes_more_than_one_page_to_climb() -> None:
    count = 3 * PAGE_CHUNKS
    parents = {key(n): key(n - 1) if n > 1 else NOBODY for n in range(count, 0, -1)}
    tier = ListingTier(parents)
    listing = Listing(tier, SPACE, 0, list(parents))
    assert listing.page(lambda: None) == []
    assert tier.peeks == PAGE_CHUNKS
    assert [one for one, _ in read(listing)] == [key(n) for n in range(1, count + 1)]


class Rig:
    def __init__(self, tier: MemoryTier) -> None:
        self.tier = tier
        self.moves = 0
        self.performer = Performer(tier, Memory(tier), 0, threading.Event(), self._moved)

    def _moved(self) -> None:
        self.moves += 1

    def ask(
        self, kind: Kind, space: bytes = SPACE, most: int = 1 << 20, text: bytes = b""
    ) -> bytes | str:
        """As over the socket."""
        command = Command(kind, 7, fingerprint=space, shards=most, text=text)
        assert len(pack_command(command)) > 0
        answer = unpack_answer(pack_answer(self.performer.perform(command)))
        assert (answer.kind, answer.number) == (kind, 7)
        return answer.statuses if answer.error is None else answer.error


def test_an_engine_that_cannot_list_says_so_and_keeps_nothing() -> None:
    rig = Rig(MemoryTier())
    assert rig.ask(Kind.KEEP, text=b"one") == b""
    for kind in (Kind.NAMESPACES, Kind.NAMESPACE, Kind.HOTTEST, Kind.NEXT):
        assert rig.ask(kind) == "", "no error that anybody should be told"


def test_namespaces_and_pages_travel_as_the_core_reads_them() -> None:
    count = PAGE_CHUNKS + 10
    tier = ListingTier({key(n): NOBODY for n in range(1, count + 1)})
    rig = Rig(tier)
    assert rig.ask(Kind.KEEP, text=b"one") == b""
    assert rig.ask(Kind.KEEP, OTHER, text=b"two") == b""
    assert rig.ask(Kind.NAMESPACES, bytes(16)) == SPACE + OTHER
    assert rig.ask(Kind.NAMESPACE, OTHER) == b"two"
    first = rig.ask(Kind.HOTTEST)
    assert isinstance(first, bytes)
    assert struct.unpack_from("<II", first) == (count, 1)
    assert len(first) == 8 + 32 * PAGE_CHUNKS
    assert rig.moves >= PAGE_CHUNKS
    last = rig.ask(Kind.NEXT)
    assert isinstance(last, bytes)
    assert struct.unpack_from("<II", last) == (count, 0)
    assert len(last) == 8 + 32 * 10
    assert rig.ask(Kind.NEXT) == bytes(8)
    few = rig.ask(Kind.HOTTEST, most=3)
    assert isinstance(few, bytes)
    assert struct.unpack_from("<II", few) == (3, 0)


def test_lists_that_nobody_reads_to_their_end_are_few() -> None:
    tier = ListingTier({key(n): NOBODY for n in range(1, 2 * PAGE_CHUNKS)})
    listings = Listings(tier, lambda: None)
    spaces = [bytes([number]) * 16 for number in range(MAX_LISTINGS + 1)]
    for space in spaces:
        listings.answer(Command(Kind.HOTTEST, 1, fingerprint=space, shards=1 << 20))
    assert listings.answer(Command(Kind.NEXT, 2, fingerprint=spaces[0])) == bytes(8)
    assert len(listings.answer(Command(Kind.NEXT, 2, fingerprint=spaces[1]))) > 8


def test_an_engine_that_fails_is_an_error_that_names_no_secret() -> None:
    class Broken(ListingTier):
        def namespaces(self) -> list[bytes]:
            raise OSError(5, "Input/output error", "/secret")

        def peek(self, name: Name) -> bytes:
            raise RuntimeError("password=hunter2")

    rig = Rig(Broken({key(1): NOBODY}))
    assert rig.ask(Kind.NAMESPACES) == "OSError: Input/output error"
    told = rig.ask(Kind.HOTTEST)
    assert isinstance(told, str)
    assert "hunter2" not in told
