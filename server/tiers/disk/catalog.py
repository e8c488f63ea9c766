"""What is in the slab, where, and what goes first.

Purpose: the truth while the porter lives; the index file only brings it back afterwards. Least
recently used goes first, by
spans of age: the clock counts bytes used, a 32nd of the slab is one span, and inside one the
latest use goes first. A chain is used from its start on, so its end goes before what it stands on.
Must not know: files' content, the index file. Runs in: the porter, on any thread; one lock, held
for no system call.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from server.core.tiers.parts import Share
from server.tiers.disk.contents import Contents
from server.tiers.disk.entries import Entry
from server.tiers.disk.nametable import NameTable
from server.tiers.disk.plan import NAME_BYTES
from server.tiers.disk.segments import Segment, State
from server.tiers.disk.shares import NOBODY, Tenant, Whose
from server.tiers.disk.victims import Room, Victim, choose, oldest

MAX_TOUCHED = 65_536
"""Values whose last use is noted for the index file; further ones keep the one it has."""

MAX_CHOICES = 64
"""Who has a floor of its own has victims of its own: for so many of them they are kept."""

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
        victims: slots to evict next, for anybody.
        own: for those with the same floors of their own, which do not hold against themselves.
    """

    segments: list[Segment] = field(default_factory=list)
    victims: deque[Victim] = field(default_factory=deque)
    own: OrderedDict[tuple[Tenant, ...], deque[Victim]] = field(default_factory=OrderedDict)


