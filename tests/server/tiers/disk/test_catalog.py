"""The catalog: a slot has one owner, the oldest go first, and nobody loses what is being read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from server.tiers.disk.catalog import Catalog, Place
from server.tiers.disk.entries import Entry
from server.tiers.disk.plan import NAME_BYTES
from server.tiers.disk.segments import Segment, State
from server.tiers.disk.shares import whose
from server.tiers.disk.victims import VICTIMS_SHARE

SLOT = 8192
NAMES = st.integers(0, 30)


def name(number: int, fingerprint: int = 1) -> bytes:
    return bytes([fingerprint]) * 16 + number.to_bytes(NAME_BYTES - 16, "big")


def segment(number: int, count: int, slot_bytes: int = SLOT) -> Segment:
    return Segment(number, slot_bytes, count, -1, True, "")


ONE = whose(name(0))


class Noted(dict[bytes, Entry]):
    """What an index file would hold."""

    def __call__(self, one: bytes, entry: Entry | None) -> None:
        if entry is None:
            self.pop(one, None)
        else:
            self[one] = entry


def made(count: int, span: int = 1, most: int = 1 << 20) -> tuple[Catalog, Noted]:
    noted = Noted()
    catalog = Catalog(span, most, noted)
    catalog.add(segment(1, count))
    return catalog, noted


def store(catalog: Catalog, number: int, slot_bytes: int = SLOT) -> Place | None:
    taker = whose(name(number))
    place = catalog.take(slot_bytes, taker)
    if place is None and evict(catalog, slot_bytes):
        place = catalog.take(slot_bytes, taker)
    if place is not None:
        catalog.publish(name(number), place, 0)
    return place


def evict(catalog: Catalog, slot_bytes: int) -> bool:
    if catalog.evict(slot_bytes):
        return True
    return catalog.choose(slot_bytes) and catalog.evict(slot_bytes)


def there(catalog: Catalog, numbers: range) -> list[int]:
    found = catalog.exist([name(number) for number in numbers])
    return [number for number, is_there in zip(numbers, found, strict=True) if is_there]


def test_exactly_the_least_recently_used_goes_where_a_span_is_one_slot() -> None:
    catalog, _ = made(4)
    for number in range(4):
        store(catalog, number)
    assert catalog.touch(name(0), 1)
    for number in range(4, 6):
        store(catalog, number)
    assert there(catalog, range(6)) == [0, 3, 4, 5]


def test_inside_a_span_of_age_the_latest_goes_first() -> None:
    catalog, _ = made(4, span=SLOT * 4)
    for number in range(4):
        store(catalog, number)
    gone = []
    for number in range(4, 7):
        before = there(catalog, range(7))
        store(catalog, number)
        gone += sorted(set(before) - set(there(catalog, range(7))))
    assert gone == sorted(gone, reverse=True)
    assert 0 in there(catalog, range(7))


def test_what_is_read_is_neither_evicted_nor_written_over() -> None:
    catalog, noted = made(1)
    store(catalog, 0)
    place = catalog.pin(name(0))
    assert place is not None
    assert store(catalog, 1) is None
    assert catalog.forget(name(0))
    assert name(0) not in noted
    assert catalog.pin(name(0)) is None
    assert catalog.take(SLOT, ONE) is None, "somebody still reads it"
    catalog.unpin(place)
    assert catalog.take(SLOT, ONE) is not None


def test_two_readers_of_one_slot() -> None:
    catalog, _ = made(1)
    store(catalog, 0)
    places = [place for _ in range(2) if (place := catalog.pin(name(0))) is not None]
    catalog.forget(name(0))
    for place in places:
        assert catalog.take(SLOT, ONE) is None
        catalog.unpin(place)
    assert catalog.take(SLOT, ONE) is not None


def test_of_two_that_store_the_same_the_second_gives_its_slot_back() -> None:
    catalog, noted = made(2)
    first, second = catalog.take(SLOT, ONE), catalog.take(SLOT, ONE)
    assert first is not None
    assert second is not None
    catalog.publish(name(0), first, 0)
    catalog.publish(name(0), second, 0)
    assert (catalog.count, noted[name(0)].slot) == (1, first.slot)
    assert catalog.take(SLOT, ONE) == second


def test_forgetting_a_place_that_another_value_has_now_is_nothing() -> None:
    catalog, _ = made(1)
    old = store(catalog, 0)
    store(catalog, 1)
    assert not catalog.forget(name(0), old)
    assert not catalog.forget(name(1), Place(segment(9, 1), 0))
    assert there(catalog, range(2)) == [1]


def test_a_namespace_is_cleared_alone() -> None:
    catalog, noted = made(8)
    for number in range(4):
        for fingerprint in (1, 2):
            place = catalog.take(SLOT, whose(name(number, fingerprint)))
            assert place is not None
            catalog.publish(name(number, fingerprint), place, 0)
    assert catalog.clear(bytes([1]) * 16) == 4
    assert set(noted) == {name(number, 2) for number in range(4)}
    assert catalog.used_bytes == 4 * SLOT
    assert catalog.held()[0] == ((bytes([2]) * 16, 4 * SLOT),)


def test_the_index_bounds_the_number_of_values() -> None:
    catalog, _ = made(8, most=3)
    for number in range(5):
        store(catalog, number)
    assert catalog.is_full
    assert there(catalog, range(5)) == [2, 3, 4]


def test_segments_of_other_slots_go_when_they_are_older_than_all() -> None:
    catalog, noted = made(2)
    store(catalog, 0)
    assert catalog.coldest(4 * SLOT) is catalog.segments[1]
    catalog.add(segment(2, 2, 4 * SLOT))
    place = store(catalog, 10, 4 * SLOT)
    assert catalog.coldest(4 * SLOT) is catalog.segments[1], "used before anything of its own"
    assert catalog.touch(name(0), 0)
    assert catalog.coldest(4 * SLOT) is None
    assert catalog.coldest(SLOT) is not None
    pinned = catalog.pin(name(10))
    assert pinned is not None
    assert pinned == place
    assert catalog.coldest(SLOT) is None, "not while it is read"
    assert not catalog.remove(catalog.segments[2])
    catalog.unpin(pinned)
    gone = catalog.segments[2]
    assert catalog.remove(gone)
    assert not catalog.remove(gone)
    assert set(noted) == {name(0)}
    assert (catalog.count, catalog.used_bytes) == (1, SLOT)


def test_held_segments_stay() -> None:
    catalog, _ = made(2)
    one = catalog.segments[1]
    catalog.hold([one])
    assert not catalog.remove(one)
    catalog.let_go([one])
    assert catalog.remove(one)


def test_what_an_earlier_run_left_is_found_and_the_clock_goes_on() -> None:
    catalog, noted = Catalog(1, 100, Noted()), Noted()
    one = segment(3, 4)
    rows = np.frombuffer(name(7) + name(8), np.uint8).reshape(2, NAME_BYTES)
    stamps, uses = np.array([500, 400], np.uint64), np.array([9, 1], np.uint32)
    groups = catalog.shares.numbers(rows, np.zeros((2, 16), np.uint8))
    one.adopt(np.array([1, 2]), rows, stamps, uses, groups)
    one.adopted()
    catalog.add(one)
    assert there(catalog, range(10)) == [7, 8]
    assert catalog.held()[0] == ((bytes([1]) * 16, 2 * SLOT),)
    assert dict(catalog.entries()) == {name(7): Entry(3, 1, 9, 500), name(8): Entry(3, 2, 1, 400)}
    for number in (1, 2):
        assert store(catalog, number) is not None
    assert min(entry.stamp for found, entry in catalog.entries() if found == name(1)) > 500
    store(catalog, 3)
    assert there(catalog, range(10)) == [1, 2, 3, 7], noted


def test_last_uses_are_noted_when_asked_for() -> None:
    catalog, noted = made(4)
    for number in range(3):
        store(catalog, number)
    before = dict(noted)
    place = catalog.pin(name(1))
    assert place is not None
    catalog.unpin(place)
    catalog.touch(name(2), 77)
    catalog.forget(name(2))
    assert dict(noted) == {one: before[one] for one in (name(0), name(1))}
    catalog.note_uses()
    assert noted[name(0)] == before[name(0)]
    assert noted[name(1)].stamp > before[name(1)].stamp
    assert noted[name(1)].uses == 1
    assert name(2) not in noted


def test_last_uses_are_noted_a_few_at_a_time() -> None:
    waited: list[int] = []
    held: list[bytes] = []

    def note(one: bytes, entry: Entry | None) -> None:
        held.append(one)

    class Lock:
        """Notes how much was written under it each time."""

        def __enter__(self) -> None:
            held.clear()

        def __exit__(self, *exc_info: object) -> None:
            waited.append(len(held))

    catalog = Catalog(1, 1 << 20, note)
    catalog.add(segment(1, 600))
    for number in range(600):
        store(catalog, number)
        catalog.touch(name(number), 1)
    catalog.lock = Lock()  # type: ignore[assignment]
    catalog.note_uses()
    assert sum(waited) == 600
    assert max(waited) <= 256


def test_victims_are_chosen_many_at_a_time_and_still_the_oldest() -> None:
    count = 10 * VICTIMS_SHARE
    catalog, _ = made(count)
    for number in range(count):
        store(catalog, number)
    for number in range(5):
        catalog.touch(name(number), 1)
    for number in range(count, count + 20):
        store(catalog, number)
    assert there(catalog, range(30)) == [0, 1, 2, 3, 4, 25, 26, 27, 28, 29]


class Model(RuleBasedStateMachine):
    """Against a dict: two slot lengths, readers, writers, everything in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.noted = Noted()
        self.catalog = Catalog(3 * SLOT, 7, self.noted)
        self.catalog.add(segment(1, 4))
        self.catalog.add(segment(2, 3, 2 * SLOT))
        self.content: dict[tuple[int, int], bytes] = {}
        self.readers: list[tuple[bytes, Place]] = []
        self.writers: list[tuple[bytes, Place]] = []

    @rule(number=NAMES, is_long=st.booleans())
    def take(self, number: int, is_long: bool) -> None:
        place = self.catalog.take(SLOT * (1 + is_long), ONE)
        if place is not None:
            at = (place.segment.number, place.slot)
            assert at not in [(p.segment.number, p.slot) for _, p in self.readers + self.writers]
            self.content[at] = name(number)
            self.writers.append((name(number), place))

    @precondition(lambda self: self.writers)
    @rule(is_good=st.booleans())
    def finish(self, is_good: bool) -> None:
        one, place = self.writers.pop(0)
        if is_good:
            self.catalog.publish(one, place, 1)
        else:
            self.catalog.give_back(place)

    @rule(number=NAMES)
    def read(self, number: int) -> None:
        place = self.catalog.pin(name(number))
        assert (place is not None) == (name(number) in self.noted)
        if place is not None:
            self.readers.append((name(number), place))

    @precondition(lambda self: self.readers)
    @rule()
    def end_reading(self) -> None:
        one, place = self.readers.pop(0)
        assert self.content[place.segment.number, place.slot] == one
        self.catalog.unpin(place)

    @rule(number=NAMES)
    def forget(self, number: int) -> None:
        was_there = name(number) in self.noted
        assert self.catalog.forget(name(number)) == was_there

    @rule(is_long=st.booleans())
    def evict(self, is_long: bool) -> None:
        before = self.catalog.count
        assert before - evict(self.catalog, SLOT * (1 + is_long)) == self.catalog.count

    @invariant()
    def counts_agree(self) -> None:
        entries = dict(self.catalog.entries())
        assert set(entries) == set(self.noted)
        assert self.catalog.count == len(entries)
        for one, entry in entries.items():
            assert self.content[entry.segment, entry.slot] == one
        used = [s.slot_bytes * int((s.states == State.USED).sum()) for s in self.segments()]
        assert self.catalog.used_bytes == sum(used)
        spaces: Counter[bytes] = Counter()
        for one, entry in entries.items():
            spaces[one[:16]] += self.catalog.segments[entry.segment].slot_bytes
        assert dict(self.catalog.held()[0]) == spaces
        assert sum(s.busy for s in self.segments()) == len(self.readers) + len(self.writers)

    def segments(self) -> Iterator[Segment]:
        return iter(self.catalog.segments.values())


