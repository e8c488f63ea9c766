"""What a fuzzed core answers about loading: what it says is there, is there and stays there.

Follows LOOKUP, QUERY_PREFETCH_STATUS and RETRIEVE: each lease with the keys that it is of, and what
its readers may read from then on. Knows no grammar. Runs in the fuzzer's process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocol import messages as m
from protocol.ids import LeaseId
from protocol.layout import unpack_slots
from tests.fuzz.finding import Finding, require
from tests.fuzz.truth import Seat

if TYPE_CHECKING:
    from tests.fuzz.clients import Clients, Sent


@dataclass
class LeaseFact:
    """A lease as its engine knows it."""

    lease: bytes
    instance: bytes
    fingerprint: bytes
    session: int
    request: int
    start: int
    keys: tuple[frozenset[bytes], ...]


class Loads:
    """All leases of a core's clients.

    Args:
        clients: who was answered.

    Attributes:
        leases: every one that was ever told of, by its id.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.leases: dict[bytes, LeaseFact] = {}
        #: The last LOOKUP that was answered, by engine and request.
        self._lookups: dict[tuple[bytes, int], m.Lookup] = {}

    def answered(self, sent: Sent, body: m.Body) -> None:
        """A request was served; what is not about loading is left alone.

        Args:
            sent: the request.
            body: of the reply.
        """
        asked, engine = sent.body, sent.process.instance
        if isinstance(asked, m.Lookup) and isinstance(body, m.LookupReply):
            self._lookups[engine, asked.request] = asked
            self._looked_up(sent, asked, body)
        elif isinstance(asked, m.QueryPrefetchStatus) and isinstance(body, m.LookupReply):
            if body.lease in self.leases:  # nothing was on its way: what LOOKUP leased
                fact = self.leases[body.lease]
                mine = fact.instance == engine and len(fact.keys) == body.ready
                require(mine, "an answer tells another lease: of another engine or length")
                return
            looked = self._lookups.get((engine, asked.request))
            if looked is None:
                require(not body.ready and not body.lease, "a lease: of what nobody asked for")
            else:
                self._looked_up(sent, looked, body)
        elif isinstance(asked, m.Retrieve) and isinstance(body, m.RetrieveReply):
            self._retrieved(sent, asked, body)

    def _looked_up(self, sent: Sent, asked: m.Lookup, body: m.LookupReply) -> None:
        count = len(asked.keys) // 16
        require(body.ready <= count, f"ready: {body.ready} of {count} that were asked")
        require((len(body.lease) == 16) == (body.ready > 0), "a lease: of nothing, or none")
        right = body.final == (not body.pending) and body.ready + body.pending in (
            (count,) if body.pending else range(count + 1)
        )
        require(right, f"pending: {body.pending} and {body.ready} of {count}, {body.final}")
        if not body.ready:
            return
        require(body.lease not in self.leases, "a lease id: given twice")
        seat = self._clients.truth.seats[asked.session]
        keys = self._chains(seat.fingerprint, asked.keys, body.ready)
        namespace = seat.body.namespace
        for shard in range(namespace.num_shards):
            if namespace.groups[namespace.group_of(shard)].window_tokens:
                continue
            for names in keys:
                have = any(
                    self._clients.truth.held[seat.fingerprint, shard, key] > 0 for key in names
                )
                require(have, f"said to be ready and not held: {set(names)} shard {shard}")
        self._check_locked(body)
        self.leases[body.lease] = LeaseFact(
            body.lease,
            sent.process.instance,
            seat.fingerprint,
            asked.session,
            asked.request,
            asked.start,
            keys,
        )
        self._clients.secrets.append((body.lease, sent.process.instance))

    def _check_locked(self, body: m.LookupReply) -> None:
        """What was just told of is held fast, before anything else can happen to it."""
        lease = self._clients.truth.core._state.leases.by_id.get(LeaseId(body.lease))
        if lease is not None and lease.is_open and lease.node_lives:
            require(lease.index.locks[lease.node] > 0, "said to be ready: and nothing keeps it")

    def _chains(self, fingerprint: bytes, asked: bytes, count: int) -> tuple[frozenset[bytes], ...]:
        """What each chunk that is ready may be.

        The server looks for the deepest key and goes up what is stored, so keys that are no chain
        are answered by the chain that the deepest of them, or of those it found, belongs to.
        """
        whole = [asked[at : at + 16] for at in range(0, len(asked), 16)]
        found = whole[:count]
        for keys in (whole, found):
            for at in range(len(keys) - 1, 0, -1):
                keys[at - 1] = self._clients.truth.parents.get(
                    (fingerprint, keys[at]), keys[at - 1]
                )
        return tuple(frozenset(pair) for pair in zip(whole, found, strict=False))

    def _retrieved(self, sent: Sent, asked: m.Retrieve, body: m.RetrieveReply) -> None:
        lease = self.leases.get(asked.lease)
        if lease is None or lease.instance != sent.process.instance:
            raise Finding("served what must be refused: a lease of another engine")
        first = asked.start - lease.start
        inside = first >= 0 and first + asked.count <= len(lease.keys)
        require(inside, f"served what must be refused: chunks beyond the lease ({first})")
        namespace = self._clients.truth.seats[asked.session].body.namespace
        require(body.num_shards == namespace.num_shards, "slots: of other shards")
        slots = unpack_slots(body.slots, asked.count, body.num_shards).tolist()
        giving_back = any(
            isinstance(one.body, m.Release) and one.body.lease == lease.lease
            for waiting in self._clients.owed.values()
            for one in waiting
        )
        if giving_back:  # its readers cannot tell what they still hold, until that is answered
            return
        for seat in list(self._clients.truth.seats.values()):
            if seat.instance == lease.instance and seat.is_open:
                self._claim(sent, lease, first, slots, seat)

    def _claim(
        self,
        sent: Sent,
        lease: LeaseFact,
        first: int,
        slots: list[list[tuple[int, int, int]]],
        seat: Seat,
    ) -> None:
        mine = seat.body.namespace.shards_of_rank(seat.body.rank)
        let_go = self._clients.released.get((seat.session, lease.lease), 0) > sent.serial
        claims = self._clients.truth.claims.setdefault((seat.session, lease.lease), [])
        for number, row in enumerate(slots):
            names = lease.keys[first + number]
            for shard in mine:
                extent, slot, generation = row[shard]
                if not extent:
                    require(not slot and not generation, "an absent slot: with numbers")
                    continue
                shadow = self._clients.truth.extents[extent]
                tag = shadow.tags[slot]
                same = tag is not None and tag[0] in names and tag[1:] == (shard, generation)
                same = same and not shadow.removed
                require(same, f"retrieved what was not stored under its key: {set(names)}")
                require(extent in seat.said, f"offered what a reader has not mapped: {extent}")
                if not let_go and seat.is_open:
                    claims.append((extent, slot, generation))
