"""Every room of the core, built and tied together.

Must not know: frames, sockets. Runs in: the loop thread.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

from protocol.ids import ArenaId, Epoch
from protocol.status import OpLatency
from server.core.accounts import Accounts
from server.core.admission import Lanes
from server.core.adopter import Adopter
from server.core.allotment import Allotment
from server.core.arena import Arena
from server.core.clock import Clock, Timers
from server.core.config import CoreConfig, Outside
from server.core.copiers import Copiers
from server.core.departures import Departures
from server.core.extents import Phase
from server.core.following import Following
from server.core.growth import Growth
from server.core.heat import Heat
from server.core.leases import Leases
from server.core.lookups import Lookups
from server.core.operations import Operations
from server.core.outbox import Outbox
from server.core.peers import Peers
from server.core.plans import Plans
from server.core.pools import Pools
from server.core.publishing import Publisher
from server.core.quarantine import Quarantine
from server.core.quotas import Quotas
from server.core.readers import Readers
from server.core.reclaim import Reclaimer
from server.core.registry import Registry
from server.core.reservations import Reservations
from server.core.retirement import Retirement
from server.core.roster import Roster
from server.core.slots import SlotTable
from server.core.slow import SlowRequests
from server.core.tierquotas import TierQuotas
from server.core.tiers.demotion import Demotion
from server.core.tiers.forgetting import Forgetting
from server.core.tiers.ghosts import Ghosts
from server.core.tiers.misses import Misses
from server.core.tiers.prefetches import Prefetches
from server.core.tiers.promotion import Promotion
from server.core.tiers.tiers import Tiers
from server.core.tiers.unknown import Unknown
from server.core.tiers.warming import Warming

MAX_FAULTS = 16

MOST_SLOTS, SMALL_SLOT_BYTES = 1 << 24, 4096
"""Slots that memory is asked for at once, and how small they are taken to be."""

BYTES_PER_SLOT = 512
"""Slot, index node, key, place in the order of eviction: 250 to 350 bytes."""

BYTES_PER_PROCESS = 1 << 20
"""Sessions, leases, requests and replies under way of a usual engine."""

BYTES_FOR_TIERS = 64 << 20
"""What was evicted, what is to be written and to be forgotten, what is on its way up."""


class State:
    """The rooms.

    Args:
        config: settings.
        epoch: this incarnation.
        arena: the arena it serves.
        random_bytes: ``n`` to ``n`` unguessable bytes.

    Attributes:
        epoch: this incarnation.
        arena_id: the arena it serves.
        draining: no new work is begun.
        faults: tracebacks of errors of our own, for the log.
        more_figures: what else STATS tells, by name.
        latency: what STATUS tells of how long answers take.
        slow: requests that took long, which STATUS tells.
        outside: what STATUS tells that the core does not know.
    """

    def __init__(
        self,
        config: CoreConfig,
        epoch: Epoch,
        arena: ArenaId,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self.config = config
        self.epoch, self.arena_id = epoch, arena
        self.draining = False
        self.faults: list[str] = []
        self.more_figures: list[Callable[[], dict[str, int]]] = []
        self.latency: Callable[[], dict[str, OpLatency]] = dict
        self.outside: Callable[[], Outside] = Outside
        self.clock = Clock()
        self.timers = Timers(self.clock)
        self.outbox = Outbox(self.timers)
        self.lanes = Lanes()
        self.peers = Peers(config, epoch, arena, self.outbox)
        self.slow = SlowRequests(self.peers, self.outbox.fingerprint_of)
        self.slots = SlotTable(min(MOST_SLOTS, config.arena_bytes // SMALL_SLOT_BYTES))
        self.accounts = Accounts()
        self.quotas = Quotas(config.arena_bytes, self.accounts)
        self.arena = Arena(self.clock, self.outbox, self.slots, self.accounts)
        self.readers = Readers(self.arena, self.outbox, self.clock)
        self.growth = Growth(config, self.clock, self.outbox, self.arena, self.readers, self.quotas)
        self.reclaimer = Reclaimer(
            self.arena,
            self.growth,
            self.readers,
            self.timers,
            self.lanes,
            self.fault,
            self.quotas,
        )
        self.copiers = Copiers(config, self.timers, self.outbox)
        self.tiers = Tiers(config, self.timers, self.outbox)
        self.forgetting = Forgetting(self.tiers, self.timers, self.outbox)
        self.ghosts = Ghosts()
        self.misses = Misses(self.outbox, self.ghosts)
        self.demotion = Demotion(
            self.tiers,
            self.arena,
            self.growth,
            self.ghosts,
            self.lanes,
            self.timers,
            self.fault,
        )
        self.leases = Leases(
            self.arena, self.clock, random_bytes, config.max_leased_slots_per_instance
        )
        self.lookups = Lookups(self.arena, self.leases, self.clock, Heat(self.clock))
        self.roster = Roster(config, self.slots, self.outbox, self.accounts)
        self.reservations = Reservations(
            self.clock,
            self.outbox,
            self.arena,
            self.growth,
            self.lanes,
            self.quotas,
            self.roster,
        )
        self.publisher = Publisher(self.clock, self.outbox, self.arena, self.reservations)
        self.promotion = Promotion(
            config,
            self.arena,
            self.reservations,
            self.publisher,
            self.tiers,
            self.lanes,
            self.fault,
        )
        self.prefetches = Prefetches(
            config, self.timers, self.outbox, self.lookups, self.promotion, self.misses
        )
        self.plans = Plans(
            config,
            self.clock,
            self.timers,
            self.outbox,
            self.arena,
            self.lanes,
            self.copiers,
            self.reservations,
            self.publisher,
            self.fault,
        )
        self.pools = Pools(self.roster, self.outbox, self.copiers, self.timers)
        self.departures = Departures(
            self.roster,
            self.outbox,
            self.peers,
            self.arena,
            self.growth,
            self.readers,
            self.leases,
            self.plans,
            self.lanes,
            self.pools,
        )
        self.quarantine = Quarantine(
            self.arena, self.growth, self.departures, self.lanes, self.fault
        )
        self.registry = Registry(
            config,
            self.clock,
            self.outbox,
            self.roster,
            self.arena,
            self.growth,
            self.readers,
            self.pools,
            self.departures,
            self.quarantine,
        )
        self.operations = Operations(
            config,
            self.timers,
            self.outbox,
            self.arena,
            self.reservations,
            self.publisher,
            self.roster,
            self.departures,
            self.lanes,
            self.forgetting,
            Unknown(self.tiers, self.forgetting, self.timers, self.roster.owners),
            self.fault,
        )
        self.following = Following(
            self.timers,
            self.outbox,
            self.lanes,
            self.arena,
            self.publisher,
            self.operations,
            self.roster,
            self.fault,
        )
        self.retirement = Retirement(config, self.timers, self.outbox, self.roster, self.operations)
        self.allotment = Allotment(
            self.quotas,
            TierQuotas(self.tiers, self.timers),
            self.roster,
            self.arena,
            self.reclaimer,
            self.timers,
            self.lanes,
            self.outbox,
            self.fault,
        )
        self.adopter = Adopter(
            config,
            self.clock,
            self.outbox,
            self.roster,
            self.arena,
            self.growth,
            self.publisher,
            self.quarantine,
        )
        self.warming = Warming(
            config,
            self.tiers,
            self.promotion,
            self.roster,
            self.departures,
            self.outbox,
            self.lanes,
            self.fault,
        )
        self._tie_tiers()

    def _tie_tiers(self) -> None:
        """Has what happens in L1 told to those who write to lower tiers; nothing without any."""
        if not self.tiers.tiers:
            return
        self.publisher.published = self.demotion.published
        self.lookups.used = self.demotion.used
        self.adopter.adopted = self.demotion.adopted
        self.forgetting.freed = self.demotion.pump
        self.forgetting.begun = self.promotion.forget
        self.promotion.over = self.departures.shrink
        self.departures.leaving = self.prefetches.session_gone
        for writer in self.demotion.writers:
            writer.idle = self.departures.shrink

    def fault(self, error: Exception) -> None:
        """Notes an error of our own."""
        self.outbox.counters["internal_errors"] += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append("".join(traceback.format_exception(error)))

    def stats(self) -> dict[str, int]:
        """Counters, and gauges of what is there now."""
        values = dict(self.outbox.counters)
        extents = list(self.arena.extents.values())
        owners = list(self.roster.owners.values())
        values.update(
            processes=len(self.peers.processes),
            connections=self.peers.num_peers,
            sessions=len(self.roster.sessions),
            instances=len(self.roster.instances),
            namespaces=len(owners),
            chunks=sum(len(owner.index) for owner in owners),
            leases=len(self.leases.by_id),
            stores=sum(len(session.stores) for session in self.roster.sessions.values()),
            pinned_prefixes=len(self.operations.pins),
            replies_owed=self.outbox.num_owed,
            arena_bytes=self.config.arena_bytes,
            arena_held_bytes=sum(one.num_held * one.geometry.slot_bytes for one in extents),
            arena_used_bytes=self.growth.used_bytes,
            arena_quarantined_bytes=self.quarantine.sealed_bytes
            + sum(extent.file_bytes for extent in extents if extent.phase is Phase.TAKEN),
            parties_awaited=self.quarantine.num_parties,
            extents=len(extents),
            extents_unmapped=sum(len(i.unmapped) for i in self.roster.instances.values()),
            slots_held=sum(extent.num_held for extent in extents),
            slots_reserved=sum(extent.num_reserved for extent in extents),
            pinned_slots=int((self.slots.pins > 0).sum()),
        )
        values.update(self.copiers.figures())
        values.update(self.tiers.figures())
        values.update(self.forgetting.figures())
        values.update(self.demotion.figures())
        values.update(self.prefetches.figures())
        values.update(self.following.figures())
        for figures in self.more_figures:
            values.update(figures())
        return values

    def accounted_bytes(self) -> int:
        """Memory that what is held, and who is here, may take at most. Any thread may ask."""
        own = self.slots.state.size * BYTES_PER_SLOT + self.following.accounted_bytes
        below = self.prefetches.key_bytes + BYTES_FOR_TIERS if self.tiers.tiers else 0
        return own + below + len(self.peers.processes) * BYTES_PER_PROCESS