TestModel = Model.TestCase


def test_namespaces_are_those_that_have_a_value() -> None:
    catalog, _ = made(8)
    for number, space in enumerate([0, 255, 255, 7]):
        place = catalog.take(SLOT, whose(name(number, space)))
        assert place is not None
        catalog.publish(name(number, space), place, 0)
    assert catalog.namespaces() == {bytes(16), b"\xff" * 16, b"\7" * 16}
    catalog.clear(b"\7" * 16)
    assert catalog.namespaces() == {bytes(16), b"\xff" * 16}
    assert made(4)[0].namespaces() == set()


def test_the_hottest_are_those_used_last_and_in_a_span_those_used_most() -> None:
    rng = Random(3)
    catalog = Catalog(age_bytes=10 * SLOT, max_values=1000, note=lambda name, entry: None)
    catalog.add(segment(1, 64))
    names = [b"f" * 16 + bytes([number]) * 16 + bytes(4) for number in range(40)]
    for name in names:
        place = catalog.take(SLOT, whose(name))
        assert place is not None
        catalog.publish(name, place, heat=rng.randrange(5))
    wanted = sorted(
        (
            (
                int(one.segment.stamps[one.slot]) // (10 * SLOT),
                int(one.segment.uses[one.slot]),
                int(one.segment.stamps[one.slot]),
                name,
            )
            for name in names
            if (one := catalog.pin(name, is_use=False)) is not None
        ),
        reverse=True,
    )
    assert catalog.hottest(b"f" * 16, bytes(4), 40) == [name for *_, name in wanted]
    assert catalog.hottest(b"f" * 16, bytes(4), 3) == [name for *_, name in wanted[:3]]
    assert catalog.hottest(b"g" * 16, bytes(4), 40) == []
    assert catalog.hottest(b"f" * 16, b"\0\0\0\1", 40) == []
