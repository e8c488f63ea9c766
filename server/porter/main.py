"""The porter of one tier: ``python -m server.porter.main FD PARENT_PID``.

Purpose: obeys the packets of ``server.porter.wire`` until their socket ends. The first one says
which tier; it is opened, and READY says so or why not. Extents are mapped by the main thread; what
touches the tier otherwise runs in worker threads, one of which answers questions alone. Dies with
the server, so that nothing of an old server writes into an arena that the next one adopts. Must not
know: the index, peers, engines of TensorRT-LLM; what a tier is made of. Runs in: its own process.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections import deque

from server.copier.channel import begin
from server.copier.wake import Wake
from server.porter.channel import receive, send
from server.porter.engines import open_tier
from server.porter.jobs import Performer, told
from server.porter.memory import Memory
from server.porter.notes import Notes, Warned
from server.porter.turns import Job, Turns
from server.porter.vault import Vault, vault_of
from server.porter.wire import Answer, Command, Kind
from server.tiers.interface import Tier, TierError
from server.tierspec import TierSpec, from_json

_log = logging.getLogger("kvkeep.porter")

MAX_JOBS = 1024
"""Jobs taken in; more wait in the socket, and in the server, which bounds them."""

PROGRESS_S = 1.0
END_S = 2.0
"""For jobs that are under way when the server closes the socket; it waits a little longer."""

NICENESS = 10
"""When cores are few, a tier's hashing and copying come after the loop, the copiers and engines."""


class Porter:
    """Obeys commands.

    Args:
        channel: to the server.
        tier: opened.
        concurrency: threads that move bytes; puts leave one of them to gets.
        bytes_s: most bytes a second each way, 0 for no bound.
        notes: what is to be logged.
        warned: what was told of the tier's health so far.
        vault: what becomes of values below.
    """

    def __init__(
        self,
        channel: socket.socket,
        tier: Tier,
        concurrency: int,
        bytes_s: int,
        notes: Notes,
        warned: Warned,
        vault: Vault,
    ) -> None:
        self._channel = channel
        self._notes = notes
        self._tier = tier
        self._memory = Memory(tier)
        self._stopping = threading.Event()
        self._wake = Wake()
        self._poller = select.poll()
        self._poller.register(self._wake, select.POLLIN)
        self._turns = Turns(max(1, concurrency - 1))
        self._performer = Performer(
            tier, self._memory, bytes_s, self._stopping, self._note_move, warned, vault
        )
        self._ended: deque[tuple[Job, Answer]] = deque()
        self._num_jobs = 0
        self._has_moved = False
        self._told_s = time.monotonic()
        self._noted_s = 0.0
        self._threads = [
            threading.Thread(
                target=self._work, args=(number == 0,), name=f"kvkeep-porter-{number}", daemon=True
            )
            for number in range(1 + concurrency)
        ]

    def run(self) -> None:
        """Serves until the server closes the socket, then waits a while for what is under way."""
        self._notes.wake = self._wake.set
        self._wake.set()  # there may be notes from before
        for thread in self._threads:
            thread.start()
        try:
            while self._turn():
                pass
        finally:
            self._stopping.set()
            self._turns.close()
            end_s = time.monotonic() + END_S
            for thread in self._threads:
                thread.join(max(0.0, end_s - time.monotonic()))

    def _turn(self) -> bool:
        is_idle = self._memory.is_cold and not self._num_jobs
        # Full or not, the server's end of the socket may close.
        wanted = select.POLLRDHUP | (select.POLLIN if self._num_jobs < MAX_JOBS else 0)
        self._poller.register(self._channel, wanted)
        has_more = self._num_jobs or self._notes
        patience_s = 0 if is_idle else PROGRESS_S if has_more else None
        ready = dict(self._poller.poll(None if patience_s is None else 1000 * patience_s))
        found = ready.get(self._channel.fileno(), 0)
        if self._wake.fileno() in ready:
            self._wake.clear()
        if found & wanted & select.POLLIN:
            received = receive(self._channel)
            if received is None:
                return False
            self._obey(*received)
        elif found:
            return False
        elif is_idle and not ready:
            self._memory.populate_step()
        while self._ended:
            self._end(*self._ended.popleft())
        self._tell_progress()
        if self._performer.is_caught():
            self._give_up()
            return False
        return True

    def _obey(self, command: Command, fd: int) -> None:
        try:
            if command.kind == Kind.MAP_EXTENT:
                self._memory.map_extent(command, fd)
                self._answer(Answer(command.kind, command.number))
            elif command.kind == Kind.UNMAP_EXTENT:
                self._memory.unmap_extent(command.number)
                self._unmap()
            elif command.kind in (Kind.READY, Kind.CONFIGURE, Kind.PROGRESS):
                raise ValueError(f"{command.kind.name} has no place here")
            else:
                if command.kind == Kind.QUOTAS:
                    self._performer.set_quotas(command)
                job = Job(command)
                if command.parts is not None:
                    job.held = self._memory.hold(command.parts)
                self._num_jobs += 1
                self._turns.add(job)
        except Exception as error:  # noqa: BLE001 - a tier that cannot use an extent
            self._answer(Answer(command.kind, command.number, error=told(error)))
        finally:
            if fd >= 0:
                os.close(fd)

    def _unmap(self) -> None:
        for number in self._memory.unmapped():
            self._answer(Answer(Kind.UNMAP_EXTENT, number))

    def _end(self, job: Job, answer: Answer) -> None:
        self._num_jobs -= 1
        self._memory.release(job.held)
        self._answer(answer)
        self._unmap()

    def _answer(self, answer: Answer) -> None:
        self._has_moved = False
        self._told_s = time.monotonic()
        send(self._channel, answer)

    def _tell_progress(self) -> None:
        now_s = time.monotonic()
        if self._notes and now_s - self._noted_s >= PROGRESS_S:
            self._noted_s = now_s
            send(self._channel, Answer(Kind.PROGRESS, 0, error=self._notes.take()))
        if self._has_moved and now_s - self._told_s >= PROGRESS_S:
            self._answer(Answer(Kind.PROGRESS, 0))

    def _give_up(self) -> None:
        """A call is caught: only the end of this process takes it back.

        The server is told by the end of the socket, not by that of the process, which the kernel
        may hold back just as it holds the call.
        """
        _log.error("a call of the tier does not end: this porter does")
        while self._notes:
            send(self._channel, Answer(Kind.PROGRESS, 0, error=self._notes.take()))
        self._channel.shutdown(socket.SHUT_RDWR)

    # --- worker threads -------------------------------------------------------------------------

    def _note_move(self) -> None:
        self._has_moved = True

    def _work(self, asks: bool) -> None:
        while self._work_once(asks):
            pass

    def _work_once(self, asks: bool) -> bool:
        """Performs one job, in a frame of its own: a waiting thread names nothing of it."""
        job = self._turns.take(asks)
        if job is None:
            return False
        answer = self._performer.perform(job.command)
        self._turns.ended(job)
        self._ended.append((job, answer))
        self._wake.set()
        return True


