"""Deletes all that was stored under one salt, or counts it.

Purpose: records in L1's extents say whose a chunk is, and so do the values of a tier that keeps
quotas: both are asked, piece by piece, and what they name is forgotten as DELETE does, in every
tier that is written to. Must not know: files, records' form, messages' frames. Runs in: the loop
thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
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
from server.core.effects import FindSalt
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
        answers: of a tier: what it has, or None.
        chunks: of L1.
        values: of tiers, by name.
        unknown: tiers that do not know, or could not be asked.
        names: namespaces of which something is being forgotten.
        has_more: there is more.
    """

    number: int
    salt: bytes
    is_look: bool
    ticket: Ticket
    task: Task | None = None
    found: tuple[Slots, Slots] | None = None
    answers: list[bytes | None] = field(default_factory=list)
    chunks: int = 0
    values: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, None] = field(default_factory=dict)
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
        for tier in self._forgetting.tiers:
            yield from self._look_below(search, tier)
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
            body = DeleteSaltReply(
                chunks=search.chunks,
                tier_values=search.values,
                tiers_unknown=tuple(search.unknown),
                tiers_pending=num_tiers,
                more=search.has_more,
            )
            self._outbox.reply(search.ticket, body)

        self._forgetting.wait(list(search.names), search.ticket.deadline_ns, over)

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

    def _look_below(self, search: Search, tier: Tier) -> Steps:
        if not tier.policy.writes:
            return
        if not tier.knows_tenants:
            search.unknown[tier.name] = None
            return

        def ended(listed: bytes | None, _: int) -> None:
            search.answers.append(listed)
            if search.task is not None:
                self._lanes.wake(search.task)

        salt = Fingerprint(search.salt)
        tier.list_there(Listed.OF_SALT, salt, ended, most=MAX_NAMES)
        while not search.answers:
            yield WAIT
        listed = search.answers.pop()
        if listed is None:
            search.unknown[tier.name] = None
            return
        names = unpack_names(listed)
        search.values[tier.name] = len(names) * search.is_look
        search.has_more |= len(names) >= MAX_NAMES
        if not search.is_look:
            yield from self._forget(search, tier, names)

    def _forget(self, search: Search, tier: Tier, names: list[tuple[bytes, bytes, int]]) -> Steps:
        spaces: dict[Fingerprint, dict[bytes, int]] = {}
        counts = Counter(Fingerprint(space) for space, _, _ in names)
        for space, key, shard in names:
            keys = spaces.setdefault(Fingerprint(space), {})
            keys[key] = max(keys.get(key, 0), shard + 1)
        for name, keys in spaces.items():
            owner = self._roster.owners.get(name)
            search.names.add(name)
            if self._forgetting.room_keys(name) < len(keys):
                search.has_more = True
                continue
            if owner is None:
                if not self._forgetting.has_place(name):
                    search.unknown[tier.name] = None
                    continue
                search.values[tier.name] += counts[name]
                self._forgetting.delete_name(name, b"".join(keys), max(keys.values()))
                continue
            search.values[tier.name] += counts[name]
            self._forgetting.delete(owner, b"".join(keys))
            # What an operator had loaded is nobody's by its record in L1.
            nodes = (owner.index.find(key) for key in keys)
            there = [(node, owner.index.life[node]) for node in nodes if node != ABSENT]
            yield from self._take(search, owner, owner.index, there)
        yield MORE
