"""The link: everything between this process and the kvkeep server on its node.

Must not know: the host, requests, tokens. The engine's threads call it; a keeper thread and a
mapper thread work behind it. No call blocks but ``wait_joined`` and ``close``, which take a bound.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from adapter.breaker import Breaker
from adapter.channel import Channel, ChannelSetup
from adapter.context import SharedContext
from adapter.enrolment import PoolFd, Registration
from adapter.extents import ExtentTable
from adapter.formers import Formers
from adapter.household import Household
from adapter.journal import Journal
from adapter.keeper import Keeper, Orders
from adapter.mapper import Mapper
from adapter.membership import Joined, Membership
from adapter.openoffers import OpenOffers
from adapter.outbox import EndNotice, Notice, Outbox, ReleaseNotice
from adapter.wake import Wake
from protocol import endpoint as endpoints
from protocol.device.interface import Device
from protocol.errors import KvkeepError
from protocol.ids import InstanceId, LeaseId, RequestKey
from protocol.layout import CudaIpcMemory, ShardPool
from protocol.namespace import Namespace

__all__ = ["Joined", "Link", "LinkConfig"]

_MAPPER_END_S: Final = 1.0

_DRAIN_S: Final = 1.0
"""Longest that the end of a link waits for loads that were promised before it."""

_DRAIN_QUIET_NS: Final = 250_000_000
"""An engine that begins no iteration for this long while its link ends is not waited for."""

_DRAIN_POLL_S: Final = 0.005


@dataclass(frozen=True)
class LinkConfig:
    """How to reach the server, and how long to wait for it.

    Attributes:
        url: ``ipc:///path`` or ``tcp://loopback:port``.
        instance: the engine; all of its ranks share it.
        client: name and version for the server's log.
        call_budget_s: default time of ``Channel.call``.
        connect_timeout_s: longest wait for each step of joining.
        quiet_s: extents of a server that is gone stay mapped after the next one took us in until
            ``Link.offers`` says that no offer can be loaded from them any more; for lack of news
            from there, this long.
        device: that makes the loads, so extents are page-locked for it; None for host memory.
    """

    url: str
    instance: InstanceId
    client: str = ""
    call_budget_s: float = 0.02
    connect_timeout_s: float = 2.0
    quiet_s: float = 10.0
    device: Device | None = None


class Link:
    """One per process; its public methods may be called from any thread."""

    def __init__(self, config: LinkConfig) -> None:
        """Checks the configuration; starts nothing.

        Args:
            config: how to reach the server.

        Raises:
            ConfigError: INVALID_URL.
        """
        self._config = config
        endpoint = endpoints.parse(config.url)
        self._pid = os.getpid()
        self._wake = Wake()
        self._journal = Journal(logging.getLogger("kvkeep.link"))
        self._membership = Membership()
        self._breaker = Breaker(self._wake.set)
        self._outbox = Outbox(self._wake.set)
        self._context = SharedContext()
        self._orders = Orders()
        self._lock = threading.Lock()
        self._is_started = False
        self._is_closed = False
        self._table = ExtentTable(self._kick_mapper)
        self._mapper = Mapper(self._table, self._journal, self._wake.set, config.device)
        self._numa_node = None if config.device is None else config.device.numa_node
        self._offers = OpenOffers(self._wake.set)
        self._formers = Formers(self._table, self._mapper, self._offers, config.quiet_s)
        household = Household(
            context=self._context.context,
            membership=self._membership,
            breaker=self._breaker,
            journal=self._journal,
            outbox=self._outbox,
            table=self._table,
            mapper=self._mapper,
            formers=self._formers,
            instance=config.instance,
            client=config.client,
            connect_timeout_s=config.connect_timeout_s,
        )
        self._keeper = Keeper(household, endpoint, self._orders, self._wake, self._ended)

    def start(self) -> None:
        """Starts the keeper and the mapper; they look for the server from now on. Idempotent."""
        with self._lock:
            if self._is_started or self._is_closed or self._is_forked:
                return
            self._is_started = True
            self._context.join()
            self._mapper.start()
            self._keeper.start()

    def register(
        self,
        namespace: Namespace,
        rank: int,
        memory_fd: int | None,
        memory_bytes: int,
        pools: tuple[ShardPool, ...],
        is_ring: bool = False,
        owner: object = None,
        handle: CudaIpcMemory | None = None,
        on_refused: Callable[[KvkeepError], bool] | None = None,
    ) -> None:
        """Says what to register with every server that comes along; returns at once.

        Args:
            namespace: identity of the KV bytes.
            rank: this process's rank.
            memory_fd: sealed memfd of the pool, duplicated here; None for a reader that only
                loads, and with a handle.
            memory_bytes: length of the memory; 0 without any.
            pools: where the pages of each shard lie in it.
            is_ring: the memory is the staging ring, its pages are slots of it.
            owner: whatever must not be freed while a server may read the memory.
            handle: device memory, in place of a descriptor.
            on_refused: told, in the keeper's thread, of a server that refuses this for good; it
                may register something else, and then returns True. Must not hold the engine.

        Raises:
            OSError: the descriptor is none.
        """
        memory = None if memory_fd is None else PoolFd(memory_fd)
        own = (namespace, rank, memory, memory_bytes, pools, is_ring, owner, handle, on_refused)
        self._orders.registration = Registration(*own, numa_node=self._numa_node)
        self._wake.set()

    def withdraw(self) -> None:
        """Takes the registration back once what was offered under it has been loaded.

        Returns at once. No server is given the pool any more.
        """
        self._orders.registration = None
        self._wake.set()

    @property
    def joined(self) -> Joined | None:
        """The registration with the live server, or None. Immutable; take it once per use."""
        access = self._membership.access
        is_over = self._is_closed or self._is_forked
        return None if access is None or is_over else access.joined

    @property
    def refusal(self) -> KvkeepError | None:
        """Why the server will not have this registration, when trying again cannot help."""
        return self._membership.refusal

    @property
    def is_breaker_open(self) -> bool:
        """Whether calls fail at once now."""
        return self._breaker.is_open

    @property
    def extents(self) -> ExtentTable:
        """The extents mapped into this process."""
        return self._table

    @property
    def offers(self) -> OpenOffers:
        """Takes what the engine knows of its open offers."""
        return self._offers

    @property
    def counters(self) -> dict[str, int]:
        """What happened and what went wrong, by name; a copy."""
        return self._journal.counters()

    def wait_joined(self, timeout_s: float) -> Joined | None:
        """Waits for a registration.

        Args:
            timeout_s: longest wait.

        Returns:
            The registration, or None after the time or after a refusal for good.
        """
        access = None if self._is_forked else self._membership.wait(timeout_s)
        return None if access is None else access.joined

    def open_channel(self) -> Channel:
        """A channel for the calling thread; it connects when first used."""
        self._context.join()
        return Channel(
            ChannelSetup(
                context=self._context.context,
                membership=self._membership,
                breaker=self._breaker,
                journal=self._journal,
                instance=self._config.instance,
                client=self._config.client,
                call_budget_s=self._config.call_budget_s,
                on_doubt=self._doubt,
                on_close=self._context.leave,
            )
        )

    def release(
        self, lease: LeaseId, start: int = 0, count: int = 0, all_readers: bool = False
    ) -> None:
        """Gives back a lease in the background: repeated until answered or the epoch ends.

        While not joined there is nothing to do: a lease ends with its server, and the session that
        held it with the next registration.

        Args:
            lease: from LOOKUP.
            start: first chunk.
            count: chunks; 0 for all.
            all_readers: the scheduler gives back for every rank.
        """
        joined = self.joined
        if joined is not None:
            self._put(ReleaseNotice(joined.epoch, lease, start, count, all_readers))

    def end_request(self, request: RequestKey) -> None:
        """Ends a request's unretrieved leases in the background, repeated like ``release``.

        Args:
            request: request key.
        """
        joined = self.joined
        if joined is not None:
            self._put(EndNotice(joined.epoch, request))

    def set_live_requests(self, provider: Callable[[], Iterable[int]]) -> None:
        """Makes this process the one that sends HEARTBEATs (the scheduler's).

        Args:
            provider: called on the keeper's thread at each beat; the request keys that live. A key
                must be in there before its LOOKUP is sent, or the lease may go at once (a miss).
        """
        self._orders.live_requests = provider

    def close(self, timeout_s: float) -> bool:
        """Unregisters and stops. Never hangs; the link cannot be started again.

        Nothing is offered from here on. What was promised before is still loaded if that comes
        soon: an interpreter may end while its executor, a daemon thread, goes on.

        Args:
            timeout_s: longest wait.

        Returns:
            True when the server acknowledged that nothing of it touches the pool any more, or no
            server was ever given it; False when that is not so yet. The pool is held then, and
            the server asked again, until it is, or the server is seen to be gone.
        """
        if self._is_forked:
            return False
        end_s = time.monotonic() + timeout_s
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
        if is_first:
            self._context.leave()
        if not self._is_started:
            self._orders.registration = None
            self._membership.end()
            return True
        outcome = self._keeper.outcome
        if is_first:
            self._drain(min(_DRAIN_S, timeout_s / 2))
            self._table.take_all()
            self._mapper.kick()
            # The keeper needs a moment to close its sockets within the time.
            self._orders.close_by_ns = time.monotonic_ns() + int(timeout_s * 0.9e9)
            self._wake.set()
        outcome.is_told.wait(max(0.0, end_s - time.monotonic()))
        if not outcome.is_over.is_set():
            return False
        self._keeper.join(max(0.0, end_s - time.monotonic()))
        return outcome.is_acknowledged

    def _drain(self, limit_s: float) -> None:
        """Waits until no offer is open any more, and what was begun has ended.

        A device may still have to read what a hook began: the server is free to fill those slots
        anew once this rank has left, and the load would fail.
        """
        joined = self._membership.access
        self._membership.leave()  # before the watch: questions under way end without an offer
        if joined is None:
            return
        end_s = time.monotonic() + limit_s
        watch = self._offers.watch(joined.joined.epoch, time.monotonic_ns())
        while True:
            is_over = self._offers.is_over(watch, time.monotonic_ns(), _DRAIN_QUIET_NS)
            if is_over and not self._table.is_used(watch.epoch):
                return
            if time.monotonic() >= end_s:
                return
            time.sleep(_DRAIN_POLL_S)

    def _ended(self) -> None:
        """The keeper's last act, on its thread."""
        self._orders.registration = None  # and with it our descriptor of the pool
        self._mapper.stop()
        self._mapper.join(_MAPPER_END_S)
        self._formers.close()
        self._context.leave()

    def _kick_mapper(self) -> None:
        self._mapper.kick()

    @property
    def _is_forked(self) -> bool:
        return self._pid != os.getpid()

    def _put(self, notice: Notice) -> None:
        if not self._outbox.put(notice):
            self._journal.report("notices_dropped", "too many releases wait for the server")

    def _doubt(self, serial: int) -> None:
        self._membership.doubt(serial)
        self._wake.set()
