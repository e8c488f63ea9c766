"""What is in the slab, where, and what goes first.

Purpose: the truth while the porter lives; the index file only brings it back afterwards. Least
recently used goes first, by
spans of age: the clock counts bytes used, a 32nd of the slab is one span, and inside one the
latest use goes first. A chain is used from its start on, so its end goes before what it stands on.
Must not know: files' content, the index file. Runs in: the porter, on any thread; one lock, held
for no system call.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nlargest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.ids import ID_BYTES
from server.core.tiers.parts import MAX_SHARES
from server.tiers.disk.entries import Entry
from server.tiers.disk.nametable import NameTable
from server.tiers.disk.plan import NAME_BYTES
from server.tiers.disk.segments import Segment, State

MAX_TOUCHED = 65_536
"""Values whose last use is noted for the index file; further ones keep the one it has."""

VICTIMS_SHARE = 64
"""A 64th of the slots of one size is chosen at a time, so that choosing costs little for each."""

_SLOT_BITS = 24
_SLOT_MASK = (1 << _SLOT_BITS) - 1
_MAX_USES = (1 << 32) - 1
_HELD_NAMES = 256


class Place(NamedTuple):
    """A slot."""

    segment: Segment
    slot: int


Note = Callable[[bytes, Entry | None], None]
"""Told under the lock of each value that came, changed, or, with None, went."""


@dataclass
class SizeClass:
    """The segments whose slots have one length.

    Attributes:
        segments: all of them.
        victims: slots to evict next, with the stamp they had when they were chosen.
    """

    segments: list[Segment] = field(default_factory=list)
    victims: deque[tuple[Segment, int, int]] = field(default_factory=deque)


class Catalog:
    """All slots of a slab.

    Attributes:
        segments: by number.
        count: values.
        used_bytes: slots' bytes of all values.
        bytes_of: the same by namespace, by fingerprint.
    """

    def __init__(self, age_bytes: int, max_values: int, note: Note) -> None:
        """An empty one.

        Args:
            age_bytes: of use until the next span of ages begins.
            max_values: most that may be there.
            note: see ``Note``.
        """
        self.lock = threading.RLock()
        self.segments: dict[int, Segment] = {}
        self.count = 0
        self.used_bytes = 0
        self.bytes_of: dict[bytes, int] = {}
        self._classes: dict[int, SizeClass] = {}
        self._found = NameTable(self._name_at)
        self._clock = 1
        self._span = age_bytes
        self._max_values = max_values
        self._note = note
        self._touched: set[int] = set()

    @property
    def is_full(self) -> bool:
        """Whether the index has room for no further value."""
        return self.count >= self._max_values

    def add(self, segment: Segment) -> None:
        """Takes in a segment, with what it has adopted."""
        with self.lock:
            self.segments[segment.number] = segment
            self._classes.setdefault(segment.slot_bytes, SizeClass()).segments.append(segment)
            if not segment.used:
                return
            slots = np.flatnonzero(segment.states == State.USED)
            rows = np.frombuffer(segment.names, np.uint8).reshape(-1, NAME_BYTES)
            places = slots.astype(np.uint64) | np.uint64(segment.number << _SLOT_BITS)
            self._found.add_all(rows[slots].tobytes(), NAME_BYTES, places)
            self.count += segment.used
            self.used_bytes += segment.used * segment.slot_bytes
            spaces = np.ascontiguousarray(rows[slots, :ID_BYTES]).view(f"V{ID_BYTES}")
            for space, count in Counter(spaces.ravel().tolist()).items():
                self._account(space, count * segment.slot_bytes)
            self._clock = max(self._clock, int(segment.stamps.max()) + 1)

    def exist(self, names: list[bytes]) -> list[bool]:
        """Which are there; the lock is let go of now and then."""
        answers: list[bool] = []
        for at in range(0, len(names), _HELD_NAMES):
            with self.lock:
                answers += [self._place(name) is not None for name in names[at : at + _HELD_NAMES]]
        return answers

    def pin(self, name: bytes, is_use: bool = True) -> Place | None:
        """Finds a value, marks it used, and keeps its slot until ``unpin``."""
        with self.lock:
            place = self._place(name)
            if place is not None:
                segment, slot = place
                segment.pins[slot] = segment.pins.get(slot, 0) + 1
                segment.busy += 1
                if is_use:
                    self._use(place, int(segment.uses[slot]) + 1)
            return place

    def hottest(self, prefix: bytes, suffix: bytes, most: int) -> list[bytes]:
        """Names of values, those used last first, and inside a span of ages those used most.

        Args:
            prefix: what a name begins with.
            suffix: what it ends with.
            most: names wanted, at most.
        """
        begin, end = (np.frombuffer(one, np.uint8) for one in (prefix, suffix))
        found = [np.zeros((0, NAME_BYTES), np.uint8)]
        stamps, uses = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint32)]
        for segment in list(self.segments.values()):
            with self.lock:
                names = np.frombuffer(segment.names, np.uint8).reshape(-1, NAME_BYTES)
                is_its = (names[:, : len(begin)] == begin).all(axis=1)
                is_its &= (names[:, NAME_BYTES - len(end) :] == end).all(axis=1)
                slots = np.flatnonzero(is_its & (segment.states == State.USED))
                found.append(names[slots])
                stamps.append(segment.stamps[slots])
                uses.append(segment.uses[slots])
        when = np.concatenate(stamps)
        order = np.lexsort((when, np.concatenate(uses), when // np.uint64(self._span)))
        return [name.tobytes() for name in np.concatenate(found)[order[::-1][:most]]]

    def namespaces(self) -> set[bytes]:
        """Fingerprints, 16 bytes each, of which there is any value."""
        found: set[bytes] = set()
        for segment in list(self.segments.values()):
            with self.lock:
                names = np.frombuffer(segment.names, np.uint8).reshape(-1, NAME_BYTES)
                some = names[segment.states == State.USED, :ID_BYTES]
            found.update(one.tobytes() for one in np.unique(some, axis=0))
        return found

    def unpin(self, place: Place) -> None:
        """Ends what ``pin`` began."""
        segment, slot = place
        with self.lock:
            segment.busy -= 1
            left = segment.pins.pop(slot) - 1
            if left:
                segment.pins[slot] = left
            elif segment.states[slot] == State.DOOMED:
                segment.free(slot)

    def touch(self, name: bytes, heat: int) -> bool:
        """Whether a value is there, which counts as a use of it."""
        with self.lock:
            place = self._place(name)
            if place is not None:
                self._use(place, max(heat, int(place.segment.uses[place.slot])))
            return place is not None

    def take(self, slot_bytes: int) -> Place | None:
        """A free slot to write into, until ``publish`` or ``give_back``; None if there is none."""
        with self.lock:
            sized = self._classes.get(slot_bytes)
            if sized is None or self.count >= self._max_values:
                return None
            for segment in sized.segments:
                if segment.has_free:
                    segment.busy += 1
                    return Place(segment, segment.take())
        return None

    def give_back(self, place: Place) -> None:
        """The slot was not written whole."""
        with self.lock:
            place.segment.busy -= 1
            place.segment.free(place.slot)

    def publish(self, name: bytes, place: Place, heat: int) -> None:
        """The slot holds this value now; if another already does, it is given back."""
        with self.lock:
            if self._place(name) is not None:
                self.give_back(place)
                return
            segment, slot = place
            segment.busy -= 1
            segment.is_dirty = True
            segment.names[slot * NAME_BYTES : (slot + 1) * NAME_BYTES] = name
            segment.states[slot] = State.USED
            segment.used += 1
            self._found.add(name, segment.number << _SLOT_BITS | slot)
            self.count += 1
            self.used_bytes += segment.slot_bytes
            self._account(name[:ID_BYTES], segment.slot_bytes)
            self._stamp(place, heat)
            self._note(name, self._entry(place))

    def forget(self, name: bytes, place: Place | None = None) -> bool:
        """Takes a value out.

        Args:
            name: of it.
            place: only if it is still there.

        Returns:
            Whether it was there.
        """
        with self.lock:
            found = self._place(name)
            if found is None or (place is not None and found != place):
                return False
            self._drop(found)
            return True

    def clear(self, fingerprint: bytes) -> int:
        """Takes out all values of a namespace.

        Args:
            fingerprint: 16 bytes.

        Returns:
            How many.
        """
        wanted = np.frombuffer(fingerprint, np.uint8)
        gone = 0
        for segment in list(self.segments.values()):
            with self.lock:
                names = np.frombuffer(segment.names, np.uint8).reshape(-1, NAME_BYTES)
                is_its = (names[:, : len(wanted)] == wanted).all(axis=1)
                slots = np.flatnonzero(is_its & (segment.states == State.USED)).tolist()
                for slot in slots:
                    self._drop(Place(segment, slot))
                gone += len(slots)
        return gone

    def evict(self, slot_bytes: int) -> bool:
        """Takes out the value of one slot length that goes first, of those that were chosen."""
        with self.lock:
            sized = self._classes.get(slot_bytes)
            while sized is not None and sized.victims:
                segment, slot, stamp = sized.victims.popleft()
                if self._is_victim(segment, slot, stamp):
                    self._drop(Place(segment, slot))
                    return True
        return False

    def choose(self, slot_bytes: int) -> bool:
        """Chooses the values of one slot length that go next; False if none can."""
        with self.lock:
            sized = self._classes.get(slot_bytes)
            if sized is None:
                return False
            sized.victims = self._choose(sized)
            return any(self._is_victim(*victim) for victim in sized.victims)

    def coldest(self, slot_bytes: int) -> Segment | None:
        """The segment of other slots that may go for slots of this length.

        Returns:
            The one used longest ago on average, if that is before anything of this length was, or
            if there is nothing of this length to evict; never one that is in use this moment.
        """
        with self.lock:
            own = self._classes.get(slot_bytes)
            others = [
                s for s in self.segments.values() if s.slot_bytes != slot_bytes and not s.busy
            ]
            if not others:
                return None
            ages = [self._mean_stamp(segment) for segment in others]
            coldest = min(range(len(others)), key=ages.__getitem__)
            stamps = [s.stamps[s.states == State.USED] for s in own.segments] if own else []
            oldest = [int(some.min()) for some in stamps if len(some)]
            if oldest and ages[coldest] >= min(oldest):
                return None
            return others[coldest]

    def remove(self, segment: Segment) -> bool:
        """Takes a segment out with all that is in it; False when it is in use, or was taken out."""
        with self.lock:
            if segment.busy or self.segments.get(segment.number) is not segment:
                return False
            for slot in np.flatnonzero(segment.states == State.USED).tolist():
                self._drop(Place(segment, slot))
            del self.segments[segment.number]
            sized = self._classes[segment.slot_bytes]
            sized.segments.remove(segment)
            if not sized.segments:
                del self._classes[segment.slot_bytes]
            return True

    def hold(self, segments: Iterable[Segment]) -> None:
        """Keeps segments from being removed until ``let_go``."""
        with self.lock:
            for segment in segments:
                segment.busy += 1

    def let_go(self, segments: Iterable[Segment]) -> None:
        """Ends what ``hold`` began."""
        with self.lock:
            for segment in segments:
                segment.busy -= 1

    def note_uses(self) -> None:
        """Notes the last use of what was used since, for the index file.

        The lock is let go of now and then: each note is a small write.
        """
        with self.lock:
            touched, self._touched = list(self._touched), set()
        for at in range(0, len(touched), _HELD_NAMES):
            with self.lock:
                for packed in touched[at : at + _HELD_NAMES]:
                    place = self._unpack(packed)
                    if place is not None and place.segment.states[place.slot] == State.USED:
                        self._note(place.segment.name(place.slot), self._entry(place))

    def entries(self) -> Iterator[tuple[bytes, Entry]]:
        """All values; the caller holds the lock."""
        for segment in self.segments.values():
            for slot in np.flatnonzero(segment.states == State.USED).tolist():
                yield segment.name(slot), self._entry(Place(segment, slot))

    def _unpack(self, packed: int) -> Place | None:
        segment = self.segments.get(packed >> _SLOT_BITS)
        return None if segment is None else Place(segment, packed & _SLOT_MASK)

    def _place(self, name: bytes) -> Place | None:
        packed = self._found.find(name)
        return Place(self.segments[packed >> _SLOT_BITS], packed & _SLOT_MASK) if packed else None

    def _name_at(self, packed: int) -> bytes:
        return self.segments[packed >> _SLOT_BITS].name(packed & _SLOT_MASK)

    def _use(self, place: Place, uses: int) -> None:
        self._stamp(place, uses)
        if len(self._touched) < MAX_TOUCHED:
            self._touched.add(place.segment.number << _SLOT_BITS | place.slot)

    def _stamp(self, place: Place, uses: int) -> None:
        segment, slot = place
        segment.stamps[slot] = self._clock
        segment.uses[slot] = min(uses, _MAX_USES)
        self._clock += segment.slot_bytes

    def _drop(self, place: Place) -> None:
        segment, slot = place
        name = segment.name(slot)
        self._found.remove(name)
        segment.used -= 1
        self.count -= 1
        self.used_bytes -= segment.slot_bytes
        self._account(name[:ID_BYTES], -segment.slot_bytes)
        if slot in segment.pins:
            segment.states[slot] = State.DOOMED
        else:
            segment.free(slot)
        self._note(name, None)

    def _account(self, space: bytes, num_bytes: int) -> None:
        left = self.bytes_of.get(space, 0) + num_bytes
        if left:
            self.bytes_of[space] = left
        else:
            del self.bytes_of[space]

    def shares(self) -> tuple[tuple[bytes, int], ...]:
        """Namespaces and their bytes, the fullest first."""
        with self.lock:
            return tuple(nlargest(MAX_SHARES, self.bytes_of.items(), key=lambda one: one[1]))

    def _is_victim(self, segment: Segment, slot: int, stamp: int) -> bool:
        return (
            self.segments.get(segment.number) is segment
            and segment.states[slot] == State.USED
            and segment.stamps[slot] == stamp
            and slot not in segment.pins
        )

    def _choose(self, sized: SizeClass) -> deque[tuple[Segment, int, int]]:
        slots = [np.flatnonzero(s.states == State.USED) for s in sized.segments]
        stamps = np.concatenate(
            [s.stamps[one] for s, one in zip(sized.segments, slots, strict=True)]
        )
        owners = np.repeat(np.arange(len(slots)), [len(one) for one in slots])
        flat = np.concatenate(slots)
        if not len(flat):
            return deque()
        order = self._order(stamps)
        # Those that are read this moment are among them and passed over: their number is small.
        pinned = sum(len(s.pins) for s in sized.segments)
        most = min(len(flat), max(1, len(flat) // VICTIMS_SHARE) + pinned)
        first = np.argpartition(order, most - 1)[:most]
        first = first[np.argsort(order[first])]
        return deque(
            (sized.segments[int(owners[at])], int(flat[at]), int(stamps[at]))
            for at in first.tolist()
        )

    def _order(self, stamps: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Ranks: by span of age, inside one the latest first."""
        span = np.uint64(self._span)
        ranks: NDArray[np.uint64] = stamps // span * span + (span - np.uint64(1) - stamps % span)
        return ranks

    def _mean_stamp(self, segment: Segment) -> float:
        stamps = segment.stamps[segment.states == State.USED]
        return float(stamps.mean()) if len(stamps) else -1.0

    def _entry(self, place: Place) -> Entry:
        segment, slot = place
        return Entry(segment.number, slot, int(segment.uses[slot]), int(segment.stamps[slot]))