def open_first(channel: socket.socket, warned: Warned) -> tuple[TierSpec, Tier, Vault] | None:
    """Takes CONFIGURE, opens the tier and says READY, or why not.

    Args:
        channel: to the server.
        warned: told what the tier says of itself.

    Returns:
        What was opened, or None.
    """
    received = receive(channel)
    if received is None:
        return None
    command, pid = received[0], os.getpid()
    try:
        if command.kind != Kind.CONFIGURE:
            raise TierError(f"{command.kind.name} came before CONFIGURE")
        spec = from_json(command.text)
        tier = open_tier(spec)
        vault = vault_of(tier, spec.keys)
        health = tier.health()
    except TierError as error:
        send(channel, Answer(Kind.READY, pid, error=" ".join(str(error).split())))
        return None
    except Exception as error:  # noqa: BLE001 - bindings raise what they like
        send(channel, Answer(Kind.READY, pid, error=f"it cannot be opened: {told(error)}"))
        return None
    room = (max(0, health.used_bytes), max(0, health.capacity_bytes))
    send(channel, Answer(Kind.READY, pid, used_bytes=room[0], capacity_bytes=room[1]))
    warned.tell(health.warning if health.ok else "")
    return spec, tier, vault


def serve(channel: socket.socket, notes: Notes) -> None:
    """Opens a tier and serves it to the end.

    Args:
        channel: to the server.
        notes: what is to be logged.
    """
    warned = Warned()
    opened = open_first(channel, warned)
    if opened is None:
        return
    spec, tier, vault = opened
    try:
        Porter(channel, tier, spec.concurrency, spec.bandwidth_bytes_s, notes, warned, vault).run()
    finally:
        try:
            tier.close()
        except Exception as error:  # noqa: BLE001 - the process ends in any case
            _log.warning("the tier could not be closed: %s", told(error))


def main(arguments: list[str]) -> None:
    """Runs the porter.

    Args:
        arguments: number of the inherited socket, process id of the parent.
    """
    fd, parent_pid = int(arguments[0]), int(arguments[1])
    begin(parent_pid, "porter")
    # A service manager may send it to all of a server's processes; the server ends this one itself,
    # after what it is at.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(NICENESS)
    notes = Notes()
    logging.basicConfig(handlers=[notes])
    with socket.socket(fileno=fd) as channel:
        try:
            serve(channel, notes)
        except (BrokenPipeError, ConnectionResetError):
            pass
    # Threads that a tier's library or a call that hangs left behind must not hold this up.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
