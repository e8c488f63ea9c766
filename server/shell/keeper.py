"""Keeps one child process running: starts it, reads its answers, notices its death, again.

Purpose: whatever happens to a child, the loop learns it as a report and goes on. One that does not
even die of SIGKILL (the kernel waits for a device or a page) is reported stuck, another is started
beside it, and its end is reported when it comes. Must not know: what the child does, which jobs are
outstanding; a ``Role`` says what to run and how its packets become reports. Runs in: its own
thread, which must live as long as the children, since the kernel ends a child with the thread that
started it.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import subprocess
import threading
from dataclasses import dataclass
from typing import Literal, Protocol

from server.shell import clock, parties
from server.shell.parties import Parties
from server.shell.reports import Report, Reporter

_log = logging.getLogger("kvkeep.server")

READY_TIMEOUT_S = 30.0
END_TIMEOUT_S = 2.0
"""For a child whose socket was closed: it ends after the job it is at, some milliseconds. Also
how long one that got SIGKILL may take to end before it counts as stuck."""
MAX_STUCK = 2
"""Children that were killed and do not end, beside which another is started: each may keep the
memory of what it had mapped."""
STUCK_WORD_S = 5.0
"""How often it is said that there is no other child because those that were killed do not end."""
_POLL_S = 0.2
_FIRST_BACKOFF_S = 0.05
MAX_BACKOFF_S = 1.0  # until then no engine can save or register; a start costs about 0.2 s
#: A child that lives for less may have died of what it was given; the next waits longer.
_LONG_LIFE_S = 10


class Role(Protocol):
    """One child and its successors: what they are called, run with, and how they are told of.

    Attributes:
        label: for log lines: ``copier host``.
        party: as what it is written down in the arena.
        max_backoff_s: longest pause before another is started.
        end_timeout_s: for one whose socket was closed; longer than it takes for what it is at.
    """

    label: str
    party: Literal["copier", "porter"]
    max_backoff_s: float
    end_timeout_s: float

    def command(self, fd: int) -> list[str]:
        """What to run; it inherits the socket of that number."""
        ...

    def environment(self) -> dict[str, str]:
        """Of the child."""
        ...

    def greet(self, channel: socket.socket) -> None:
        """Sends what it is told first, if anything; OSError when it is gone."""
        ...

    def receive(self, channel: socket.socket) -> bytes:
        """The next packet, empty when the child closed its end."""
        ...

    def refusal(self, packet: bytes) -> str | None:
        """Why its first packet does not say that it is ready; None when it does.

        Raises:
            ValueError: it talks nonsense.
        """
        ...

    def ready(self, packet: bytes, pid: int, channel: socket.socket) -> Report:
        """It is ready, as its first packet says."""
        ...

    def answered(self, packet: bytes) -> Report:
        """It answered a command; ValueError when it talks nonsense."""
        ...

    def lost(self) -> Report:
        """It is gone."""
        ...

    def stuck(self, life: int, pid: int) -> Report:
        """It was killed and does not end."""
        ...

    def gone(self, life: int) -> Report:
        """A stuck one is gone after all."""
        ...

    def refused(self, why: str) -> Report | None:
        """None can be started; None when nobody is to be told."""
        ...

    def ended(self) -> Report:
        """All are gone for good; nothing is posted after this."""
        ...


@dataclass(eq=False)
class _Life:
    """One child.

    Attributes:
        number: counts the lives.
        child: its process.
        pidfd: of it; readable at its end, also while somebody traces it and waits first.
        was_ready: whether it was reported, so that its end must be, too.
        party: its file in the arena's folder, from before it gets an extent until its end.
    """

    number: int
    child: subprocess.Popen[bytes]
    pidfd: int
    was_ready: bool = False
    party: str = ""

    def close(self) -> None:
        """It was seen dead: nothing of it touches memory any more."""
        os.close(self.pidfd)
        if self.party:
            parties.drop(self.party)


class Keeper:
    """One child and its restarts.

    Args:
        role: what it is.
        reporter: used by the thread alone.
        parties: writes down that the child may touch the arena; None to leave that out.
    """

    def __init__(self, role: Role, reporter: Reporter, parties: Parties | None = None) -> None:
        self._role = role
        self._parties = parties
        self._reporter = reporter
        self._stopping = threading.Event()
        self._abandoning = threading.Event()
        self._refusal = ""
        self._has_said_why = False
        self._waits_since_ns = 0
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._num_lives = 0
        self._stuck: list[_Life] = []
        self._thread = threading.Thread(
            target=self._run, name=f"kvkeep-{role.label.replace(' ', '-')}", daemon=True
        )

    def start(self) -> None:
        """Starts the thread and with it the child."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ends the child and the thread.

        Args:
            timeout_s: longest wait.

        Returns:
            Whether all ended, children that had been killed before included.
        """
        self.abandon()
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and not self._stuck

    def abandon(self) -> None:
        """As ``stop``, without the wait."""
        self._abandoning.set()
        self.retire()

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread, which has posted its last report and is about to end.

        Args:
            timeout_s: longest wait.

        Returns:
            Whether it has ended.
        """
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def retire(self) -> None:
        """Has the child end, without waiting for it.

        The report that it ended says that nothing of it is left, stuck predecessors included; the
        thread ends then.
        """
        self._stopping.set()
        with self._lock:
            if self._channel is not None:
                try:
                    self._channel.shutdown(socket.SHUT_RDWR)
                except OSError:  # its other end is closed already
                    pass

    def is_alive(self) -> bool:
        """Whether the thread runs; the child may be dead for a moment."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._keep_running()
            self._waits_since_ns = clock.now_ns()
            while self._stuck and not self._abandoning.is_set():
                self._outwait_stuck()
        finally:
            if not self._abandoning.is_set():
                self._reporter.post(self._role.ended())

    def _keep_running(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while not self._stopping.is_set():
            begun_ns = clock.now_ns()
            self._refusal, self._has_said_why = "", False
            try:
                self._one_life()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next one may live
                _log.error("%s cannot be kept running: %r", self._role.label, error)
                self._refusal = self._refusal or str(error)
            self._tell_refusal()
            lived_long = clock.now_ns() - begun_ns > _LONG_LIFE_S * clock.NS_PER_S
            doubled_s = min(2 * backoff_s, self._role.max_backoff_s)
            backoff_s = _FIRST_BACKOFF_S if lived_long else doubled_s
            self._rest(backoff_s)
            self._waits_since_ns = clock.now_ns()
            while len(self._stuck) >= MAX_STUCK and not self._stopping.is_set():
                self._outwait_stuck()

    def _rest(self, limit_s: float) -> None:
        """Waits, unless the child is to end; the end of stuck ones is told at once."""
        end_ns = clock.now_ns() + int(limit_s * clock.NS_PER_S)
        while self._stuck and not self._stopping.is_set():
            left_s = (end_ns - clock.now_ns()) / clock.NS_PER_S
            if left_s <= 0:
                return
            self._watch(None, min(_POLL_S, left_s))
        self._stopping.wait(max(0.0, (end_ns - clock.now_ns()) / clock.NS_PER_S))

    def _watch_until(self, limit_s: float, channel: socket.socket) -> bool:
        """Whether the channel has something to read within a time."""
        end_ns = clock.now_ns() + int(limit_s * clock.NS_PER_S)
        while True:
            left_s = max(0.0, (end_ns - clock.now_ns()) / clock.NS_PER_S)
            if self._watch(channel, left_s):
                return True
            if not left_s:
                return False

    def _outwait_stuck(self) -> None:
        """Looks whether stuck children have ended; says why there is no other meanwhile."""
        self._watch(None, _POLL_S)
        now_ns = clock.now_ns()
        is_due = now_ns - self._waits_since_ns > STUCK_WORD_S * clock.NS_PER_S
        if is_due and self._stuck:
            self._waits_since_ns = now_ns
            pids = ", ".join(str(left.child.pid) for left in self._stuck)
            self._post_refusal(f"no other is started while killed ones do not end (pid {pids})")

    def _tell_refusal(self) -> None:
        if self._refusal and not self._stopping.is_set():
            self._post_refusal(self._refusal)

    def _post_refusal(self, why: str) -> None:
        report = self._role.refused(why)
        if report is not None:
            self._reporter.post(report)

    def _one_life(self) -> None:
        ours, life = self._spawn()
        with self._lock:
            self._channel = ours
        if self._stopping.is_set():
            ours.shutdown(socket.SHUT_RDWR)
        try:
            try:
                self._role.greet(ours)
            except OSError:  # it ended already; it may have said why
                pass
            ready = self._await_ready(ours)
            if ready is not None:
                if self._parties is not None:
                    life.party = self._parties.own(self._role.party, life.child.pid)
                life.was_ready = True
                self._reporter.post(self._role.ready(ready, life.child.pid, ours))
                self._read_answers(ours)
        finally:
            has_ended = self._end(life.child)
            with self._lock:
                self._channel = None
            if has_ended:
                life.close()
            else:
                self._stuck.append(life)
            if not life.was_ready:
                ours.close()
            elif has_ended:
                self._reporter.post(self._role.lost())
            else:
                self._reporter.post(self._role.stuck(life.number, life.child.pid))

    def _spawn(self) -> tuple[socket.socket, _Life]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number = theirs.fileno()
        try:
            child = subprocess.Popen(
                self._role.command(number),
                pass_fds=(number,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # A terminal's Ctrl-C is for the server, which ends its children after what they are
                # at; without it they die of PR_SET_PDEATHSIG.
                start_new_session=True,
                env=self._role.environment(),
            )
            try:
                pidfd = os.pidfd_open(child.pid)
            except OSError:
                child.kill()
                raise
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._num_lives += 1
        return ours, _Life(self._num_lives, child, pidfd)

    def _await_ready(self, channel: socket.socket) -> bytes | None:
        """Waits until the child has started.

        Returns:
            What it said; None when it does not start, and then the refusal says why.
        """
        if not self._watch_until(READY_TIMEOUT_S, channel):
            self._refusal = f"it was not ready within {READY_TIMEOUT_S:.0f} s"
            _log.error("%s: %s", self._role.label, self._refusal)
            return None
        try:
            try:
                packet = self._role.receive(channel)
            except ConnectionResetError:  # it left something unread, and may have said why
                packet = self._role.receive(channel)
            if not packet:
                self._refusal = "it ended before it was ready"
                return None
            refusal = self._role.refusal(packet)
            if refusal is None:
                return packet
            self._refusal, self._has_said_why = refusal, True
        except (OSError, ValueError) as error:
            _log.error("%s did not start: %s", self._role.label, error)
            self._refusal = str(error)
        return None

    def _read_answers(self, channel: socket.socket) -> None:
        while True:
            if not self._watch(channel, None):
                continue
            try:
                packet = self._role.receive(channel)
                if not packet:
                    return
                self._reporter.post(self._role.answered(packet))
            except (OSError, ValueError) as error:
                _log.warning("%s: %s", self._role.label, error)
                return

    def _watch(self, channel: socket.socket | None, limit_s: float | None) -> bool:
        """Waits for the child's next answer and for the end of stuck ones.

        Args:
            channel: to the child, or None when there is none.
            limit_s: longest wait; None for as long as it takes.

        Returns:
            Whether the channel has something to read.
        """
        if channel is not None and limit_s is None and not self._stuck:
            return True  # what reads it may block
        poller = select.poll()
        for stuck in self._stuck:
            poller.register(stuck.pidfd, select.POLLIN)
        if channel is not None:
            poller.register(channel, select.POLLIN)
        ready = {fd for fd, _ in poller.poll(None if limit_s is None else limit_s * 1000)}
        for stuck in [one for one in self._stuck if one.pidfd in ready]:
            self._stuck.remove(stuck)
            stuck.close()
            try:
                stuck.child.wait(END_TIMEOUT_S)  # at once, unless somebody traces it
            except subprocess.TimeoutExpired:
                pass  # it is dead all the same, and subprocess looks again later
            _log.warning("%s (pid %d) ended at last", self._role.label, stuck.child.pid)
            if stuck.was_ready:
                self._reporter.post(self._role.gone(stuck.number))
        return channel is not None and channel.fileno() in ready

    def _end(self, child: subprocess.Popen[bytes]) -> bool:
        """Ends the child.

        Returns:
            Whether it was seen dead, so that nothing of it touches memory any more. Reporting it
            lost while it may still write would be wrong.
        """
        limits_s = (self._role.end_timeout_s, END_TIMEOUT_S)
        if not self._stopping.is_set():
            child.kill()  # its socket ended, or it talks nonsense: either way it is of no use
            limits_s = (END_TIMEOUT_S, END_TIMEOUT_S)
        for limit_s in limits_s:
            try:
                code = child.wait(limit_s)
            except subprocess.TimeoutExpired:
                child.kill()
                continue
            if not self._stopping.is_set():
                # Of one that cannot work the reason is told, at a bounded rate. Where it said so
                # itself, that it was ended for it would look as if something had crashed.
                is_told = self._refusal and self._role.refused(self._refusal) is not None
                level = logging.INFO if is_told else logging.WARNING
                level = logging.DEBUG if is_told and self._has_said_why else level
                _log.log(level, "%s (pid %d) ended with %d", self._role.label, child.pid, code)
            return True
        return False
