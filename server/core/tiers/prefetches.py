"""Prefetches: what becomes of a LOOKUP that L1 answers in part, and of the QUERY that follows.

Purpose: ride on runs of promotion until all is there, nothing more comes, or the deadline has
passed; answer the QUERY at the end of that, or of its own wait, with what is ready then, leased in
the same step by the same rules as for a LOOKUP. Must not know: tiers, slots, frames. Runs in: the
loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from protocol.errors import ErrorCode, KvkeepError, RequestError
from protocol.ids import InstanceId, RequestKey
from protocol.limits import MAX_LIVE_REQUESTS
from protocol.messages import LookupReply
from server.core.admission import Steps
from server.core.clock import Timers
from server.core.config import SECOND_NS, CoreConfig
from server.core.index import ABSENT, ROOT
from server.core.lookups import Lookups, Match
from server.core.namespaces import Instance, Session
from server.core.outbox import Outbox, Ticket
from server.core.tiers.late import defer
from server.core.tiers.misses import Miss, Misses
from server.core.tiers.prefetch import Prefetch, Waiter
from server.core.tiers.promotion import Promotion
from server.core.tiers.runs import Run

MS_NS = 1_000_000

MAX_KEY_BYTES = 16 << 20
"""Keys that one engine's prefetches may remember: a million chunks."""

MAX_ALL_KEY_BYTES = 128 << 20
"""Keys that those of all engines may."""


