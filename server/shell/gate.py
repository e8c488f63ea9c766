"""Lets connections to the endpoint in no faster than those who have too many are cut.

Purpose: libzmq's ipc listener aborts the process when it accepts while descriptors have run out,
and one process can connect thousands of times a second. When a sixteenth of what was left has gone
since somebody looked whose connections they are, the listener is exchanged for one to which nobody
can connect; whoever comes waits in its queue until the surplus is cut. Must not know: messages,
who is cut. Runs in: its own thread, since the guard may wait long for memory to come back.
"""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Callable

from protocol.endpoint import Endpoint
from server.shell import connections
from server.shell.complaints import Complaints

INTERVAL_S = 0.01
"""libzmq accepts some fifty connections in that time."""

MAX_BURST = 512
"""Descriptors by which this process may grow before somebody looks whose they are."""

SHARE = 16
"""That, as a part of the descriptors left: on a busy machine this thread may wait for a core while
libzmq goes on accepting, and what remains must last for as long as that."""

SHUT_LIMIT_S = 0.5
"""Longest time in which nobody is let in."""


class Gate:
    """The endpoint's listener, open or shut.

    Args:
        endpoint: that this process listens on.
        thin_out: cuts connections of those who have too many; returns how many.
        complaints: takes faults.

    Attributes:
        num_shut: how often it was shut.
    """

    def __init__(
        self, endpoint: Endpoint, thin_out: Callable[[], int], complaints: Complaints
    ) -> None:
        self.num_shut = 0
        self._endpoint = endpoint
        self._thin_out = thin_out
        self._complaints = complaints
        self._limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._listener = -1
        self._kept = -1
        self._decoy: socket.socket | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvkeep-gate", daemon=True)

    def start(self) -> None:
        """Finds the listener, which is bound, and starts the thread."""
        found = connections.find_listener(self._endpoint)
        if found is not None:
            self._listener = found
            # Both from the start: when they are needed there may be no descriptor for them. The
            # listener itself stays open by this one, so that ZMQ's poller goes on knowing it.
            self._kept = os.dup(found)
            self._decoy = socket.socket(socket.AF_UNIX)
            self._decoy.bind("")  # a name that the kernel makes up; what connects is never let in
            self._decoy.setblocking(False)  # or ZMQ's thread would wait in accept
            self._decoy.listen(0)
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def stop(self, timeout_s: float) -> bool:
        """Opens the gate for good and ends the thread; before ZMQ closes its listener.

        Args:
            timeout_s: longest wait.

        Returns:
            Whether the thread ended.
        """
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        if self._kept >= 0:
            os.close(self._kept)
            self._kept = self._listener = -1
        if self._decoy is not None:
            self._decoy.close()
        return True

    def _run(self) -> None:
        base = connections.count_descriptors()
        while not self._over.wait(INTERVAL_S):
            try:
                base = self.look(base)
            except Exception as error:  # noqa: BLE001 - the next look may succeed
                self._complaints.note("guard_fault", repr(error), error)

    def look(self, base: int) -> int:
        """One look at how many descriptors there are.

        Args:
            base: how many there were when it was last known whose they are.

        Returns:
            What counts as that from now on.
        """
        count = connections.count_descriptors()
        if count - base <= max(1, min(MAX_BURST, (self._limit - base) // SHARE)):
            return min(base, count)
        self._shut()
        try:
            self._settle(count - self._thin_out())
        finally:
            self._open()
        return connections.count_descriptors()

    def _settle(self, target: int) -> None:
        """Waits, not for long, until ZMQ has closed what was cut."""
        for _ in range(int(SHUT_LIMIT_S / INTERVAL_S)):
            if connections.count_descriptors() <= target or self._over.wait(INTERVAL_S):
                return

    def _shut(self) -> None:
        self.num_shut += 1
        if self._decoy is not None:
            os.dup2(self._decoy.fileno(), self._listener, inheritable=False)

    def _open(self) -> None:
        if self._kept >= 0:
            os.dup2(self._kept, self._listener, inheritable=False)
