"""The side socket: who connects, their descriptors, and their deaths.

Purpose: a process connects, is named by the kernel and watched from then on, gets a token, passes
pools and is passed extents. The end of its connection stops new work and frees nothing; only its
exit does (design rule 5). Must not know: what the core decides, ZMQ. Runs in: its own thread;
``tell`` in the loop thread.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
from dataclasses import dataclass, field
from functools import partial

from protocol import limits, side
from protocol.errors import ErrorCode, RequestError
from protocol.ids import ArenaId, Epoch, Fingerprint, InstanceId, PoolId, Token
from protocol.messages import VERSION_MAJOR, VERSION_MINOR
from server.core.effects import ProcessId
from server.shell import clock, packets
from server.shell.access import Access
from server.shell.awaited import Awaited, AwaitedParty
from server.shell.complaints import Complaints
from server.shell.credentials import peer_ids
from server.shell.descriptors import Descriptor
from server.shell.door import Door, error_packet
from server.shell.inbox import Inbox
from server.shell.outgoing import Outgoing
from server.shell.parties import EngineParty, Parties
from server.shell.reports import (
    PartyGone,
    PoolOffered,
    ProcessExited,
    ProcessJoined,
    ProcessQuiet,
    Reporter,
)

MAX_POOLS_PER_PEER = 16
MAX_SILENT = 128
SILENCE_LIMIT_S = 10.0


@dataclass(frozen=True)
class Tell:
    """Sends a packet to a process; ``descriptor`` is borrowed already and given back once sent.

    Attributes:
        process: whom.
        packet: what.
        descriptor: of an extent, or None.
        fingerprint: namespace of that extent: its file names the process before it is sent.
    """

    process: ProcessId
    packet: bytes
    descriptor: Descriptor | None = None
    fingerprint: Fingerprint | None = None


@dataclass(frozen=True)
class Drop:
    """Sends a packet, then closes the connection of a process."""

    process: ProcessId
    packet: bytes


@dataclass(frozen=True)
class ForgetPool:
    """A pool's descriptor is closed; the process may offer another in its place."""

    process: ProcessId
    pool: PoolId


@dataclass(frozen=True)
class Forget:
    """Stops watching a process whose connection has ended."""

    process: ProcessId


Command = Tell | Drop | ForgetPool | Forget


@dataclass(eq=False)
class Peer:
    """One process.

    Attributes:
        process: its number here.
        connection: None once the connection ended.
        pidfd: watched until the exit.
        pid: as the door counts it.
        silent_until_ns: when it is closed unless it said SideHello.
        joined: whether it did.
        pools: what it passed and was not dropped.
        party: what it was given, from SideHello on.
        outgoing: packets that the socket had no room for.
    """

    process: ProcessId
    connection: socket.socket | None
    pidfd: int
    pid: int
    silent_until_ns: int
    joined: bool = False
    pools: set[bytes] = field(default_factory=set)
    party: EngineParty | None = None
    outgoing: Outgoing = field(default_factory=Outgoing)


