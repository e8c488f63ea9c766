"""The link: everything between this process and the kvkeep server on its node.

Must not know: the host, requests, tokens. The engine's threads call it; a keeper thread and a
mapper thread work behind it. No call blocks but ``wait_joined`` and ``close``, which take a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from adapter.channel import Channel
from adapter.extents import ExtentTable
from adapter.membership import Joined
from protocol.errors import KvkeepError
from protocol.ids import InstanceId, LeaseId, RequestKey
from protocol.layout import ShardPool
from protocol.namespace import Namespace

__all__ = ["Joined", "Link", "LinkConfig"]


@dataclass(frozen=True)
class LinkConfig:
    """How to reach the server, and how long to wait for it.

    Attributes:
        url: ``ipc:///path`` or ``tcp://loopback:port``.
        instance: the engine; all of its ranks share it.
        client: name and version for the server's log.
        call_budget_s: default time of ``Channel.call``.
        connect_timeout_s: longest wait for each step of joining.
        retire_s: extents of a server that is gone stay mapped this long after the next one took
            us in, so that offers made before can still be loaded.
    """

    url: str
    instance: InstanceId
    client: str = ""
    call_budget_s: float = 0.02
    connect_timeout_s: float = 2.0
    retire_s: float = 10.0


class Link:
    """One per process."""

    def __init__(self, config: LinkConfig) -> None:
        """Checks the configuration; starts nothing.

        Args:
            config: how to reach the server.

        Raises:
            ConfigError: INVALID_URL.
        """
        raise NotImplementedError

    def start(self) -> None:
        """Starts the keeper and the mapper; they look for the server from now on. Idempotent."""
        raise NotImplementedError

    def register(
        self,
        namespace: Namespace,
        rank: int,
        memory_fd: int | None,
        memory_bytes: int,
        pools: tuple[ShardPool, ...],
    ) -> None:
        """Says what to register with every server that comes along; returns at once.

        Args:
            namespace: identity of the KV bytes.
            rank: this process's rank.
            memory_fd: sealed memfd of the pool, duplicated here; None for a reader that only
                loads.
            memory_bytes: length of that memory; 0 without one.
            pools: where the pages of each shard lie in it.
        """
        raise NotImplementedError

    @property
    def joined(self) -> Joined | None:
        """The registration with the live server, or None. Immutable; take it once per use."""
        raise NotImplementedError

    @property
    def refusal(self) -> KvkeepError | None:
        """Why the server will not have this registration, when trying again cannot help."""
        raise NotImplementedError

    @property
    def extents(self) -> ExtentTable:
        """The extents mapped into this process."""
        raise NotImplementedError

    @property
    def counters(self) -> dict[str, int]:
        """What happened and what went wrong, by name; a copy."""
        raise NotImplementedError

    def wait_joined(self, timeout_s: float) -> Joined | None:
        """Waits for a registration.

        Args:
            timeout_s: longest wait.

        Returns:
            The registration, or None after the time or after a refusal for good.
        """
        raise NotImplementedError

    def open_channel(self) -> Channel:
        """A channel for the calling thread; it connects when first used."""
        raise NotImplementedError

    def release(
        self, lease: LeaseId, start: int = 0, count: int = 0, all_readers: bool = False
    ) -> None:
        """Gives back a lease in the background: repeated until answered or the epoch ends.

        Args:
            lease: from LOOKUP.
            start: first chunk.
            count: chunks; 0 for all.
            all_readers: the scheduler gives back for every rank.
        """
        raise NotImplementedError

    def end_request(self, request: RequestKey) -> None:
        """Ends a request's unretrieved leases in the background, repeated like ``release``.

        Args:
            request: request key.
        """
        raise NotImplementedError

    def set_live_requests(self, provider: Callable[[], Iterable[int]]) -> None:
        """Makes this process the one that sends HEARTBEATs (the scheduler's).

        Args:
            provider: called on the keeper's thread at each beat; the request keys that live. A key
                must be in there before its LOOKUP is sent, or the lease may go at once (a miss).
        """
        raise NotImplementedError

    def close(self, timeout_s: float) -> bool:
        """Unregisters and stops. Never hangs; the link cannot be started again.

        Args:
            timeout_s: longest wait.

        Returns:
            True when the server acknowledged that nothing of it touches the pool any more, or no
            server was ever given it; False when that is unknown.
        """
        raise NotImplementedError
