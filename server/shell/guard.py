"""Keeps what ZMQ holds for peers within bounds that ZMQ itself does not know.

Purpose: ZMQ bounds each frame and each queue of whole messages, but neither how many frames one
message may have, nor what all queues hold together, nor how many connect. A peer that never ends a
message would have it buffer without end. Here memory and connections are looked at ten times a
second; whose connections hold too much are cut, and whoever did no harm connects again by itself.
Must not know: messages, the core. Runs in: its own thread.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Mapping

from protocol.endpoint import Endpoint
from server.shell import clock, connections
from server.shell.complaints import Complaints
from server.shell.connections import Connection
from server.shell.gate import Gate
from server.shell.heap import Heap

INTERVAL_S = 0.1

SLACK_BYTES = 128 << 20
"""Private memory beyond what is accounted for, at which connections are cut. One LOOKUP of the most
blocks is 320 KiB, so this is room for four hundred at once."""

MAX_STRANGERS = 64
"""Connections of processes that have no side connection, and so no token: they are about to ask for
one at best. Over tcp, where the process is not known, those that never said anything."""

MAX_PER_PROCESS = 64
"""Connections of one process; its side connections may say HELLO on 8 each."""

MAX_CONNECTIONS = 4096
"""All together, or a quarter of the descriptors this process may open."""

PATIENT_LOOKS = 10
"""Looks in which cutting likely connections was of no use, before all others are cut, too."""

_SETTLE_S = 0.002
_SETTLE_LIMIT_S = 1.0
_MIB = 1 << 20


class Guard:
    """The watch.

    Args:
        endpoint: whose connections.
        known: side connections by process id.
        accounted_bytes: private memory that the server itself has a use for, at most, beyond what
            it had when it started.
        complaints: counts what is cut.
        slack_bytes: see ``SLACK_BYTES``.
        max_strangers: see ``MAX_STRANGERS``.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        known: Callable[[], Mapping[int, int]],
        accounted_bytes: Callable[[], int],
        complaints: Complaints,
        slack_bytes: int = SLACK_BYTES,
        max_strangers: int = MAX_STRANGERS,
    ) -> None:
        self._endpoint = endpoint
        self._known = known
        self._accounted_bytes = accounted_bytes
        self._complaints = complaints
        self._slack_bytes = slack_bytes
        self._max_strangers = max_strangers
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._max_connections = min(MAX_CONNECTIONS, max(64, limit // 4))
        self._heap = Heap()
        self._base_bytes = self._heap.resident_bytes()
        self._suspects: set[int] = set()
        self._num_vain = 0
        self._seen = connections.count_descriptors()
        self._is_unsure = False
        self._over = threading.Event()
        self._thinning = threading.Lock()
        self._gate = Gate(endpoint, self._thin_out, complaints)
        self._thread = threading.Thread(target=self._run, name="kvkeep-guard", daemon=True)

    def start(self) -> None:
        """Starts the thread, and the gate's; the endpoint is bound."""
        self._gate.start()
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether the thread and the gate's run."""
        return self._thread.is_alive() and self._gate.is_alive()

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread.

        Args:
            timeout_s: longest wait.

        Returns:
            Whether both ended.
        """
        self._over.set()
        is_open = self._gate.stop(timeout_s)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return is_open and not self._thread.is_alive()

    def _run(self) -> None:
        while not self._over.wait(INTERVAL_S):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - the next look may succeed
                self._complaints.note("guard_fault", repr(error), error)

    def limit_bytes(self) -> int:
        """Private memory beyond which connections are cut."""
        return self._base_bytes + self._accounted_bytes() + self._slack_bytes

    def look(self) -> None:
        """One look at memory and connections."""
        if self._heap.resident_bytes() > self.limit_bytes():
            self._relieve()
        count = connections.count_descriptors()
        # Extents and side connections take descriptors, too, so only growth is a reason to look.
        if self._is_unsure or count > self._seen + self._max_strangers // 4:
            num_cut = self._thin_out()
            after = connections.count_descriptors()
            # What is cut, here or by the gate, is closed a moment later. How many descriptors there
            # are without any surplus is known only once none come or go around a look.
            self._is_unsure = num_cut > 0 or after != count
            self._seen = min(count, after) - num_cut
        elif count < self._seen:
            self._seen = count

    # --- memory ---------------------------------------------------------------------------------

    def _relieve(self) -> None:
        """Cuts likely connections; all others one by one if that was of no use for a while."""
        self._heap.trim()
        over_bytes = self._heap.resident_bytes() - self.limit_bytes()
        if over_bytes <= 0:
            self._num_vain = 0
            return  # it was free already
        likely, others = self._by_suspicion()
        freed_bytes = self._cut_until(likely, over_bytes)
        is_last_resort = not likely or self._num_vain >= PATIENT_LOOKS
        if freed_bytes < over_bytes and is_last_resort:
            freed_bytes += self._cut_until(others, over_bytes - freed_bytes)
        self._heap.trim()
        helped = freed_bytes >= min(over_bytes, self._slack_bytes // 8)
        self._num_vain = 0 if helped else self._num_vain + 1
        if not helped and not likely:
            # Not theirs, then. Cutting all connections again and again would help nobody.
            self._base_bytes += over_bytes + self._slack_bytes // 2
            text = f"{over_bytes // _MIB} MiB more than expected are in use, by no connection"
            self._complaints.note("memory_unexplained", text)
        # Whole messages that are queued are not freed by a cut, but as the loop takes them.
        self._over.wait(INTERVAL_S)

    def _by_suspicion(self) -> tuple[list[Connection], list[Connection]]:
        """Who did it before, has no side connection, or has more to say than is read; the rest."""
        known = self._known()
        if len(self._suspects) > MAX_CONNECTIONS:
            self._suspects.clear()
        likely: list[Connection] = []
        others: list[Connection] = []
        for one in connections.find(self._endpoint):
            is_likely = one.pid in self._suspects or one.pid not in known or one.waiting_bytes > 0
            (likely if is_likely else others).append(one)
        likely.sort(key=lambda one: (one.pid not in self._suspects, -one.waiting_bytes))
        return likely, others

    def _cut_until(self, candidates: list[Connection], over_bytes: int) -> int:
        """Cuts connections in order until enough is freed; returns how much was."""
        num_cut = freed_bytes = 0
        for connection in candidates:
            mine_bytes = self._cut(connection)
            num_cut += 1
            freed_bytes += mine_bytes
            if mine_bytes > self._slack_bytes // 8 and connection.pid:
                self._suspects.add(connection.pid)
                text = f"process {connection.pid} made ZMQ hold {mine_bytes // _MIB} MiB"
                self._complaints.note("hoarder_cut", text)
            if freed_bytes >= over_bytes:
                break
        if num_cut:
            text = f"memory was {over_bytes // _MIB} MiB over its bound: {num_cut} connections cut"
            self._complaints.note("memory_bound", text)
        return freed_bytes

    def _cut(self, connection: Connection) -> int:
        """Cuts a connection; returns the bytes that ZMQ freed with it."""
        before_bytes = self._heap.in_use_bytes()
        connections.cut(connection)
        deadline_ns = clock.now_ns() + int(_SETTLE_LIMIT_S * clock.NS_PER_S)
        # ZMQ drops the unfinished message before it closes the descriptor.
        while connections.is_open(connection) and clock.now_ns() < deadline_ns:
            if self._over.wait(_SETTLE_S):
                break
        return max(0, before_bytes - self._heap.in_use_bytes())

    # --- connections ----------------------------------------------------------------------------

    def _thin_out(self) -> int:
        """Cuts connections of those who have too many, oldest first; returns how many."""
        with self._thinning:
            return self._cut_surplus()

    def _cut_surplus(self) -> int:
        known, found = self._known(), connections.find(self._endpoint)
        strangers = [one for one in found if (one.pid not in known if one.pid else one.is_silent)]
        surplus = strangers[: max(0, len(strangers) - self._max_strangers)]
        by_process: dict[int, list[Connection]] = {}
        for one in found:
            if one.pid in known and one.pid:
                by_process.setdefault(one.pid, []).append(one)
        for mine in by_process.values():
            surplus += mine[: max(0, len(mine) - MAX_PER_PROCESS)]
        gone = {one.fd for one in surplus}
        left = [one for one in found if one.fd not in gone]
        surplus += left[: max(0, len(left) - self._max_connections)]
        for one in surplus:
            connections.cut(one)
        if surplus:
            text = f"{len(found)} connections to the endpoint: {len(surplus)} cut"
            self._complaints.note("connections_bound", text)
        return len(surplus)
