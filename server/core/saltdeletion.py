"""Deletes all that was stored under one salt, or counts it.

Purpose: records in L1's extents say whose a chunk is, and so do the values of a tier that keeps
quotas: both are asked, piece by piece, and what they name is forgotten as DELETE does, in every
tier that is written to. All tiers name theirs before anything goes, and what one named counts as
deleted there only once it has answered that it forgot. Must not know: files, records' form,
messages' frames. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import numpy as np

from protocol.errors import ErrorCode, RequestError
from protocol.ids import ID_BYTES, Fingerprint
from protocol.messages import DeleteSaltReply
from server.core.admission import MORE, SLICE_BLOCKS, WAIT, Lanes, Steps, Task
from server.core.arena import Arena
from server.core.departures import Departures
from server.core.effects import FindSalt, TierId
from server.core.extents import Extent
from server.core.index import ABSENT, ChunkIndex
from server.core.namespaces import Owner, peel
from server.core.outbox import Outbox, Ticket
from server.core.roster import Roster
from server.core.slots import HELD, NO_NODE, Slots
from server.core.tiers.forgetting import Forgetting
from server.core.tiers.listed import Listed
from server.core.tiers.parts import MAX_NAMES, unpack_names
from server.core.tiers.tier import Tier

LANE = "salts"

FIND_SLOTS = 4096
"""Records looked at in one slice."""

MAX_SEARCHES = 4
"""At a time; each walks over all of L1."""


Counts = dict[Fingerprint, int]
"""Values, by namespace."""


@dataclass(eq=False)
class Search:
    """One request.

    Attributes:
        number: of it.
        salt: digest of it.
        is_look: nothing is deleted.
        ticket: its reply.
        task: to be woken by a tier's answer.
        found: slots that the last FindSalt named, and generations; None without an answer.
        answers: of tiers, by number: what each has, or None.
        chunks: of L1.
        named: by name of a tier that knows: how many values it named of each namespace, those left
            out that are not being forgotten.
        unknown: names of tiers that do not know, or could not be asked.
        names: namespaces of which something is being forgotten.
        has_more: there is more.
    """

    number: int
    salt: bytes
    is_look: bool
    ticket: Ticket
    task: Task | None = None
    found: tuple[Slots, Slots] | None = None
    answers: dict[TierId, bytes | None] = field(default_factory=dict)
    chunks: int = 0
    named: dict[str, Counts] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    names: set[Fingerprint] = field(default_factory=set)
    has_more: bool = False

    def take(self) -> tuple[Slots, Slots] | None:
        """What was found, once."""
        found, self.found = self.found, None
        return found


class SaltDeletion:
    """Searches under way.

    Args:
        outbox: effects and replies.
        arena: slots and extents.
        roster: namespaces.
        departures: gives back extents that became empty.
        lanes: long work.
        forgetting: has tiers forget, and knows them.
        drop: takes a leaf out of L1.
        fault: notes an error of our own.
    """

    def __init__(
        self,
        outbox: Outbox,
        arena: Arena,
        roster: Roster,
        departures: Departures,
        lanes: Lanes,
        forgetting: Forgetting,
        drop: Callable[[Owner, int], None],
        fault: Callable[[Exception], None],
    ) -> None:
        self._outbox = outbox
        self._arena = arena
        self._roster = roster
        self._departures = departures
        self._lanes = lanes
        self._forgetting = forgetting
        self._drop = drop
        self._fault = fault
        self._numbers = count(1)
        self._searches: dict[int, Search] = {}

    def begin(self, salt: bytes, is_look: bool, ticket: Ticket) -> None:
        """Begins; answered when it is over, and tiers have forgotten or that takes too long.

        Args:
            salt: digest of it.
            is_look: nothing is deleted.
            ticket: its reply.

        Raises:
            RequestError: INVALID_ARGUMENT or BUSY.
        """
        if not any(salt):
            raise RequestError(ErrorCode.INVALID_ARGUMENT, "16 zero bytes are no salt's digest")
        if len(self._searches) >= MAX_SEARCHES:
            raise RequestError(ErrorCode.BUSY, f"{MAX_SEARCHES} salts are being looked for")
        search = Search(next(self._numbers), salt, is_look, ticket)
        self._searches[search.number] = search
        failed = partial(self._failed, search)
        search.task = self._lanes.start(LANE, self._run(search), failed)

    def found(self, number: int, slots: Slots, generations: Slots) -> None:
        """FindSalt was answered.

        Args:
            number: of the search; one that nobody knows is ignored.
            slots: int64[n], within the extent.
            generations: int64[n], of their records.
        """
        search = self._searches.get(number)
        if search is not None:
            search.found = slots, generations

    def _failed(self, search: Search, error: Exception) -> None:
        self._searches.pop(search.number, None)
        self._fault(error)
        self._outbox.fail(search.ticket, RequestError(ErrorCode.INTERNAL, "the server failed"))

    def _run(self, search: Search) -> Steps:
        yield MORE  # whoever asks has had its slice
        yield from self._look_below(search)
        for owner in list(self._roster.owners.values()):
            for extents in owner.extents:
                for extent in list(extents):
                    if search.is_look or not search.has_more:
                        yield from self._look(search, owner, extent)
            self._departures.shrink(owner)
        self._over(search)

    def _over(self, search: Search) -> None:
        del self._searches[search.number]
        if not search.is_look:
            self._outbox.counters["deleted_chunks"] += search.chunks

        def over(num_tiers: int) -> None:
            tiers = self._forgetting.tiers
            body = DeleteSaltReply(
                chunks=search.chunks,
                tier_values={
                    tier.name: self._count(search, tier, search.named[tier.name])
                    for tier in tiers
                    if tier.name in search.named
                },
                tiers_unknown=tuple(one.name for one in tiers if one.name in search.unknown),
                tiers_pending=num_tiers,
                more=search.has_more,
            )
            self._outbox.reply(search.ticket, body)

        self._forgetting.wait(list(search.names), search.ticket.deadline_ns, over)

    def _count(self, search: Search, tier: Tier, named: Counts) -> int:
        """How many of the values that a tier named it has, or had and said that it forgot."""
        return sum(
            number
            for name, number in named.items()
            if search.is_look or not self._forgetting.is_barred(tier, name)
        )

    # --- L1 -------------------------------------------------------------------------------

    def _look(self, search: Search, owner: Owner, extent: Extent) -> Steps:
        for begin in range(0, extent.geometry.num_slots, FIND_SLOTS):
            if self._arena.extents.get(extent.extent) is not extent or not extent.num_held:
                return  # it went, or its file is not made yet
            end = min(extent.geometry.num_slots, begin + FIND_SLOTS)
            self._outbox.add(FindSalt(search.number, extent.extent, begin, end, search.salt))
            yield MORE  # it is performed, and answered, before the next slice
            found = search.take()
            if found is None:
                raise LookupError(f"nobody looked at extent {extent.extent}")
            if self._arena.extents.get(extent.extent) is not extent:
                return
            yield from self._found(search, owner, extent.base, found)
            yield MORE

    def _found(self, search: Search, owner: Owner, base: int, found: tuple[Slots, Slots]) -> Steps:
        table, index = self._arena.slots, owner.index
        slots = base + found[0]
        # As they are now: a slot that was given away since has another generation.
        is_there = (table.state[slots] == HELD) & (table.generation[slots] == found[1])
        # And of what CLEAR has not swept yet the nodes are those of the index before.
        is_there &= table.generation[slots] > owner.cleared_generation
        slots = slots[is_there & (table.node[slots] != NO_NODE)]
        nodes = table.node[slots].astype("int64")
        if search.is_look:
            search.chunks += self._count_firsts(index, nodes, slots)
            return
        lives = index.lives(nodes).tolist()
        yield from self._take(search, owner, index, list(zip(nodes.tolist(), lives, strict=True)))

    def _count_firsts(self, index: ChunkIndex, nodes: Slots, slots: Slots) -> int:
        """How many of some slots are the first of their chunks that are held: each counts once."""
        cells = index.cells[nodes]
        held = (cells != ABSENT) & (self._arena.slots.state[cells] == HELD)
        firsts = cells[np.arange(len(nodes)), held.argmax(axis=1)]
        return int(np.count_nonzero(firsts == slots))

    def _take(
        self, search: Search, owner: Owner, index: ChunkIndex, nodes: list[tuple[int, int]]
    ) -> Steps:
        """Takes chunks and what continues them out of L1, and has tiers forget them.

        Not more than can be owed by name: else tiers would forget what is others', too.
        """
        forgotten, is_needed = bytearray(), self._forgetting.is_needed
        most = self._forgetting.room_keys(owner.fingerprint) * ID_BYTES

        def drop(leaf: int) -> bool:
            if is_needed and len(forgotten) >= most:
                search.has_more = True
                return False
            search.chunks += 1
            if is_needed:
                forgotten.extend(index.key(leaf))
            self._drop(owner, leaf)
            return True

        for number, (node, life) in enumerate(nodes):
            if index is not owner.index or (is_needed and len(forgotten) >= most):
                search.has_more |= index is owner.index
                break
            if index.life[node] == life:
                for pause in peel(owner, node, drop):
                    self._arena.void_forgotten()
                    yield pause
            if number % SLICE_BLOCKS == SLICE_BLOCKS - 1:
                self._arena.void_forgotten()
                yield MORE
        self._arena.void_forgotten()
        if forgotten:
            search.names.add(owner.fingerprint)
            self._forgetting.delete(owner, bytes(forgotten))

    # --- tiers ----------------------------------------------------------------------------

    def _look_below(self, search: Search) -> Steps:
        """Asks all tiers at once, then has what they named forgotten in each of them.

        Not one after the other: what the first names is forgotten in the second, too, which would
        not count it any more.
        """
        asked = []
        for tier in self._forgetting.tiers:
            if tier.policy.writes and tier.knows_tenants:
                asked.append(tier)
                self._ask(search, tier)
            elif tier.policy.writes:
                search.unknown.add(tier.name)
        while len(search.answers) < len(asked):
            yield WAIT
        keys: dict[Fingerprint, dict[bytes, int]] = {}
        for tier in asked:
            self._note(search, tier, keys)
            yield MORE
        if not search.is_look:
            for name, parts in keys.items():
                rows = list(parts.items())
                for begin in range(0, len(rows), MAX_NAMES):  # of several tiers: more than a slice
                    yield from self._forget(search, name, dict(rows[begin : begin + MAX_NAMES]))
                    yield MORE

    def _ask(self, search: Search, tier: Tier) -> None:
        def ended(listed: bytes | None, _: int) -> None:
            search.answers[tier.number] = listed
            if search.task is not None:
                self._lanes.wake(search.task)

        tier.list_there(Listed.OF_SALT, Fingerprint(search.salt), ended, most=MAX_NAMES)

    def _note(self, search: Search, tier: Tier, keys: dict[Fingerprint, dict[bytes, int]]) -> None:
        """Counts what a tier named, and adds it to the keys, with the number of their parts."""
        listed = search.answers[tier.number]
        if listed is None:
            search.unknown.add(tier.name)
            return
        names = unpack_names(listed)
        search.has_more |= len(names) >= MAX_NAMES
        counts = search.named[tier.name] = Counts()
        for space, key, shard in names:
            name = Fingerprint(space)
            counts[name] = counts.get(name, 0) + 1
            parts = keys.setdefault(name, {})
            parts[key] = max(parts.get(key, 0), shard + 1)

    def _forget(self, search: Search, name: Fingerprint, keys: dict[bytes, int]) -> Steps:
        owner = self._roster.owners.get(name)
        search.names.add(name)
        if self._forgetting.room_keys(name) < len(keys):
            search.has_more = True
            self._stays(search, name)
        elif owner is not None:
            self._forgetting.delete(owner, b"".join(keys))
            # What an operator had loaded is nobody's by its record in L1.
            nodes = (owner.index.find(key) for key in keys)
            there = [(node, owner.index.life[node]) for node in nodes if node != ABSENT]
            yield from self._take(search, owner, owner.index, there)
        elif self._forgetting.has_place(name):
            self._forgetting.delete_name(name, b"".join(keys), max(keys.values()))
        else:
            search.unknown.update(self._stays(search, name))

    def _stays(self, search: Search, name: Fingerprint) -> Iterable[str]:
        """What was named of a namespace is not forgotten now; returns who named any of it."""
        return [who for who, named in search.named.items() if named.pop(name, 0)]
