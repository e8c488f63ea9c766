"""What scheduler and worker of one engine share in a process.

The worker brings it up (link, identity, saver) when the cache is registered; until then, and
whenever that fails for good, the scheduler answers that nothing is cached. In the processes of the
other ranks it waits for the leader's card, which comes with the metadata. Must not know: the host's
hooks. Built by whichever of the two is constructed first.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from adapter import embedded, loglines, refusals, sharing, trtllm_api
from adapter.config import Settings, read_settings, unknown_variables
from adapter.device import capture_device
from adapter.geometry import Geometry
from adapter.identity import derive
from adapter.journal import Journal
from adapter.link import Link, LinkConfig
from adapter.loadmode import LoadMode, in_force, resolve
from adapter.metadata import EngineCard
from adapter.openoffers import QUIET_S
from adapter.pagememory import PageMemory
from adapter.poolshape import CacheShape
from adapter.refusals import UncachedError
from adapter.rendezvous import MEETING_POINT, Party, Role
from adapter.saver import Saver
from adapter.savespans import SaveSpans
from adapter.sharing import Shared
from adapter.tracing import Tracer
from adapter.tracing import start as start_tracing
from protocol import __version__
from protocol.errors import ErrorCode, KvkeepError
from protocol.ids import ID_BYTES, InstanceId
from protocol.namespace import Namespace

LOGGER: Final = logging.getLogger("kvkeep")
_CLOSE_S: Final = 2.0

_NOT_OPENED: Final = (ErrorCode.POOL_INVALID, ErrorCode.UNSUPPORTED)
"""How a server refuses a handle that it cannot open, or knows nothing of handles. One that serves
as many devices as it may says that by another code, and names the device."""


@dataclass(frozen=True)
class Running:
    """A registered engine.

    Attributes:
        link: to the server.
        geometry: of this rank's pages.
        saver: of this rank.
        memory: the pages' bytes.
        load_mode: how offers are made and loaded.
        enter_device: makes the engine's device the calling thread's.
    """

    link: Link
    geometry: Geometry
    saver: Saver
    memory: PageMemory
    load_mode: LoadMode
    enter_device: Callable[[], None]


@dataclass(frozen=True)
class Prepared:
    """What is known of the cache before the server is.

    Attributes:
        namespace: identity of the KV bytes, the same on all ranks.
        geometry: of this rank's pages.
        memory: the pages' bytes.
        shared: what the server is given to read.
        load_mode: how offers are made and loaded.
        has_layout: a V2 layout described the cache.
        enter_device: makes the engine's device the calling thread's.
    """

    namespace: Namespace
    geometry: Geometry
    memory: PageMemory
    shared: Shared
    load_mode: LoadMode
    has_layout: bool
    enter_device: Callable[[], None]


class Engine(Party):
    """One engine's shared part.

    Attributes:
        settings: as read when it was founded.
        instance: names this engine to the server; the leader's is the one that counts.
        journal: counts and logs what goes wrong.
        features: of the host's interface.
        process_rank: of this process among the engine's.
        tracer: of the leader, from its registration on, if requests are traced.
    """

    def __init__(self, llm_args: object, settings: Settings) -> None:
        """Starts nothing.

        Args:
            llm_args: the engine's arguments.
            settings: of the adapter.
        """
        super().__init__(llm_args)
        self.settings = settings
        self.instance = InstanceId(os.urandom(ID_BYTES))
        self.journal = Journal(LOGGER)
        self.features = trtllm_api.epoch_features()
        self.process_rank = trtllm_api.mpi_rank()
        self.tracer: Tracer | None = None
        self._lock = threading.Lock()
        self._prepared: Prepared | None = None
        self._running: Running | None = None
        self._card: EngineCard | None = None
        self._uncached_because = ""
        self._finalizer: Callable[[], Any] | None = None
        self._closers: list[Callable[[], object]] = []

    @property
    def running(self) -> Running | None:
        """The registered engine, or None before registration and when it runs uncached.

        On ranks that are not the leader it appears in some iteration, when the card has come.
        """
        return self._running

    @property
    def card(self) -> EngineCard | None:
        """On a leader with other ranks, what they need to join; else None."""
        return self._card if self._running is not None and self._is_leader else None

    @property
    def has_layout(self) -> bool:
        """Whether the second cache manager registered: pages come per chunk of a prompt."""
        return self._prepared is not None and self._prepared.has_layout

    @property
    def uncached_because(self) -> str:
        """Why this engine runs uncached for good; empty while it does not."""
        return self._uncached_because

    @property
    def _is_leader(self) -> bool:
        prepared = self._prepared
        return prepared is not None and prepared.geometry.rank == 0

    def register(self, shape: CacheShape, memory: PageMemory) -> None:
        """Takes the engine's final cache; the leader begins to look for the server.

        Args:
            shape: its description.
            memory: its bytes.

        Raises:
            UncachedError: the engine cannot be cached; the caller says so by ``run_uncached``.
            ConfigError: the chunk size does not fit the block size; valid sizes are named.
        """
        if self._prepared is not None:
            raise UncachedError("a second pool was registered")
        namespace, geometry = derive(
            self.llm_args, shape, self.settings, os.environ, self.process_rank
        )
        is_adp = refusals.is_attention_dp(self.llm_args)
        mode, why = resolve(self.settings.load_mode, self.features, is_adp, memory.is_layered)
        if why:
            LOGGER.warning("kvkeep: %s", why)
        LOGGER.info("kvkeep: loads: %s", in_force(self.settings.load_mode, mode))
        for note in refusals.notes(self.llm_args):
            LOGGER.info("kvkeep: %s", note)
        by_layer = mode is LoadMode.LAYERWISE
        shared = sharing.choose(memory, geometry, self.settings.staging, by_layer=by_layer)
        LOGGER.info("kvkeep: %s", shared.says)
        self._prepared = Prepared(
            namespace,
            geometry,
            memory,
            shared,
            mode,
            bool(shape.tokens_per_block),
            capture_device(memory.device),
        )
        if geometry.rank == 0:
            self._lead(self._prepared, is_adp)

    def _lead(self, prepared: Prepared, is_adp: bool) -> None:
        """Brings up the leader; in embedded mode rank 0 begins to start the server."""
        place, url = None, self.settings.server.url
        if self.settings.server.is_embedded:
            place = embedded.place_for(is_adp, self.process_rank)
            url = place.url
        tracing = start_tracing(self.settings.traces, os.environ, self.journal, self.instance.hex())
        if tracing is not None:
            self.tracer, close = tracing
            self.at_close(close)
        if prepared.geometry.num_ranks > 1:
            self._card = EngineCard(instance=self.instance, url=url)
        self._bring_up(prepared, self.instance, url)
        if place is not None and place.is_ours:
            server = embedded.PrivateServer(place, self.journal, os.environ)
            server.start()
            self.at_close(partial(server.close, _CLOSE_S))

    def follow(self, card: EngineCard | None) -> None:
        """Joins the leader's instance; called for each bind, quick and never raising.

        Args:
            card: as the metadata brought it; None changes nothing.
        """
        prepared = self._prepared
        if card is None or card == self._card or prepared is None or self._uncached_because:
            return
        if prepared.geometry.rank == 0:
            return
        if self._card is not None:
            self.run_uncached("the leader became another instance; start the engine anew")
            return
        self._card = card
        try:
            self._bring_up(prepared, InstanceId(card.instance), card.url)
        except (KvkeepError, OSError, RuntimeError) as error:
            self.run_uncached(f"the leader's instance could not be joined: {error}")

    def _bring_up(self, prepared: Prepared, instance: InstanceId, url: str) -> None:
        """Starts link and saver; returns at once.

        Raises:
            ConfigError: the URL is none.
            OSError: no memory, or no descriptors.
        """
        geometry, memory = prepared.geometry, prepared.memory
        link = Link(
            LinkConfig(
                url=url,
                instance=instance,
                client=f"kvkeep adapter {__version__} pid {os.getpid()}",
                call_budget_s=self.settings.query_budget_s,
                quiet_s=QUIET_S,
                device=memory.device,
            )
        )
        if geometry.rank == 0:
            link.offers.lead()
        saver = Saver(
            link,
            geometry,
            self.settings.held_percent,
            self.journal,
            prepared.enter_device,
            memory=memory,
            ring=prepared.shared.ring,
            by_layer=prepared.load_mode is LoadMode.LAYERWISE,
            spans=SaveSpans(self.tracer),
        )
        try:
            _register(link, prepared, prepared.shared, saver)
        except OSError:
            link.close(0)
            raise
        link.start()
        saver.start()
        with self._lock:
            self._running = Running(
                link, geometry, saver, memory, prepared.load_mode, prepared.enter_device
            )
            self._finalizer = weakref.finalize(self, _close, link, saver, self._closers)

    def at_close(self, closer: Callable[[], object]) -> None:
        """Has something closed with the engine, after its link.

        Args:
            closer: must not refer to the engine.
        """
        self._closers.append(closer)

    def run_uncached(self, reason: str) -> None:
        """Ends caching for this engine, with one line in the log.

        Args:
            reason: what is wrong and what to change.
        """
        with self._lock:
            if self._uncached_because:
                return
            self._uncached_because = reason
            running, self._running = self._running, None
        LOGGER.warning("kvkeep: this engine runs uncached: %s", reason)
        if running is not None:
            running.saver.abandon()
            running.link.withdraw()

    def close(self) -> bool:
        """Unregisters and stops the threads, in bounded time. Idempotent.

        Returns:
            Whether the server acknowledged that nothing of it touches the pool any more.
        """
        with self._lock:
            self._running = None
            finalizer = self._finalizer
        result = finalizer() if finalizer is not None else True
        return result is None or bool(result)


def engine_for(llm_args: Any, role: Role, member: object) -> Engine:
    """The engine that a scheduler or worker belongs to.

    Args:
        llm_args: the object both are constructed with.
        role: of the caller.
        member: the caller; its ``default_server_url``, if it has one, is where the server is that
            no setting names.

    Returns:
        The shared part; the caller must keep it.

    Raises:
        ConfigError: a setting is wrong.
    """
    settings = read_settings(llm_args, os.environ, getattr(member, "default_server_url", ""))
    if settings.logs_json:
        loglines.set_up()
    if settings.server.is_embedded and role == "worker" and trtllm_api.mpi_rank() == 0:
        embedded.check_settings(os.environ)

    def found() -> Engine:
        LOGGER.info("kvkeep: server %s (from %s)", settings.server.url, settings.server.source)
        for name in unknown_variables(os.environ):
            LOGGER.warning("kvkeep: %s in the environment is no setting of the adapter", name)
        return Engine(llm_args, settings)

    return MEETING_POINT.meet(llm_args, role, member, Engine, found)


def _register(link: Link, prepared: Prepared, shared: Shared, saver: Saver) -> None:
    """Tells the link what the server may read."""
    instead = partial(_stage_instead, link, prepared, saver) if shared.may_stage else None
    link.register(
        prepared.namespace,
        prepared.geometry.rank,
        shared.fd,
        shared.num_bytes,
        shared.pools,
        is_ring=shared.ring is not None,
        owner=prepared.memory if shared.ring is None else shared.ring,
        handle=shared.handle,
        on_refused=instead,
    )


def _stage_instead(link: Link, prepared: Prepared, saver: Saver, error: KvkeepError) -> bool:
    """A server cannot open the pool's handle: registers a ring. Runs in the keeper's thread.

    An isolated container, a part of a device and whatever else stands between two processes is
    seen only when the server tries. It has nothing of the pool then.

    Returns:
        False when the refusal was about something else, or there is no ring to be had.
    """
    if error.code not in _NOT_OPENED and "device" not in error.detail:
        return False
    why = f"the server cannot read the pool itself: {error.message}"
    try:
        shared = sharing.staged(prepared.memory, prepared.geometry, why)
        if shared.ring is not None:
            saver.use_ring(shared.ring)
        _register(link, prepared, shared, saver)
    except (UncachedError, KvkeepError, OSError) as problem:
        LOGGER.warning("kvkeep: %s", problem)
        return False
    LOGGER.info("kvkeep: %s", shared.says)
    return True


def _close(link: Link, saver: Saver, closers: list[Callable[[], object]]) -> bool:
    has_stopped = saver.stop(_CLOSE_S)
    is_acknowledged = link.close(_CLOSE_S)
    for closer in closers:
        closer()
    return is_acknowledged and has_stopped