class SideSocket:
    """Listens, watches, reports.

    Args:
        path: of the socket; a stale file there is removed, so the caller holds the lock.
        endpoint: told in Welcome.
        epoch: told in Welcome.
        arena: told in Welcome.
        reporter: used by the thread alone.
        silence_limit_s: time for the first packet.
        complaints: counts what peers do wrong, and bounds what is logged of it.
        access: who may connect; this user alone by default.
        parties: writes down who was given extents; nobody is without it.
        awaited: processes of former incarnations; watched here.
    """

    def __init__(
        self,
        path: str,
        endpoint: str,
        epoch: Epoch,
        arena: ArenaId,
        reporter: Reporter,
        silence_limit_s: float = SILENCE_LIMIT_S,
        complaints: Complaints | None = None,
        access: Access | None = None,
        parties: Parties | None = None,
        awaited: Awaited | None = None,
    ) -> None:
        self._complaints = complaints or Complaints()
        self._parties = parties
        self._awaited = awaited or Awaited([])
        self._endpoint = endpoint
        self._epoch = epoch
        self._arena = arena
        self._reporter = reporter
        self._silence_limit_ns = int(silence_limit_s * clock.NS_PER_S)
        self._door = Door(path, self._complaints, access)
        self._inbox: Inbox[Command | None] = Inbox()
        self._selector = selectors.DefaultSelector()
        self._peers: dict[ProcessId, Peer] = {}
        self._silent: set[ProcessId] = set()
        self._next_process = 1
        self._running = True
        self._thread = threading.Thread(target=self._run, name="kvkeep-side", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def tell(self, command: Command) -> None:
        """Hands a command over without blocking. Runs in the loop thread."""
        self._inbox.put(command)

    def stop(self, timeout_s: float) -> bool:
        """Closes everything and removes the socket's file.

        Args:
            timeout_s: longest wait.

        Returns:
            Whether the thread ended.
        """
        if self._thread.ident is not None:
            self._inbox.put(None)
            self._thread.join(timeout_s)
        self._door.close()
        return not self._thread.is_alive()

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        self._selector.register(self._door.socket, selectors.EVENT_READ, self._accept)
        self._selector.register(self._inbox.fd, selectors.EVENT_READ, self._obey)
        for entry in self._awaited.watched:
            gone = partial(self._party_gone, entry)
            self._selector.register(entry.pidfd or -1, selectors.EVENT_READ, gone)
        while self._running:
            for key, events in self._selector.select(self._timeout_s()):
                try:
                    if isinstance(key.data, Peer):
                        self._peer_event(key.data, key.fd, events)
                    else:
                        key.data()
                except Exception as error:  # noqa: BLE001 - one peer must not end the thread
                    self._complaints.note("side_fault", repr(error), error)
                    if isinstance(key.data, Peer):  # or its next event would be the same again
                        self._hang_up(key.data)
            self._keep_time()
        for peer in list(self._peers.values()):
            self._hang_up(peer)
            os.close(peer.pidfd)
        self._awaited.close()
        self._selector.close()

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def pids(self) -> dict[int, int]:
        """Side connections by process id. Runs in any thread."""
        return dict(self._door.pids)

    def _timeout_s(self) -> float | None:
        due = [self._peers[process].silent_until_ns for process in self._silent]
        if self._door.closed_until_ns:
            due.append(self._door.closed_until_ns)
        if not due:
            return None
        return max(0.0, (min(due) - clock.now_ns()) / clock.NS_PER_S)

    def _keep_time(self) -> None:
        now_ns = clock.now_ns()
        for process in list(self._silent):
            peer = self._peers[process]
            if now_ns >= peer.silent_until_ns:
                self._refuse(peer, RequestError(ErrorCode.DEADLINE_EXCEEDED, "said nothing"))
        if self._door.closed_until_ns and now_ns >= self._door.closed_until_ns:
            self._door.closed_until_ns = 0
            self._selector.register(self._door.socket, selectors.EVENT_READ, self._accept)

    def _accept(self) -> None:
        admitted = self._door.admit(len(self._peers))
        if self._door.closed_until_ns:
            self._selector.unregister(self._door.socket)
        if admitted is None:
            return
        if len(self._silent) >= MAX_SILENT:  # the oldest had the most time to say hello
            oldest = self._peers[min(self._silent)]
            self._refuse(oldest, RequestError(ErrorCode.LIMIT_EXCEEDED, "said nothing"))
        connection, pidfd, pid = admitted
        process = ProcessId(self._next_process)
        self._next_process += 1
        peer = Peer(process, connection, pidfd, pid, clock.now_ns() + self._silence_limit_ns)
        self._peers[process] = peer
        self._silent.add(process)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        self._selector.register(pidfd, selectors.EVENT_READ, peer)

    def _peer_event(self, peer: Peer, fd: int, events: int) -> None:
        if peer.process not in self._peers:  # ended by an earlier event of the same batch
            return
        if fd == peer.pidfd:
            self._exited(peer)
            return
        if events & selectors.EVENT_WRITE:
            self._flush(peer)
        if events & selectors.EVENT_READ and peer.connection is not None:
            self._read(peer, peer.connection)

    def _exited(self, peer: Peer) -> None:
        self._hang_up(peer)
        if peer.joined:
            self._unwatch(peer)
            self._reporter.post(ProcessExited(peer.process))

    def _party_gone(self, entry: AwaitedParty) -> None:
        if entry.pidfd is not None:
            self._selector.unregister(entry.pidfd)
        self._awaited.gone(entry)
        self._reporter.post(PartyGone(entry.party))

    def _unwatch(self, peer: Peer) -> None:
        if peer.party is not None:
            peer.party.end()
        self._selector.unregister(peer.pidfd)
        os.close(peer.pidfd)
        del self._peers[peer.process]
        self._door.left(peer.pid)

    def _hang_up(self, peer: Peer) -> None:
        """Ends the connection; whatever was queued for it is given back first."""
        if peer.connection is None:
            return
        self._selector.unregister(peer.connection)
        peer.connection.close()
        peer.connection = None
        self._silent.discard(peer.process)
        peer.outgoing.clear()
        if peer.joined:
            self._reporter.post(ProcessQuiet(peer.process))
        elif self._running:
            # It never got a token, so nothing of it needs to be watched.
            self._unwatch(peer)

    def _read(self, peer: Peer, connection: socket.socket) -> None:
        try:
            packet, fds, cut = packets.receive(connection)
        except BlockingIOError:
            return
        except OSError:
            self._hang_up(peer)
            return
        if not packet:
            packets.close_all(fds)
            self._hang_up(peer)
            return
        try:
            self._packet(peer, packet, fds, cut)
        except RequestError as error:
            self._refuse(peer, error)
        finally:
            packets.close_all(fds)

    def _packet(self, peer: Peer, packet: bytes, fds: list[int], cut: bool) -> None:
        """Takes one packet; what it needs of ``fds`` it removes from the list."""
        message = side.unpack_from_client(packet)
        if isinstance(message, side.SideHello):
            if fds or cut:
                raise RequestError(ErrorCode.NO_DESCRIPTORS, "a hello carries no descriptor")
            self._join(peer, message)
            return
        if not peer.joined:
            raise RequestError(ErrorCode.UNAUTHENTICATED, "the first packet must be a hello")
        if isinstance(message, side.Drained):
            if fds or cut:
                raise RequestError(ErrorCode.NO_DESCRIPTORS, "this packet carries no descriptor")
            self._drained(peer, message)
            return
        if len(fds) != limits.MAX_FDS_PER_PACKET or cut:
            raise RequestError(
                ErrorCode.NO_DESCRIPTORS,
                f"a pool packet carries exactly one descriptor, this one came with {len(fds)}"
                + (" and was cut" if cut else ""),
            )
        try:
            self._take_pool(peer, message, fds)
        except RequestError as error:
            # A wrong pool is no reason to end the connection: the process goes on uncached.
            self._send(peer, error_packet(error, message.pool), None)

    def _join(self, peer: Peer, hello: side.SideHello) -> None:
        if peer.joined:
            raise RequestError(ErrorCode.DUPLICATE, "this process said hello already")
        if hello.major != VERSION_MAJOR:
            raise RequestError(
                ErrorCode.VERSION_MISMATCH,
                f"protocol {hello.major}.{hello.minor} is not spoken here; {VERSION_MAJOR}.0 to "
                f"{VERSION_MAJOR}.{VERSION_MINOR} are",
            )
        token, instance = Token(os.urandom(16)), InstanceId(hello.instance)
        peer.joined = True
        self._silent.discard(peer.process)
        if self._parties is not None and peer.connection is not None:
            pid, _ = peer_ids(peer.connection)
            peer.party = self._parties.engine(pid, peer.pidfd, instance, token)
        # Reported before it is answered, so the loop knows the token before a HELLO brings it.
        self._reporter.post(ProcessJoined(peer.process, token, instance, max(0, peer.pid)))
        welcome = side.Welcome(
            token=token, epoch=self._epoch, arena=self._arena, endpoint=self._endpoint
        )
        self._send(peer, side.pack(welcome), None)

    def _drained(self, peer: Peer, message: side.Drained) -> None:
        pid, ticks = (peer.party.pid, peer.party.start_ticks) if peer.party else (0, 0)
        epoch, token = Epoch(message.epoch), Token(message.token)
        for entry in self._awaited.drained(epoch, token, pid, ticks):
            self._party_gone(entry)

    def _take_pool(self, peer: Peer, offer: side.PoolOffer, fds: list[int]) -> None:
        if offer.pool in peer.pools:
            raise RequestError(ErrorCode.DUPLICATE, "a pool of this id was passed already")
        if len(peer.pools) >= MAX_POOLS_PER_PEER:
            raise RequestError(
                ErrorCode.LIMIT_EXCEEDED, f"at most {MAX_POOLS_PER_PEER} pools per process"
            )
        packets.check_pool_file(fds[0], offer.size_bytes)
        descriptor = Descriptor(fds.pop())
        peer.pools.add(offer.pool)
        pool = PoolId(offer.pool)
        self._reporter.post(PoolOffered(peer.process, pool, offer.size_bytes, descriptor))
        self._send(peer, side.pack(side.PoolAccepted(pool=offer.pool)), None)

    def _refuse(self, peer: Peer, error: RequestError) -> None:
        self._complaints.note("side_refused", f"process {peer.process} is disconnected: {error}")
        self._send(peer, error_packet(error), None)
        self._hang_up(peer)

    def _obey(self) -> None:
        for command in self._inbox.take_all():
            if command is None:
                self._running = False
                return
            peer = self._peers.get(command.process)
            if isinstance(command, (ForgetPool, Forget)):
                if peer is not None and isinstance(command, ForgetPool):
                    peer.pools.discard(command.pool)
                elif peer is not None and peer.connection is None:
                    self._unwatch(peer)
                continue
            descriptor = command.descriptor if isinstance(command, Tell) else None
            if peer is None or peer.connection is None:
                if descriptor is not None:
                    descriptor.give_back()
                continue
            if isinstance(command, Tell) and not self._may_give(peer, command.fingerprint):
                if descriptor is not None:
                    descriptor.give_back()
                continue
            self._send(peer, command.packet, descriptor)
            if isinstance(command, Drop):
                self._hang_up(peer)

    def _may_give(self, peer: Peer, fingerprint: Fingerprint | None) -> bool:
        """Writes down who is given an extent; without that, the next server would overwrite it."""
        if fingerprint is None or peer.party is None:
            return True
        try:
            peer.party.give(fingerprint)
        except OSError as error:
            text = f"who reads extents cannot be written down: {error.strerror}"
            self._refuse(peer, RequestError(ErrorCode.NO_ROOM, text))
            return False
        return True

    def _send(self, peer: Peer, packet: bytes, descriptor: Descriptor | None) -> None:
        """Queues and sends; a peer that reads nothing is cut off before its queue grows long."""
        peer.outgoing.put(packet, descriptor)
        self._flush(peer)
        if peer.outgoing.is_too_long:
            text = f"process {peer.process} does not read: disconnected"
            self._complaints.note("side_deaf", text)
            self._hang_up(peer)

    def _flush(self, peer: Peer) -> None:
        if peer.connection is None:
            return
        try:
            peer.outgoing.flush(peer.connection)
        except OSError:
            self._hang_up(peer)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.outgoing else 0)
        self._selector.modify(peer.connection, wanted, peer)