class Catalog(Contents):
    """All slots of a slab.

    Attributes:
        count: values.
        used_bytes: slots' bytes of all values.
    """

    def __init__(self, age_bytes: int, max_values: int, note: Note) -> None:
        """An empty one.

        Args:
            age_bytes: of use until the next span of ages begins.
            max_values: most that may be there.
            note: see ``Note``.
        """
        super().__init__(age_bytes)
        self.count = 0
        self.used_bytes = 0
        #: Of tenants with a limit: their own to evict next.
        self._own: dict[Tenant, deque[Victim]] = {}
        self._classes: dict[int, SizeClass] = {}
        self._found = NameTable(self._name_at)
        self._clock = 1
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
            groups, counts = np.unique(segment.groups[slots], return_counts=True)
            for group, count in zip(groups.tolist(), counts.tolist(), strict=True):
                self.shares.count(group, count, count * segment.slot_bytes)
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

    def take(self, slot_bytes: int, taker: Whose) -> Place | None:
        """A free slot to write into, until ``publish`` or ``give_back``; None if there is none."""
        with self.lock:
            sized = self._classes.get(slot_bytes)
            if sized is None or self.count >= self._max_values:
                return None
            for segment in sized.segments:
                if segment.has_free:
                    segment.busy += 1
                    slot, group = segment.take(), self.shares.number(taker)
                    segment.groups[slot] = group
                    self.shares.reserve(group, slot_bytes)
                    return Place(segment, slot)
        return None

    def give_back(self, place: Place) -> None:
        """The slot was not written whole."""
        with self.lock:
            self._unreserve(place)
            place.segment.free(place.slot)

    def publish(self, name: bytes, place: Place, heat: int) -> None:
        """The slot holds this value now; if another already does, it is given back."""
        with self.lock:
            if self._place(name) is not None:
                self.give_back(place)
                return
            segment, slot = place
            group = int(segment.groups[slot])
            self.shares.count(group, 1, segment.slot_bytes)
            self._unreserve(place)
            segment.is_dirty = True
            segment.names[slot * NAME_BYTES : (slot + 1) * NAME_BYTES] = name
            segment.states[slot] = State.USED
            segment.used += 1
            self._found.add(name, segment.number << _SLOT_BITS | slot)
            self.count += 1
            self.used_bytes += segment.slot_bytes
            self._stamp(place, heat)
            self._note(name, self._entry(place))

    def _unreserve(self, place: Place) -> None:
        segment, slot = place
        segment.busy -= 1
        self.shares.reserve(int(segment.groups[slot]), -segment.slot_bytes)

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

    def evict(self, slot_bytes: int, taker: Whose = NOBODY) -> bool:
        """Takes out the value of one slot length that goes first, of those that were chosen.

        Args:
            slot_bytes: of the slot.
            taker: who wants the room.
        """
        with self.lock:
            sized = self._classes.get(slot_bytes)
            if sized is None:
                return False
            if self._evict_one(sized.victims, taker):
                return True
            own = sized.own.get(self.shares.guarded_for(taker))
            return own is not None and self._evict_one(own, taker)

    def choose(self, slot_bytes: int, taker: Whose = NOBODY) -> bool:
        """Chooses the values of one slot length that go next; False if none can.

        What anybody may take goes before what only its own tenants may.
        """
        with self.lock:
            sized = self._classes.get(slot_bytes)
            if sized is None:
                return False
            sized.victims = choose(sized.segments, self._room(NOBODY))
            if any(self._may_go(victim, taker) for victim in sized.victims):
                return True
            guarded = self.shares.guarded_for(taker)
            if not guarded:
                return False
            sized.own[guarded] = own = choose(sized.segments, self._room(taker))
            while len(sized.own) > MAX_CHOICES:
                sized.own.popitem(last=False)
            return bool(own)

    def evict_own(self, tenant: Tenant, taker: Whose) -> bool:
        """Takes out the value of a tenant that goes first, of any length; False if none can."""
        with self.lock:
            if self._evict_one(self._own.get(tenant, deque()), taker):
                return True
            self._own[tenant] = choose([*self.segments.values()], self._room(taker, tenant))
            return self._evict_one(self._own[tenant], taker)

    def _evict_one(self, victims: deque[Victim], taker: Whose) -> bool:
        while victims:
            victim = victims.popleft()
            if self._may_go(victim, taker):
                self._drop(Place(victim.segment, victim.slot))
                return True
        return False

    def _may_go(self, victim: Victim, taker: Whose) -> bool:
        segment = victim.segment
        return (
            self.segments.get(segment.number) is segment
            and victim.is_as_chosen
            and self.shares.may_lose(int(segment.groups[victim.slot]), segment.slot_bytes, taker)
        )

    def _room(self, taker: Whose, of: Tenant | None = None) -> Room:
        return Room(self._span, self.shares, taker, of)

    def coldest(self, slot_bytes: int, taker: Whose = NOBODY) -> Segment | None:
        """The segment of other slots that may go for slots of this length.

        Returns:
            The one used longest ago on average, if that is before anything of this length was that
            may go, or if there is none; never one that is in use this moment, or holds what a
            quota keeps.
        """
        with self.lock:
            own = self._classes.get(slot_bytes)
            others = [
                (self._mean_stamp(segment), segment.number)
                for segment in self.segments.values()
                if segment.slot_bytes != slot_bytes and not segment.busy
            ]
            if not others:
                return None
            first = oldest(own.segments, self._room(taker)) if own else None
            for age, number in sorted(others):
                segment = self.segments[number]
                if first is not None and age >= first:
                    return None
                if self._may_lose_all(segment, taker):
                    return segment
            return None

    def _may_lose_all(self, segment: Segment, taker: Whose) -> bool:
        groups = segment.groups[segment.states == State.USED]
        return self.shares.may_lose_all(groups, segment.slot_bytes, taker)

    def remove(self, segment: Segment, taker: Whose = NOBODY) -> bool:
        """Takes a segment out with all that is in it; False when it is in use, or was taken out."""
        with self.lock:
            if segment.busy or self.segments.get(segment.number) is not segment:
                return False
            if not self._may_lose_all(segment, taker):
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
        self.shares.count(int(segment.groups[slot]), -1, -segment.slot_bytes)
        if slot in segment.pins:
            segment.states[slot] = State.DOOMED
        else:
            segment.free(slot)
        self._note(name, None)

    def set_quotas(self, quotas: Iterable[Share]) -> None:
        """Sets all quotas anew; what was chosen to go is chosen again."""
        with self.lock:
            self.shares.set_quotas(quotas)
            self._own = {}
            for sized in self._classes.values():
                sized.victims.clear()
                sized.own.clear()

    def _mean_stamp(self, segment: Segment) -> float:
        stamps = segment.stamps[segment.states == State.USED]
        return float(stamps.mean()) if len(stamps) else -1.0

    def _entry(self, place: Place) -> Entry:
        segment, slot = place
        uses, stamp = int(segment.uses[slot]), int(segment.stamps[slot])
        salt = self.shares.whose[int(segment.groups[slot])].salt
        return Entry(segment.number, slot, uses, stamp, salt)
