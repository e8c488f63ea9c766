"""Registers this rank's pool with one server: pass the descriptor, then REGISTER_KV_CACHE.

Device memory has no descriptor: its handle goes in the message.

Must not know: sockets, threads, what follows a registration. Runs in: the keeper's thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from adapter.calls import Calls
from adapter.side import SideConnection
from protocol.errors import (
    REJOIN,
    ErrorCode,
    KvkeepError,
    ReplyError,
    UnreachableError,
    code_of,
)
from protocol.ids import ID_BYTES, PoolId
from protocol.layout import CudaIpcMemory, MemfdMemory, Memory, RingMemory, ShardPool
from protocol.messages import Body, RegisterKvCache, RegisterKvCacheReply
from protocol.namespace import Namespace
from protocol.side import PoolOffer, SideError

REGISTER_S: Final = 10.0
"""The server may have to allocate an extent per shard before it answers."""

RETRY_FIRST_NS: Final = 250_000_000
RETRY_LAST_NS: Final = 10_000_000_000


class PoolFd:
    """A descriptor of our own of the pool, closed with the last reference to this object."""

    def __init__(self, fd: int) -> None:
        """Duplicates a descriptor.

        Args:
            fd: stays the caller's.

        Raises:
            OSError: it is none, or no more are to be had.
        """
        self._fd = os.dup(fd)

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def __del__(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)


@dataclass(frozen=True)
class Registration:
    """What to register with every server that comes along.

    Attributes:
        namespace: identity of the KV bytes.
        rank: of this process.
        memory: sealed memfd; None for a reader, and with a handle.
        memory_bytes: its length.
        pools: where the pages lie.
        is_ring: the memory is the engine's staging ring, its pages are slots of it.
        owner: lives as long as a server may read the memory.
        handle: device memory, in place of ``memory``.
        on_refused: told, in the keeper's thread, of a server that refuses it for good; True when
            another registration has taken its place.
        numa_node: near the rank's device; None for unknown.
    """

    namespace: Namespace
    rank: int
    memory: PoolFd | None
    memory_bytes: int
    pools: tuple[ShardPool, ...]
    is_ring: bool = False
    owner: object = None
    handle: CudaIpcMemory | None = None
    on_refused: Callable[[KvkeepError], bool] | None = None
    numa_node: int | None = None


class Stage(Enum):
    """How far an enrolment is."""

    IDLE = 0
    OFFERED = 1
    ACCEPTED = 2
    ASKED = 3
    ENROLLED = 4
    REFUSED = 5


class Enrolment:
    """One registration with one server.

    Attributes:
        registration: what is registered.
        stage: how far it is.
        reply: the server's answer once ENROLLED.
        error: why it was REFUSED, or what is wrong while it is tried again.
        must_rejoin: the server does not know this connection; begin with a new one.
        gave_pool: whether the pool's descriptor or handle was passed to the server.
        in_the_way: number of a session of this rank that stands although it is not ours to use,
            most likely because its reply never reached us; it must be ended, over another side
            connection, so that nothing is offered under it meanwhile. None for none.
    """

    def __init__(
        self,
        registration: Registration,
        side: SideConnection,
        calls: Calls,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Sends nothing yet."""
        self.registration = registration
        self.stage = Stage.IDLE
        self.reply: RegisterKvCacheReply | None = None
        self.error: KvkeepError | None = None
        self.must_rejoin = False
        self.gave_pool = False
        self.in_the_way: int | None = None
        self._side = side
        self._calls = calls
        self._random_bytes = random_bytes
        self._pool = PoolId(b"")
        self._is_pool_held = False
        self._is_pool_used = False
        self._at_ns = 0
        self._delay_ns = RETRY_FIRST_NS
        self._turn_ns = 0
        self._was_duplicate = False

    def next_ns(self) -> int | None:
        """When ``turn`` has something to do even if nothing arrives; None for never."""
        return self._at_ns if self.stage in (Stage.IDLE, Stage.OFFERED) else None

    def turn(self, now_ns: int) -> None:
        """Takes the next step if it is due.

        Args:
            now_ns: monotonic clock.

        Raises:
            SideClosedError: the side connection broke.
        """
        self._turn_ns = now_ns
        if self.stage == Stage.OFFERED and now_ns >= self._at_ns:
            self._fail(UnreachableError(ErrorCode.DEADLINE_EXCEEDED, "the pool was not accepted"))
        if self.stage == Stage.IDLE and now_ns >= self._at_ns and self._calls.greeted:
            self._offer(now_ns)
        if self.stage == Stage.ACCEPTED and self._calls.greeted:
            self._ask()

    def _offer(self, now_ns: int) -> None:
        memory = self.registration.memory
        if memory is None or self._is_pool_held:
            self.stage = Stage.ACCEPTED
            return
        self._pool = PoolId(self._random_bytes(ID_BYTES))
        offer = PoolOffer(pool=self._pool, size_bytes=self.registration.memory_bytes)
        self.gave_pool = True
        self._side.send(offer, memory.fileno())
        self.stage = Stage.OFFERED
        self._at_ns = now_ns + int(REGISTER_S * 1e9)

    def _ask(self) -> None:
        wanted = self.registration
        memory: Memory | None = wanted.handle
        if wanted.memory is not None:
            kind = RingMemory if wanted.is_ring else MemfdMemory
            memory = kind(pool=self._pool, size_bytes=wanted.memory_bytes)
        body = RegisterKvCache(
            namespace=wanted.namespace,
            rank=wanted.rank,
            memory=memory,
            pools=wanted.pools,
            numa_node=wanted.numa_node,
        )
        if self._calls.send(body, REGISTER_S, self._on_reply):
            self.gave_pool = self.gave_pool or memory is not None
            self.stage = Stage.ASKED

    def pool_accepted(self, pool: bytes) -> None:
        """The server holds the descriptor.

        Args:
            pool: which.
        """
        if self.stage == Stage.OFFERED and pool == self._pool:
            self.stage = Stage.ACCEPTED
            self._is_pool_held, self._is_pool_used = True, False

    def side_error(self, said: SideError) -> None:
        """The server said on the side connection what it does not like.

        Args:
            said: its packet.
        """
        error = ReplyError(code_of(said.code), said.message)
        if self.stage == Stage.OFFERED and said.pool in (b"", self._pool):
            self._fail(error)

    def _on_reply(self, body: Body | None, error: KvkeepError | None) -> None:
        if isinstance(body, RegisterKvCacheReply):
            self.reply = body
            self.error = None
            self.stage = Stage.ENROLLED
        else:
            self._fail(error or ReplyError(ErrorCode.MALFORMED, "no reply to REGISTER_KV_CACHE"))

    def _fail(self, error: KvkeepError) -> None:
        self.error = error
        # After a refusal for want of room the server keeps the descriptor; if it did not, the
        # next attempt passes it again.
        is_pool_gone = error.code == ErrorCode.POOL_INVALID and self._is_pool_used
        self._is_pool_held = self._is_pool_held and not is_pool_gone
        self._is_pool_used = self._is_pool_held
        # DUPLICATE: an earlier registration of this rank is about to end, by its deadline or by
        # the UNREGISTER that went before this. One that is still there later does not end so.
        is_duplicate = error.code == ErrorCode.DUPLICATE
        session = error.detail.get("session")
        if is_duplicate and self._was_duplicate and isinstance(session, int) and session >= 0:
            self.in_the_way = session
        self._was_duplicate = is_duplicate
        if error.code in REJOIN:
            self.must_rejoin = True
        elif error.retryable or is_duplicate or is_pool_gone or not isinstance(error, ReplyError):
            self._at_ns = self._turn_ns + self._delay_ns
            self._delay_ns = min(2 * self._delay_ns, RETRY_LAST_NS)
            self.stage = Stage.IDLE
        else:
            self.stage = Stage.REFUSED
