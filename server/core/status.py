"""STATUS: who is there and how everything is, collected in slices.

Purpose: one row for each process, namespace, tier and copier, bounded, so that an operator sees at
a glance what is wrong; rows are built in slices, so that a full server is not held up by them. Must
not know: frames, sockets, what anybody does with it. Runs in: the loop thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from heapq import nlargest

from protocol.ids import ExtentId, Fingerprint
from protocol.limits import MAX_STATUS_CHARS, MAX_STATUS_NAMES, MAX_STATUS_ROWS, MAX_TEXT_CHARS
from protocol.messages import StatusReply
from protocol.status import (
    LATENCY_BOUNDS_US,
    CopierStatus,
    EngineStatus,
    NamespaceStatus,
    ServerStatus,
    TierStatus,
)
from server.core.admission import MORE, Pause, Steps
from server.core.config import SECOND_NS, Outside
from server.core.effects import HOST_COPIER, CopierId
from server.core.extents import Phase
from server.core.index import ROOT
from server.core.namespaces import Owner, Session
from server.core.operations import PinnedPrefix
from server.core.peers import Process
from server.core.state import State
from server.core.tiers.tier import Tier

SLICE_ROWS, SLICE_PINS, SLICE_EXTENTS = 8, 256, 256
"""Engines, pinned chunks and extents that are looked at in one slice."""


class Collection:
    """One answer to STATUS.

    Args:
        state: every room of the core.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._now_ns = state.clock.now_ns
        self._engines: list[EngineStatus] = []
        self._namespaces: list[NamespaceStatus] = []
        self._outside = Outside()

    def collect(self, done: Callable[[StatusReply], None]) -> Steps:
        """Builds the answer.

        Args:
            done: told it.
        """
        state = self._state
        processes = state.peers.processes.values()
        # Who has registered something first, then who came first.
        shown = nlargest(MAX_STATUS_ROWS, processes, lambda one: (len(one.sessions), -one.process))
        engines_more = len(processes) - len(shown)
        yield MORE
        extents = state.arena.extents.items()
        taken = {number: one.file_bytes for number, one in extents if one.phase is Phase.TAKEN}
        for number, process in enumerate(shown):
            if not number % SLICE_ROWS:
                yield MORE
            self._engines.append(self._engine(process, taken))
        yield MORE
        owners = state.roster.owners.values()
        fullest = nlargest(MAX_STATUS_ROWS, owners, lambda one: len(one.index))
        namespaces_more = len(owners) - len(fullest)
        pinned = yield from self._pinned()
        for owner in fullest:
            num_bytes = yield from _num_bytes(owner)
            self._namespaces.append(self._namespace(owner, num_bytes, pinned[owner.fingerprint]))
        done(self._reply(engines_more, namespaces_more))

    def _reply(self, engines_more: int, namespaces_more: int) -> StatusReply:
        state = self._state
        self._outside = state.outside()
        return StatusReply(
            server=self._server(),
            engines=tuple(self._engines),
            engines_more=engines_more,
            namespaces=tuple(self._namespaces),
            namespaces_more=namespaces_more,
            tiers=tuple(map(self._tier, state.tiers.tiers)),
            copiers=tuple(map(self._copier, list(state.copiers.windows)[:MAX_STATUS_ROWS])),
            latency_bounds_us=LATENCY_BOUNDS_US,
            latency=state.latency(),
            prefixes=state.lookups.heat.hottest(state.roster.owners),
            slow=state.slow.told(self._now_ns),
        )

    def _since_s(self, then_ns: int) -> float:
        return max(0, self._now_ns - then_ns) / SECOND_NS

    def _server(self) -> ServerStatus:
        state, identity, outside = self._state, self._state.config.identity, self._outside
        return ServerStatus(
            version=identity.version[:MAX_STATUS_CHARS],
            pid=identity.pid,
            uptime_s=self._since_s(identity.begun_ns),
            epoch=state.epoch,
            arena=state.arena_id,
            endpoint=identity.endpoint[:MAX_TEXT_CHARS],
            draining=state.draining,
            http=outside.http[:MAX_TEXT_CHARS],
            started_in_s=outside.started_in_s,
            adopted_chunks=outside.adopted.chunks,
            adopted_bytes=outside.adopted.num_bytes,
            adopted_in_s=outside.adopted.seconds,
        )

    # --- engines --------------------------------------------------------------------------

    def _engine(self, process: Process, taken: dict[ExtentId, int]) -> EngineStatus:
        known = self._state.roster.sessions
        sessions = [known[number] for number in process.sessions if number in known]
        names = sorted({one.owner.fingerprint for one in sessions})
        return EngineStatus(
            client=process.client[:MAX_STATUS_CHARS],
            pid=process.pid,
            instance=process.instance,
            state=engine_state(process, sessions),
            connected_s=self._since_s(process.joined_ns),
            idle_s=self._since_s(process.heard_ns),
            namespaces=tuple(names[:MAX_STATUS_NAMES]),
            sessions=len(sessions),
            leases=self._leases(process, sessions),
            quarantined_bytes=_held_bytes(sessions, taken),
            requested_chunks=sum(one.requested_chunks for one in sessions),
            hit_chunks=sum(one.hit_chunks for one in sessions),
        )

    def _leases(self, process: Process, sessions: list[Session]) -> int:
        """Leases of its engine, if none of its ranks is told of with another process."""
        instance = self._state.roster.instances.get(process.instance)
        if instance is None or not instance.ranks:
            return 0
        is_first = any(one.rank == min(instance.ranks) for one in sessions)
        return len(instance.leases) if is_first else 0

    # --- namespaces -----------------------------------------------------------------------

    def _pinned(self) -> Generator[Pause, None, Counter[Fingerprint]]:
        """Chunks under PIN by namespace, each once; of an index that was cleared none any more.

        Prompts that are pinned begin alike as a rule: up from the deepest chunk of each PIN, as far
        as another one's.
        """
        counts: Counter[Fingerprint] = Counter()
        marks: dict[int, bytearray] = {}  # of each index
        num_steps = 0
        for pin in list(self._state.operations.pins.values()):
            name, index, node = pin.owner.fingerprint, pin.index, pin.node
            is_there = _holds(pin)
            if is_there and id(index) not in marks:
                marks[id(index)] = bytearray(len(index.parent))
            while True:
                num_steps += 1
                if not num_steps % SLICE_PINS:
                    yield MORE
                    is_there = _holds(pin)  # and so do all that are above it
                if not is_there or node == ROOT or marks[id(index)][node]:
                    break
                marks[id(index)][node] = 1
                counts[name] += 1
                node = index.parent[node]
        return counts

    def _namespace(self, owner: Owner, num_bytes: int, pinned_chunks: int) -> NamespaceStatus:
        namespace = owner.namespace
        return NamespaceStatus(
            fingerprint=owner.fingerprint,
            name=namespace.model_id[:MAX_STATUS_CHARS],
            ranks=namespace.num_ranks,
            shards=owner.num_shards,
            chunk_tokens=namespace.tokens_per_block * namespace.chunk_blocks,
            chunk_blocks=namespace.chunk_blocks,
            sessions=len(owner.sessions),
            chunks=len(owner.index),
            bytes=num_bytes,
            pinned_chunks=pinned_chunks,
            idle_s=self._since_s(max(owner.used_ns, self._state.config.identity.begun_ns)),
        )

    # --- tiers and copiers ----------------------------------------------------------------

    def _tier(self, tier: Tier) -> TierStatus:
        writers = (one for one in self._state.demotion.writers if one.tier is tier)
        refused = self._state.tiers.refused.get(tier.number)
        return TierStatus(
            name=tier.name[:MAX_STATUS_CHARS],
            kind=tier.kind[:MAX_STATUS_CHARS],
            state=tier_state(tier, refused is not None),
            used_bytes=tier.used_bytes,
            capacity_bytes=tier.capacity_bytes,
            jobs=len(tier.flying),
            waiting_puts=sum(one.num_waiting for one in writers),
            why=(refused or tier.breaker.why)[:MAX_TEXT_CHARS],
            silent_s=tier.silent_ns / SECOND_NS,
            warning=tier.warning[:MAX_TEXT_CHARS] if tier.is_open else "",
        )

    def _copier(self, copier: CopierId) -> CopierStatus:
        copiers = self._state.copiers
        window, device = copiers.windows[copier], copiers.devices.get(copier)
        starts = copiers.starts[copier]
        if device is not None and device.is_leaving:
            state = "ending"
        elif window.is_up:
            state = "up"
        else:
            state = "down" if starts else "starting"
        return CopierStatus(
            name=copier_name(copier, b"" if device is None else device.device_uuid),
            state=state,
            restarts=max(0, starts - 1),
            jobs=len(window.flying),
            stuck=len(window.stranded),
            silent_s=self._outside.silent_s.get(copier, 0.0),
        )


