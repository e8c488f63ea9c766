"""LOOKUP: how much of a chain an engine may be offered; INSPECT and PIN: how much is held.

Purpose: bisect to the deepest complete chunk, cut back to what window groups need and to what
every reader of the instance has mapped, then lease. Must not know: sockets, who evicts. Runs in:
the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocol.ids import ExtentId, RequestKey
from server.core.admission import MORE, WALK_BLOCKS, Steps
from server.core.arena import Arena
from server.core.clock import Clock
from server.core.heat import Heat
from server.core.index import ABSENT, ROOT
from server.core.lease import Lease
from server.core.leases import Leases
from server.core.namespaces import Instance, Owner, Session
from server.core.tallies import Tally


@dataclass
class Match:
    """Leading chunks of a range.

    Attributes:
        count: how many.
        node: the deepest, or ABSENT.
    """

    count: int
    node: int


class Lookups:
    """Answers how much is held.

    Args:
        arena: slots and extents.
        leases: where matches are leased.
        clock: current time.
        heat: told which prefixes were found.

    Attributes:
        walks: those under way; each locks its deepest node.
        used: called with the deepest node of what is leased; None without lower tiers.
    """

    def __init__(self, arena: Arena, leases: Leases, clock: Clock, heat: Heat) -> None:
        self._arena = arena
        self.heat = heat
        self._leases = leases
        self._clock = clock
        self.walks: list[Walk] = []
        self.used: Callable[[Owner, int], None] | None = None

    def quick(self, session: Session, keys: bytes, start: int) -> Match | None:
        """The match when bisection alone decides; None when chunks must be looked at.

        Args:
            session: of the scheduler.
            keys: 16 bytes per chunk.
            start: ordinal of the first.
        """
        instance, owner = session.instance, session.owner
        if not instance.is_whole:
            return Match(0, ABSENT)
        count, node = owner.index.complete_prefix(keys, start)
        if count and (any(owner.window_tokens) or self.unmapped(instance)):
            return None
        return Match(count, node)

    def held(self, owner: Owner, keys: bytes) -> Match | None:
        """The complete leading chunks, for no engine in particular; None as for ``quick``."""
        return None if any(owner.window_tokens) else Match(*owner.index.complete_prefix(keys, 0))

    def find_held(self, owner: Owner, keys: bytes, found: Callable[[Match], None]) -> Steps:
        """The same by looking at chunks, in slices; for namespaces with windows."""
        return self._walk(owner, keys, 0, set, found)

    def unmapped(self, instance: Instance) -> set[int]:
        """Extents with content that some reader has not mapped."""
        extents = self._arena.extents
        return {extent for extent in instance.unmapped if extents[ExtentId(extent)].num_held}

    def lease(
        self,
        session: Session,
        request: RequestKey,
        start: int,
        match: Match,
        tally: Tally | None = None,
    ) -> Lease | None:
        """Leases a match; an empty one ends the request's older lease and is None.

        Args:
            session: of the scheduler.
            request: request key.
            start: ordinal of the first chunk asked for.
            match: what was found.
            tally: of the LOOKUP, unless this is its first lease.
        """
        instance = session.instance
        if not match.count:
            self._leases.end_request(instance, request)
            return None
        session.owner.index.touch(match.node, self._clock.now_us)
        if self.used is not None:
            self.used(session.owner, match.node)
        return self._leases.open(
            instance, session.session, request, match.node, start, match.count, tally
        )

    def slow(
        self, session: Session, keys: bytes, start: int, found: Callable[[Match], None]
    ) -> Steps:
        """The match by looking at chunks from the deepest up, in slices.

        Args:
            session: of the scheduler.
            keys: 16 bytes per chunk.
            start: ordinal of the first.
            found: called with the match.
        """
        instance = session.instance

        def whole(match: Match) -> None:
            found(match if instance.is_whole else Match(0, ABSENT))

        return self._walk(session.owner, keys, start, lambda: self.unmapped(instance), whole)

    def _walk(
        self,
        owner: Owner,
        keys: bytes,
        start: int,
        lacking: Callable[[], set[int]],
        found: Callable[[Match], None],
    ) -> Steps:
        """From the deepest chunk up, as far as anything may still cut the match.

        Args:
            owner: the namespace.
            keys: 16 bytes per chunk.
            start: ordinal of the first.
            lacking: extents that do not count, asked again for each slice.
            found: called with the match.
        """
        index = owner.index
        count, node = index.complete_prefix(keys, start)
        if not count:
            found(Match(0, ABSENT))
            return
        life = index.life[node]
        index.locks[node] += 1
        walk = Walk(owner, node, start, count)
        self.walks.append(walk)
        try:
            unmapped = lacking()
            while walk.at != ROOT and walk.depth >= start and (unmapped or not walk.is_settled):
                self._step(walk, unmapped)
                yield MORE
                if index is not owner.index or index.life[node] != life:
                    found(Match(0, ABSENT))
                    return
                unmapped |= lacking()
            found(walk.match())
        finally:
            self.walks.remove(walk)
            if index is owner.index and index.life[node] == life:
                index.locks[node] -= 1
                owner.leaves.offer(node)

    def _step(self, walk: Walk, unmapped: set[int]) -> None:
        index, slots = walk.owner.index, self._arena.slots
        num_shards = index.num_shards
        for _ in range(max(1, WALK_BLOCKS // num_shards)):
            if walk.at == ROOT or walk.depth < walk.start or (walk.is_settled and not unmapped):
                return
            base = walk.at * num_shards
            for shard in range(num_shards):
                slot = index.cell_of[base + shard]
                if walk.owner.window_tokens[shard]:
                    if walk.needs(shard) and not (
                        index.holds(walk.at, shard) and slots.extent_of[slot] not in unmapped
                    ):
                        walk.cut()
                elif slots.extent_of[slot] in unmapped:
                    walk.cut()
            walk.up(index.parent[walk.at])


class Walk:
    """From the deepest complete chunk up to the first asked for.

    Chunks before that are the engine's own, whatever windows reach into them.
    """

    def __init__(self, owner: Owner, node: int, start: int, count: int) -> None:
        self.owner = owner
        self.index = owner.index
        self.top = node
        self.life = owner.index.life[node]
        self.at = node
        self.depth = start + count - 1
        self.start = start
        self.deepest = node
        self.end = start + count
        self.reach = max(owner.window_tokens)

    @property
    def is_settled(self) -> bool:
        """Whether no window reaches as far up as this from the match's end."""
        return self.deepest != ABSENT and not self.owner.reaches(self.reach, self.depth, self.end)

    def needs(self, shard: int) -> bool:
        """Whether a window shard of this chunk is needed by the match as it stands."""
        return self.owner.reaches(self.owner.window_tokens[shard], self.depth, self.end)

    def cut(self) -> None:
        """The match ends before this chunk."""
        self.end = min(self.end, self.depth)
        self.deepest = ABSENT

    def up(self, parent: int) -> None:
        """Goes to the parent, which becomes the deepest if the match was just cut."""
        self.at = parent
        self.depth -= 1
        if self.deepest == ABSENT and self.end == self.depth + 1:
            self.deepest = parent

    def match(self) -> Match:
        """What is left."""
        count = max(0, self.end - self.start)
        return Match(count, self.deepest if count else ABSENT)
