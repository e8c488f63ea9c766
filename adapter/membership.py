"""What this process is to the server right now: one immutable snapshot, swapped as a whole.

The keeper writes it, every other thread reads it. A reader that took a snapshot works on with it;
whatever it does with an outdated one is refused by the server, because epoch and session go along.

Must not know: sockets, how joining works. Any thread may read; only the keeper's thread writes.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from protocol.errors import KvkeepError
from protocol.ids import ArenaId, Epoch, Fingerprint, SessionId, Token
from protocol.namespace import Namespace


@dataclass(frozen=True)
class Joined:
    """A registration that the server has accepted.

    Attributes:
        epoch: the server's incarnation; also names the generation of mapped extents.
        arena: its arena.
        session: this rank's session.
        fingerprint: of the namespace.
        max_blocks: most chunks or pages in one message.
        namespace: as registered.
        rank: as registered.
        capabilities: what this server can beyond the base set.
    """

    epoch: Epoch
    arena: ArenaId
    session: SessionId
    fingerprint: Fingerprint
    max_blocks: int
    namespace: Namespace
    rank: int
    capabilities: frozenset[str]

    @property
    def knows_tenants(self) -> bool:
        """Whether LOOKUP and STORE may name a tenant."""
        return "tenants" in self.capabilities

    @property
    def knows_traces(self) -> bool:
        """Whether messages may name the span that asks."""
        return "traces" in self.capabilities


@dataclass(frozen=True)
class Access:
    """What a channel needs to open a connection; void once the side connection is gone.

    Attributes:
        serial: number of the side connection within this link, 1 and up.
        endpoint: ZMQ endpoint to connect to.
        token: for HELLO.
        joined: the registration.
    """

    serial: int
    endpoint: str
    token: Token
    joined: Joined


class Membership:
    """The current snapshot and the news about it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._access: Access | None = None
        self._refusal: KvkeepError | None = None
        self._closed = False
        self._doubted_serial = 0

    @property
    def access(self) -> Access | None:
        """The snapshot, or None while not registered with a live server. Needs no lock."""
        return self._access

    @property
    def refusal(self) -> KvkeepError | None:
        """Why the server would not have us, when trying again cannot help; else None."""
        return self._refusal

    def enter(self, access: Access) -> None:
        """The server accepted the registration.

        Args:
            access: the new snapshot.
        """
        with self._changed:
            self._access = access
            self._refusal = None
            self._changed.notify_all()

    def leave(self) -> None:
        """The server is gone, or has forgotten us."""
        with self._changed:
            self._access = None
            self._changed.notify_all()

    def refuse(self, error: KvkeepError) -> None:
        """The server refused for good.

        Args:
            error: what it said.
        """
        with self._changed:
            self._access = None
            self._refusal = error
            self._changed.notify_all()

    def end(self) -> None:
        """The link is closed: nobody need wait any longer."""
        with self._changed:
            self._access = None
            self._closed = True
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> Access | None:
        """Waits for a registration.

        Args:
            timeout_s: longest wait.

        Returns:
            The snapshot, or None after the time, a refusal for good, or the link's end.
        """
        end_s = time.monotonic() + timeout_s
        with self._changed:
            while self._access is None and self._refusal is None and not self._closed:
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            return self._access

    def doubt(self, serial: int) -> None:
        """A reply said that the server does not know this registration: join anew.

        Args:
            serial: of the snapshot that the refused request was made with.
        """
        with self._changed:
            self._doubted_serial = max(self._doubted_serial, serial)

    def is_doubted(self, serial: int) -> bool:
        """Whether a side connection of this number was doubted.

        Args:
            serial: of the keeper's current side connection.
        """
        return self._doubted_serial >= serial