class Prefetches:
    """All of them.

    Args:
        config: settings.
        timers: deadlines and waits.
        outbox: replies and counters.
        lookups: what is held, and leases.
        promotion: brings what is not.
        misses: counts what does not come.

    Attributes:
        by_instance: each engine's, by request.
        key_bytes: keys that all of them remember.
        sliced: runs long work whose errors are the reply to a ticket; set by the handlers' desk.
    """

    def __init__(
        self,
        config: CoreConfig,
        timers: Timers,
        outbox: Outbox,
        lookups: Lookups,
        promotion: Promotion,
        misses: Misses,
    ) -> None:
        self._deadline_ns = int(config.promote_deadline_s * SECOND_NS)
        self._is_on = bool(config.tiers)
        self._timers = timers
        self._outbox = outbox
        self._lookups = lookups
        self._promotion = promotion
        self._misses = misses
        self.by_instance: dict[InstanceId, dict[RequestKey, Prefetch]] = {}
        self.key_bytes = 0
        self._mine_bytes: dict[InstanceId, int] = {}
        self.sliced: Callable[[Ticket, Session, Steps], None]

    # --- LOOKUP ---------------------------------------------------------------------------

    def begin(
        self,
        session: Session,
        request: RequestKey,
        start: int,
        keys: bytes,
        ready: int,
        tenant: bytes = b"",
    ) -> int:
        """A LOOKUP was answered in part.

        Args:
            session: of the scheduler.
            request: request key; it has no other prefetch.
            start: ordinal of the first chunk asked for.
            keys: 16 bytes per chunk.
            ready: chunks that are there and leased.
            tenant: digest of the request's salt, or empty.

        Returns:
            Chunks that may come; 0 when nothing will.
        """
        why = None
        if self._is_on and session.instance.is_whole:
            if self._has_room(session.instance, len(keys)):
                prefetch = Prefetch(
                    session, request, start, keys, ready, self._advance, self._settle
                )
                prefetch.tenant = tenant
                lease = session.instance.requests.get(request)
                if lease is not None:
                    prefetch.tally = lease.tally
                self._advance(prefetch)
                if not prefetch.is_final:
                    self._add(prefetch)
                    return prefetch.num_chunks - ready
                why = prefetch.why
            else:
                why = Miss.NO_ROOM
        self._misses.note(session.owner, keys, ready, why)
        return 0

    def _has_room(self, instance: Instance, num_bytes: int) -> bool:
        mine_bytes = self._mine_bytes.get(instance.instance, 0)
        return (
            len(self.by_instance.get(instance.instance, ())) < MAX_LIVE_REQUESTS
            and mine_bytes + num_bytes <= MAX_KEY_BYTES
            and self.key_bytes + num_bytes <= MAX_ALL_KEY_BYTES
        )

    def _add(self, prefetch: Prefetch) -> None:
        name, num_bytes = prefetch.instance.instance, len(prefetch.keys)
        self.by_instance.setdefault(name, {})[prefetch.request] = prefetch
        self._mine_bytes[name] = self._mine_bytes.get(name, 0) + num_bytes
        self.key_bytes += num_bytes
        due_ns = self._timers.clock.now_ns + self._deadline_ns
        prefetch.timer = self._timers.at(due_ns, partial(self._too_late, prefetch))
        self._outbox.counters["prefetches"] += 1

    def _advance(self, prefetch: Prefetch) -> None:
        """Waits for the run that brings the first chunk which L1 lacks, or ends."""
        owner = prefetch.session.owner
        count, _ = owner.index.complete_prefix(prefetch.keys, prefetch.start)
        # Where the last run brought nothing, the next one would not either.
        if count >= prefetch.num_chunks or count <= prefetch.begun:
            prefetch.finish(prefetch.why)
            return
        prefetch.begun = count
        found = self._ride(prefetch, count)
        if isinstance(found, Run):
            prefetch.run = found
        else:
            prefetch.finish(found)

    def _ride(self, prefetch: Prefetch, count: int) -> Run | Miss | None:
        index, ordinal = prefetch.session.owner.index, prefetch.start + count
        parent = prefetch.key(count - 1) if count else b""
        if ordinal and not parent:
            # The engine named no earlier chunk: its key is known only if something continues it.
            node = index.find(prefetch.key(0))
            if node == ABSENT or index.parent[node] == ROOT:
                return None
            parent = index.key(index.parent[node])
        keys = prefetch.keys[count * len(prefetch.key(0)) :]
        return self._promotion.ride(prefetch.session.owner, ordinal, parent, keys, prefetch)

    def _too_late(self, prefetch: Prefetch) -> None:
        prefetch.is_late = True
        self._outbox.counters["prefetches_late"] += not prefetch.is_final
        prefetch.asked = prefetch.run
        prefetch.finish(Miss.DEADLINE)

    # --- QUERY_PREFETCH_STATUS ------------------------------------------------------------

    def get(self, instance: Instance, request: RequestKey) -> Prefetch | None:
        """A request's prefetch, or None."""
        mine = self.by_instance.get(instance.instance)
        return mine.get(request) if mine is not None else None

    def query(self, prefetch: Prefetch, wait_ms: int, ticket: Ticket) -> None:
        """A QUERY waits; a former one of the request is answered with what is there.

        Args:
            prefetch: of its request.
            wait_ms: how long at most.
            ticket: its reply.
        """
        former, waiter = prefetch.waiter, Waiter(ticket, is_over=not wait_ms)
        prefetch.waiter = waiter
        if former is not None:
            self._wait_over(prefetch, former)
        due_ns = self._timers.clock.now_ns + wait_ms * MS_NS
        if ticket.deadline_ns:
            due_ns = min(due_ns, ticket.deadline_ns)
        waiter.timer = self._timers.at(due_ns, partial(self._wait_over, prefetch, waiter))
        self._settle(prefetch)

    def _wait_over(self, prefetch: Prefetch, waiter: Waiter) -> None:
        waiter.is_over = True
        self._match(prefetch, waiter)

    def _settle(self, prefetch: Prefetch) -> None:
        """Answers a prefetch's waiter if nothing more comes, or it does not wait any more."""
        waiter = prefetch.waiter
        if waiter is not None and (prefetch.is_final or waiter.is_over):
            self._match(prefetch, waiter)

    def _match(self, prefetch: Prefetch, waiter: Waiter) -> None:
        if waiter.is_matching or waiter.ticket.done:
            return
        session = prefetch.session
        match = self._lookups.quick(session, prefetch.keys, prefetch.start)
        if match is not None:
            self._matched(prefetch, waiter, match)
            return
        waiter.is_matching = True
        found = partial(self._matched, prefetch, waiter)
        steps = self._lookups.slow(session, prefetch.keys, prefetch.start, found)
        self.sliced(waiter.ticket, session, steps)

    def _matched(self, prefetch: Prefetch, waiter: Waiter, match: Match) -> None:
        waiter.is_matching = False
        is_stale, waiter.is_stale = waiter.is_stale, False
        if waiter.ticket.done:
            return
        if is_stale and not waiter.is_over:
            self._match(prefetch, waiter)
            return
        if match.count >= prefetch.num_chunks:
            prefetch.is_final = True  # though its run may have something to do still
        is_whole = prefetch.is_late or self._is_mapped(prefetch, match)
        final = prefetch.is_final and not is_stale and is_whole
        if not final and not waiter.is_over:
            return
        try:
            reply = self._answer(prefetch, match, final)
        except KvkeepError as error:
            self._outbox.fail(waiter.ticket, error)
        else:
            self._outbox.reply(waiter.ticket, reply)
        self._dismiss(prefetch, waiter)

    def _is_mapped(self, prefetch: Prefetch, match: Match) -> bool:
        """Whether nothing of what L1 has waits for a reader to map a new extent."""
        index = prefetch.session.owner.index
        count, _ = index.complete_prefix(prefetch.keys, prefetch.start)
        return match.count >= count or not self._lookups.unmapped(prefetch.instance)

    def _answer(self, prefetch: Prefetch, match: Match, final: bool) -> LookupReply:
        gained = prefetch.gained(match.count)
        if final:
            self._remove(prefetch, match.count)
        session = prefetch.session
        if session.is_closing:
            raise RequestError(ErrorCode.UNKNOWN_SESSION, "the session ended meanwhile")
        lease = self._lookups.lease(
            session, prefetch.request, prefetch.start, match, prefetch.tally
        )
        counters = self._outbox.counters
        session.hit_chunks += gained.total()
        for place, count in gained.items():
            counters["hit_chunks"] += count
            counters[f"hit_tokens_{place}"] += count * session.owner.chunk_tokens
        if match.count and not prefetch.told:  # else its LOOKUP has said so
            self._lookups.heat.note(session.owner, prefetch.start, prefetch.keys, match.count)
        prefetch.told = max(prefetch.told, match.count)
        return LookupReply(
            lease=lease.lease if lease is not None else b"",
            ready=match.count,
            pending=0 if final else prefetch.num_chunks - match.count,
            final=final,
        )

    def _dismiss(self, prefetch: Prefetch, waiter: Waiter) -> None:
        self._timers.cancel(waiter.timer)
        if prefetch.waiter is waiter:
            prefetch.waiter = None

    def mapped(self, instance: Instance) -> None:
        """A reader of an engine has mapped something: what waited for that may be answered."""
        for prefetch in list(self.by_instance.get(instance.instance, {}).values()):
            if prefetch.waiter is not None:
                prefetch.waiter.is_stale = prefetch.waiter.is_matching
            if prefetch.is_final:
                self._settle(prefetch)

    # --- ending ---------------------------------------------------------------------------

    def end_request(self, instance: Instance, request: RequestKey) -> None:
        """Ends a request's prefetch, if it has one; the run goes on."""
        prefetch = self.get(instance, request)
        if prefetch is None:
            return
        count, _ = prefetch.session.owner.index.complete_prefix(prefetch.keys, prefetch.start)
        if count > prefetch.told or not prefetch.is_final:
            # Whoever did not wait for the end has missed what came, or would have come, later.
            prefetch.asked = prefetch.run if count <= prefetch.told else None
            prefetch.is_final, prefetch.why = True, Miss.DEADLINE
        self._remove(prefetch, prefetch.told)
        if prefetch.waiter is not None:
            self._outbox.reply(prefetch.waiter.ticket, LookupReply(lease=b"", ready=0))
            self._dismiss(prefetch, prefetch.waiter)

    def _remove(self, prefetch: Prefetch, ready: int) -> None:
        name = prefetch.instance.instance
        mine = self.by_instance.get(name, {})
        if mine.get(prefetch.request) is not prefetch:
            return
        del mine[prefetch.request]
        self.key_bytes -= len(prefetch.keys)
        self._mine_bytes[name] -= len(prefetch.keys)
        if not mine:
            del self.by_instance[name], self._mine_bytes[name]
        self._timers.cancel(prefetch.timer)
        self._note(prefetch, ready)
        if prefetch.run is not None:
            prefetch.run.passengers.pop(prefetch, None)
            prefetch.run = None

    def _note(self, prefetch: Prefetch, ready: int) -> None:
        """Counts what it lacks; later, where tiers still have to say whether they have it."""
        owner, lacking = prefetch.session.owner, prefetch.num_chunks - ready
        if prefetch.why is Miss.DEADLINE and prefetch.asked is not None and lacking > 0:
            first = prefetch.key(ready)
            defer(prefetch.asked, partial(self._misses.count, owner, first, lacking))
        else:
            self._misses.note(owner, prefetch.keys, ready, prefetch.why)

    def keep(self, instance: Instance, live: Collection[int]) -> None:
        """Ends the prefetches of all requests of an engine but these."""
        for request in list(self.by_instance.get(instance.instance, ())):
            if request not in live:
                self.end_request(instance, request)

    def session_gone(self, session: Session) -> None:
        """A session ends, and with it what it asked for as the scheduler."""
        for prefetch in list(self.by_instance.get(session.instance.instance, {}).values()):
            if prefetch.session is session:
                self.end_request(session.instance, prefetch.request)

    def drain(self) -> None:
        """The server is about to end: whoever waits is answered with what is there."""
        for mine in list(self.by_instance.values()):
            for prefetch in list(mine.values()):
                self._too_late(prefetch)

    def figures(self) -> dict[str, int]:
        """Gauges, by name."""
        return {
            "prefetches_waiting": sum(map(len, self.by_instance.values())),
            "promotions_running": len(self._promotion.runs),
        }