def _holds(pin: PinnedPrefix) -> bool:
    """Whether what was pinned is there."""
    return pin.index is pin.owner.index and pin.index.life[pin.node] == pin.life


def _held_bytes(sessions: list[Session], taken: dict[ExtentId, int]) -> int:
    """Bytes of the extents that were taken back, as far as some of the sessions still have them."""
    return sum(
        num_bytes
        for extent, num_bytes in taken.items()
        if any(extent in one.extents for one in sessions)
    )


def _num_bytes(owner: Owner) -> Generator[Pause, None, int]:
    """Bytes of the slots that hold something of a namespace, in slices."""
    num_bytes = seen = 0
    for of_shard in owner.extents:
        for extent in list(of_shard):
            num_bytes += extent.num_held * extent.geometry.slot_bytes
            seen += 1
            if not seen % SLICE_EXTENTS:
                yield MORE
    yield MORE
    return num_bytes


def engine_state(process: Process, sessions: list[Session]) -> str:
    """How a process stands, one of ``protocol.status.ENGINE_STATES``.

    Args:
        process: which.
        sessions: its registered ranks.
    """
    if process.quiet or (sessions and all(one.is_closing for one in sessions)):
        return "leaving"
    if not sessions:
        return "operator" if process.is_operator else "connected"
    return "serving" if all(one.is_ready for one in sessions) else "registering"


def tier_state(tier: Tier, was_refused: bool) -> str:
    """How a tier stands, one of ``protocol.status.TIER_STATES``.

    Args:
        tier: which.
        was_refused: it could not be opened when that was last tried.
    """
    if tier.is_up:
        return "up" if tier.breaker.is_closed else "breaker open"
    return "down" if was_refused or not tier.breaker.is_closed else "starting"


def copier_name(copier: CopierId, device_uuid: bytes) -> str:
    """What people call a copier.

    Args:
        copier: its number.
        device_uuid: 16 bytes of its device; empty for the one of host memory.
    """
    if copier == HOST_COPIER:
        return "host"
    text = device_uuid.hex()
    parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
    return f"GPU-{'-'.join(parts)}"
