"""The one thread that decides: a blocking ROUTER, the core, and its effects.

Purpose: take one message at a time, give the core's long work a slice in between, never block
but in ``recv``, never die of a message. Must not know: what messages mean (the core does).
Runs in: the main thread.

libzmq bounds each frame (``MAXMSGSIZE``) but not how many frames one message may have. Messages
that never end are the guard's business (``server.shell.guard``); one that does end is thrown away
here, some frames a turn, and answered with an error.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterable, Mapping

import zmq

from protocol import frames, limits
from protocol.endpoint import Endpoint
from protocol.errors import ConfigError, ErrorCode, KvkeepError, RequestError
from server.core.dispatch import Core
from server.core.effects import PeerId, SendReply
from server.core.slow import SLOW_NS
from server.core.told import Told, request_of
from server.shell import clock
from server.shell.actions import Actions
from server.shell.bursts import Bursts
from server.shell.complaints import Complaints
from server.shell.latency import Latency
from server.shell.reports import INTERNAL_ENDPOINT, DrainAsked, ReportQueue
from server.shell.teller import Teller, about

SEND_QUEUE_FRAMES = 256
"""Replies queued for one peer before it counts as gone; at most 64 can be owed to it."""

RECEIVE_QUEUE_FRAMES = 8
"""Frames read ahead for one connection, 8 MiB at worst; more wait in its socket."""

_YOUNG_OBJECTS = 1000
"""Objects that are collected as soon as there is nothing else to do, in less than a millisecond."""

_IDLE_MS = 1000
_HANDSHAKE_MS = 10_000
_SURPLUS_FRAMES = 256
"""Frames of an overlong message that are thrown away in one turn, about 100 µs."""

_MAX_REPORTS_PER_TURN = 64
_OWN_ID_BYTES = 5
_LIFE_CHECK_NS = clock.NS_PER_S


class ThreadDiedError(Exception):
    """A thread that the server cannot do without has ended."""


def make_socket(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """The ROUTER with its bounds, bound to the internal endpoint only.

    Args:
        context: of this process.

    Returns:
        The socket; reporters can connect now.
    """
    # ZMQ counts the routing ids that it gives out up from the C library's first random number,
    # which is the same in each process. Who names itself by the id that is given out next has
    # libzmq abort this process; who names itself by one that was given out is taken for its owner.
    ctypes.CDLL(None).srand(ctypes.c_uint(int.from_bytes(os.urandom(4), "little")))
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    # Nobody serves ZAP here, so it admits everybody; but with a domain libzmq refuses peers that
    # speak ZMTP 1 or 2, each of which would cost some 400 bytes that never come back.
    router.setsockopt(zmq.ZAP_DOMAIN, b"kvkeep")
    # Else a connection that names itself as another does is never read, not even its end: 11 KiB
    # that never come back. All ids that matter are ones that nobody can know.
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)
    router.setsockopt(zmq.MAXMSGSIZE, limits.MAX_FRAME_BYTES)
    router.setsockopt(zmq.SNDHWM, SEND_QUEUE_FRAMES)
    router.setsockopt(zmq.RCVHWM, RECEIVE_QUEUE_FRAMES)
    router.setsockopt(zmq.HEARTBEAT_IVL, 0)
    router.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)  # who connects and says nothing
    router.bind(INTERNAL_ENDPOINT)
    return router


class Loop:
    """Socket, core and actions in one thread.

    Args:
        router: from ``make_socket``.
        core: decides.
        queue: what the shell's threads report.
        complaints: counts what goes wrong.

    Attributes:
        actions: set before ``run``.
        threads: by name, whether each still runs; asked once a second.
        each_second: called about as often, between two turns.
        draining_until_ns: when to give up waiting for what is still owed, or None.
        bursts: CPU of each piece: a message, a slice of long work, a report, with all that follows.
        latency: time on the clock from each request to its answer.
        teller: says what there is to say of replies that refuse, or are traced.
    """

    actions: Actions
    threads: Mapping[str, Callable[[], bool]]

    def __init__(
        self,
        router: zmq.Socket[bytes],
        core: Core,
        queue: ReportQueue,
        complaints: Complaints,
        drain_limit_s: float = 5.0,
    ) -> None:
        self._router = router
        self._core = core
        self._queue = queue
        self._complaints = complaints
        self._drain_limit_ns = int(drain_limit_s * clock.NS_PER_S)
        self._own_ids: set[bytes] = set()
        self._timeout_ms = -1
        self._next_life_check_ns = 0
        self._surplus: tuple[bytes, int] | None = None
        self.threads = {}
        self.each_second: Callable[[], None] = lambda: None
        self.bursts = Bursts()
        self.latency = Latency()
        self.teller = Teller(complaints)
        self.draining_until_ns: int | None = None

    def bind(self, endpoint: Endpoint, own_ids: Iterable[bytes]) -> None:
        """Binds the public endpoint, after every reporter was heard.

        Hearing the threads before the public endpoint exists shows that they run; that nobody
        else goes by their ids is due to those being random.

        Args:
            endpoint: where to listen.
            own_ids: of the reporters, each of which has posted ``Here``.

        Raises:
            ConfigError: ENDPOINT_IN_USE, or INVALID_CONFIG when it cannot be bound.
        """
        awaited = set(own_ids)
        self._own_ids |= awaited
        while awaited:
            if not self._router.poll(_HANDSHAKE_MS):
                raise ConfigError(ErrorCode.INTERNAL, f"threads did not start: {awaited}")
            awaited.discard(self._router.recv_multipart()[0])
        old_mask = os.umask(0o177)  # an ipc socket for this user alone
        try:
            if endpoint.host.startswith("["):
                self._router.setsockopt(zmq.IPV6, 1)
            self._router.bind(endpoint.url)
        except zmq.ZMQError as error:
            in_use = error.errno == zmq.EADDRINUSE
            code = ErrorCode.ENDPOINT_IN_USE if in_use else ErrorCode.INVALID_CONFIG
            raise ConfigError(code, f"endpoint {endpoint.url}: {error.strerror}") from error
        finally:
            os.umask(old_mask)

    def admit(self, own_id: bytes) -> None:
        """Knows the wake-up frames of one more reporter of this process."""
        self._own_ids.add(own_id)

    def run(self) -> None:
        """Serves until drained after DrainAsked.

        Raises:
            ThreadDiedError: a server without it would look alive and serve nobody.
        """
        self.bursts.begin()
        while not self._is_over():
            self._turn()
            self._check_threads()

    def _check_threads(self) -> None:
        now_ns = clock.now_ns()
        if now_ns < self._next_life_check_ns:
            return
        self._next_life_check_ns = now_ns + _LIFE_CHECK_NS
        for name, is_alive in self.threads.items():
            if not is_alive():
                raise ThreadDiedError(f"the thread {name} ended on its own")
        self.each_second()

    def _is_over(self) -> bool:
        if self.draining_until_ns is None:
            return False
        return self._core.drained() or clock.now_ns() >= self.draining_until_ns

    def _turn(self) -> None:
        """One slice of everything: reports, timers, long work, one message."""
        more = False
        self._take_reports(_MAX_REPORTS_PER_TURN)
        now_ns = clock.now_ns()
        try:
            self._keep_time(now_ns)
            more = self._core.work(now_ns)
        except Exception as error:  # noqa: BLE001 - the loop outlives any fault of ours
            self._complaints.note("loop_fault", repr(error), error)
        self._act()
        self.bursts.end()
        waits = not (more or self._queue or self._surplus)
        message = self._receive(self._wait_ms() if waits else 0)
        self.bursts.begin()
        if message is not None:
            # Whatever a thread reported before its peer sent this message counts first.
            self._take_reports(len(self._queue))
            self._handle(message)
            self._act()
            self.bursts.end()

    def _take_reports(self, limit: int) -> None:
        """Applies reports one by one, each with all that follows from it.

        What was decided for a copier must reach that copier: were effects kept until after a
        later CopierLost and CopierReady, its successor would be told to do them.
        """
        for _ in range(min(limit, len(self._queue))):
            report, now_ns = self._queue.popleft(), clock.now_ns()
            if isinstance(report, DrainAsked) and self.draining_until_ns is None:
                self.draining_until_ns = now_ns + self._drain_limit_ns
            try:
                self.actions.apply(report, now_ns)
            except Exception as error:  # noqa: BLE001 - the reports behind it still count
                self._complaints.note("loop_fault", repr(error), error)
            self._act()
            self.bursts.end()

    def holds(self) -> bool:
        """Whether a chunk is in the arena, or a part of one; after ``run``. Raises nothing."""
        try:
            return self._core.stats()["arena_held_bytes"] > 0
        except Exception as error:  # noqa: BLE001 - the end goes on, and what there is stays
            self._complaints.note("loop_fault", repr(error), error)
            return True

    def _keep_time(self, now_ns: int) -> None:
        timer_ns = self._core.next_timer_ns()
        if timer_ns is not None and timer_ns <= now_ns:
            self._core.tick(now_ns)
        self.actions.check(now_ns)

    def _wait_ms(self) -> int:
        due = [self._core.next_timer_ns(), self.actions.deadline_ns(), self.draining_until_ns]
        soonest = min((ns for ns in due if ns is not None), default=None)
        if soonest is None:
            return _IDLE_MS
        left_ms = -(-(soonest - clock.now_ns()) // clock.NS_PER_MS)
        return max(0, min(_IDLE_MS, left_ms))

    def _receive(self, wait_ms: int) -> list[bytes] | None:
        """The next message: routing id and frame; None without one, or while one is thrown away."""
        if self._surplus is not None:
            self._throw_away(*self._surplus)
            return None
        peer = self._first_frame(wait_ms)
        if peer is None:
            return None
        message, router = [peer], self._router
        while router.getsockopt(zmq.RCVMORE):
            if len(message) == 2:
                self._throw_away(peer, 1)
                return None
            message.append(router.recv(zmq.NOBLOCK))
        return message

    def _first_frame(self, wait_ms: int) -> bytes | None:
        try:
            return self._router.recv(zmq.NOBLOCK)
        except zmq.Again:
            if wait_ms == 0:
                return None
        if gc.get_count()[0] > _YOUNG_OBJECTS:
            gc.collect(0)  # nobody waits now
        if wait_ms != self._timeout_ms:
            self._router.rcvtimeo = self._timeout_ms = wait_ms
        try:
            return self._router.recv()
        except zmq.Again:
            return None

    def _throw_away(self, peer: bytes, count: int) -> None:
        """Reads on in a message of several frames; answers it once its end has come.

        Args:
            peer: who sent it.
            count: frames read so far, the routing id left out.
        """
        router, stop = self._router, count + _SURPLUS_FRAMES
        while router.getsockopt(zmq.RCVMORE):
            if count == stop:
                self._surplus = (peer, count)
                return
            router.recv(zmq.NOBLOCK)
            count += 1
        self._surplus = None
        if _is_served(peer):
            error = RequestError(
                ErrorCode.MALFORMED, f"a message is one frame, this one has {count}"
            )
            self._complaints.note("frames", error.message)
            self._send(SendReply(PeerId(peer), frames.pack_error(0, 0, error)))

    def _handle(self, message: list[bytes]) -> None:
        peer = message[0]
        if peer in self._own_ids:
            return  # a wake-up; the queue is emptied in any case
        if not _is_served(peer):
            self._complaints.note("chosen_id", "a peer chose its own routing id; not served")
            return
        if len(message) != 2:  # nothing but the routing id
            self._throw_away(peer, 0)
            return
        try:
            self._core.request(PeerId(peer), message[1], clock.now_ns())
        except Exception as error:  # noqa: BLE001 - one message must not end the loop
            told = _read(message[1])
            self._complaints.note("loop_fault", repr(error), error, about(told))
            self._answer_internal(PeerId(peer), told)

    def _answer_internal(self, peer: PeerId, told: Told) -> None:
        error = KvkeepError(ErrorCode.INTERNAL, "the server failed; its log says why")
        self._send(SendReply(peer, frames.pack_error(told.op, told.seq, error)))

    def _act(self) -> None:
        """Performs effects, and those that follow from them."""
        while effects := self._core.take_effects():
            for effect in effects:
                if isinstance(effect, SendReply):
                    self._send(effect)
                    continue
                try:
                    self.actions.perform(effect)
                except Exception as error:  # noqa: BLE001 - the other effects still count
                    # Its name alone: some have thousands of keys, which are for no log.
                    text = f"{type(effect).__name__}: {error!r}"
                    self._complaints.note("effect_fault", text, error)
        for fault in self._core.take_faults():
            self._complaints.note("core_fault", fault.rstrip().rpartition("\n")[2], traceback=fault)

    def _send(self, reply: SendReply) -> None:
        if reply.begun_ns:
            spent_ns = clock.now_ns() - reply.begun_ns
            self.latency.note(reply.op, spent_ns)
            if spent_ns > SLOW_NS:
                self._note_slow(reply, spent_ns)
        told = reply.told
        if told is not None:
            self.teller.tell(reply, told, clock.now_ns())
        try:
            self._router.send_multipart([reply.peer, reply.frame], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            self._forget_peer(reply, error)

    def _forget_peer(self, reply: SendReply, error: zmq.ZMQError) -> None:
        """A reply could not be sent: says whose it was, and whether anything is wrong with that.

        A client closes a connection on which it was not answered in time, and goes on with a fresh
        one; nothing is wrong here then, and nobody misses the answer.
        """
        is_closed = error.errno == zmq.EHOSTUNREACH
        dropped = self._core.peer_dropped(reply.peer, is_closed)
        told = reply.told if reply.told is not None else Told(reply.op, reply.seq)
        of = about(told)._replace(engine=dropped.instance.hex() if dropped.instance else "")
        if is_closed:
            since = clock.now_ns() - reply.begun_ns if reply.begun_ns else 0
            after = f" {since // clock.NS_PER_MS} ms after it asked:" if since else ":"
            text = (
                f"{dropped.name} had closed the connection{after} its time for the answer was "
                "over, or it ended"
            )
            self._complaints.tell("reply_unheard", "", text, of)
            return
        why = "does not read its replies" if error.errno == zmq.EAGAIN else error.strerror
        text = f"{dropped.name} {why}: this connection of it is forgotten"
        self._complaints.note("peer_dropped", text, about=of)

    def _note_slow(self, reply: SendReply, spent_ns: int) -> None:
        try:
            self._core.took_long(reply, spent_ns)
        except Exception as error:  # noqa: BLE001 - what STATUS tells keeps no reply back
            self._complaints.note("loop_fault", repr(error), error)


def _read(frame: bytes) -> Told:
    """As much of a frame as can be read."""
    try:
        envelope = frames.unpack_request(frame)
    except KvkeepError:
        return Told(0, 0)
    try:
        request = request_of(frames.request_body(envelope))
    except KvkeepError:
        request = -1
    return Told(envelope.op, envelope.seq, request)


def _is_served(peer: bytes) -> bool:
    """Whether a routing id is one that ZMQ made up, so that no peer can take another's."""
    return len(peer) == _OWN_ID_BYTES and peer[0] == 0
