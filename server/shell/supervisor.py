"""Keeps one copier process running: starts it, reads its answers, notices its death, again.

Purpose: whatever happens to a copier, the loop learns it as a report and goes on. One that does
not even die of SIGKILL (the kernel waits for a device or a page) is reported stuck, another is
started beside it, and its end is reported when it comes. Must not know: what the jobs mean, which
are outstanding (``server.shell.copiers`` does). Runs in: its own thread, which must live as long
as the copiers, since the kernel ends a child with the thread that started it.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import subprocess
import sys
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path

from server.copier.wire import MAX_ANSWER_BYTES, Answer, Kind, unpack_answer
from server.core.effects import CopierId
from server.shell import clock, parties
from server.shell.parties import Parties
from server.shell.reports import (
    CopierAnswered,
    CopierEnded,
    CopierGone,
    CopierLost,
    CopierReady,
    CopierRefused,
    CopierStuck,
    Reporter,
)

_log = logging.getLogger("kvkeep.server")

READY_TIMEOUT_S = 30.0
END_TIMEOUT_S = 2.0
"""For a copier whose socket was closed: it ends after the job it is at, some milliseconds. Also
how long one that got SIGKILL may take to end before it counts as stuck."""
MAX_STUCK = 2
"""Copiers that were killed and do not end, beside which another is started: each may keep the
memory of what it had mapped."""
STUCK_WORD_S = 5.0
"""How often it is said that a device has no copier because those that were killed do not end."""
_POLL_S = 0.2
_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 1.0  # until then no engine can save or register; a start costs about 0.2 s
#: For a device that refuses: one that comes back does so in seconds, and a start of CUDA takes one.
_MAX_REFUSED_BACKOFF_S = 10.0
#: A copier that lives for less may have died of what it was given; the next waits longer.
_LONG_LIFE_S = 10
#: glibc copies with non-temporal stores from 256 KiB on: 8.4 to 13.1 GB/s for pages of 4 MiB.
_TUNABLE = "glibc.cpu.x86_non_temporal_threshold=0x40000"
_ROOT = str(Path(__file__).resolve().parents[2])


def device_name(device_uuid: bytes) -> str:
    """A device as CUDA and nvidia-smi name it.

    Args:
        device_uuid: 16 bytes.
    """
    return f"GPU-{uuid.UUID(bytes=device_uuid)}"


def child_environment(
    environ: dict[str, str], machine: str, libc: str, device_uuid: bytes = b""
) -> dict[str, str]:
    """Environment of a copier.

    Args:
        environ: of this process.
        machine: as ``os.uname`` says.
        libc: as ``libc_name`` says.
        device_uuid: 16 bytes of the one device that a device's copier sees; empty for host memory.

    Returns:
        A copy with this installation first on the import path, one numerics thread, and the
        store tunable where glibc on x86 reads it.
    """
    own = dict(environ)
    rest = own.get("PYTHONPATH", "")
    own["PYTHONPATH"] = f"{_ROOT}{os.pathsep}{rest}" if rest else _ROOT
    own["OPENBLAS_NUM_THREADS"] = "1"
    if device_uuid:
        own["CUDA_VISIBLE_DEVICES"] = device_name(device_uuid)
    if machine in ("x86_64", "AMD64") and libc == "glibc":
        others = [
            entry
            for entry in own.get("GLIBC_TUNABLES", "").split(":")
            if entry and not entry.startswith("glibc.cpu.x86_non_temporal_threshold=")
        ]
        own["GLIBC_TUNABLES"] = ":".join([*others, _TUNABLE])
    return own


def libc_name() -> str:
    """The C library of this process.

    Returns:
        ``glibc``, or nothing for another one.
    """
    try:
        found = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # musl does not know the name
        return ""
    return found.split()[0] if found else ""


@dataclass(eq=False)
class _Life:
    """One copier.

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


class Supervisor:
    """One copier and its restarts.

    Args:
        copier: which one.
        reporter: used by the thread alone.
        module: what to run; takes the socket's number and this process's id.
        parties: writes down that the copier may touch the arena; None to leave that out.
        device_uuid: 16 bytes of the device whose copier it is; empty for host memory.
    """

    def __init__(
        self,
        copier: CopierId,
        reporter: Reporter,
        module: str = "server.copier.host",
        parties: Parties | None = None,
        device_uuid: bytes = b"",
    ) -> None:
        self._parties = parties
        self._device_uuid = device_uuid
        self._copier = copier
        self._reporter = reporter
        self._module = module
        self._stopping = threading.Event()
        self._abandoning = threading.Event()
        self._refusal = ""
        self._waits_since_ns = 0
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._num_lives = 0
        self._stuck: list[_Life] = []
        self._thread = threading.Thread(target=self._run, name=f"kvkeep-copier-{copier}")
        self._thread.daemon = True

    def start(self) -> None:
        """Starts the thread and with it the copier."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ends the copier and the thread.

        Args:
            timeout_s: longest wait.

        Returns:
            Whether all ended, copiers that had been killed before included.
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
        """Waits for the thread, which has posted CopierEnded and is about to end.

        Args:
            timeout_s: longest wait.

        Returns:
            Whether it has ended.
        """
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def retire(self) -> None:
        """Has the copier end, without waiting for it.

        CopierEnded says that nothing of it is left, stuck predecessors included; the thread ends
        then.
        """
        self._stopping.set()
        with self._lock:
            if self._channel is not None:
                try:
                    self._channel.shutdown(socket.SHUT_RDWR)
                except OSError:  # its other end is closed already
                    pass

    def is_alive(self) -> bool:
        """Whether the thread runs; the copier may be dead for a moment."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._keep_running()
            self._waits_since_ns = clock.now_ns()
            while self._stuck and not self._abandoning.is_set():
                self._outwait_stuck()
        finally:
            if not self._abandoning.is_set():
                self._reporter.post(CopierEnded(self._copier))

    def _keep_running(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while not self._stopping.is_set():
            begun_ns = clock.now_ns()
            self._refusal = ""
            try:
                self._one_life()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next one may live
                _log.error("copier %d cannot be kept running: %r", self._copier, error)
                self._refusal = self._refusal or str(error)
            self._tell_refusal()
            lived_long = clock.now_ns() - begun_ns > _LONG_LIFE_S * clock.NS_PER_S
            most_s = _MAX_REFUSED_BACKOFF_S if self._device_uuid else _MAX_BACKOFF_S
            backoff_s = _FIRST_BACKOFF_S if lived_long else min(2 * backoff_s, most_s)
            self._stopping.wait(backoff_s)
            self._waits_since_ns = clock.now_ns()
            while len(self._stuck) >= MAX_STUCK and not self._stopping.is_set():
                self._outwait_stuck()

    def _outwait_stuck(self) -> None:
        """Looks whether stuck copiers have ended; who wants to register hears why it cannot."""
        self._watch(None)
        now_ns = clock.now_ns()
        is_due = now_ns - self._waits_since_ns > STUCK_WORD_S * clock.NS_PER_S
        if is_due and self._stuck and self._device_uuid:
            self._waits_since_ns = now_ns
            pids = ", ".join(str(left.child.pid) for left in self._stuck)
            self._post_refusal(f"no other is started while killed ones do not end (pid {pids})")

    def _tell_refusal(self) -> None:
        """Engines of a device without a copier are told; they can do without the device's pool."""
        if self._refusal and self._device_uuid and not self._stopping.is_set():
            self._post_refusal(self._refusal)

    def _post_refusal(self, why: str) -> None:
        reason = f"{device_name(self._device_uuid)} has no copier: {why}"
        self._reporter.post(CopierRefused(self._copier, reason))

    def _one_life(self) -> None:
        ours, life = self._spawn()
        with self._lock:
            self._channel = ours
        if self._stopping.is_set():
            ours.shutdown(socket.SHUT_RDWR)
        try:
            ready = self._await_ready(ours)
            if ready is not None:
                if self._parties is not None:
                    life.party = self._parties.own("copier", life.child.pid)
                life.was_ready = True
                told = (ready.device_bytes, ready.numa_node)
                self._reporter.post(CopierReady(self._copier, life.child.pid, ours, *told))
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
                self._reporter.post(CopierLost(self._copier))
            else:
                self._reporter.post(CopierStuck(self._copier, life.number, life.child.pid))

    def _spawn(self) -> tuple[socket.socket, _Life]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number = theirs.fileno()
        try:
            child = subprocess.Popen(
                [
                    *(sys.executable, "-m", self._module, str(number), str(os.getpid())),
                    *([self._device_uuid.hex()] if self._device_uuid else []),
                ],
                pass_fds=(number,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # A terminal's Ctrl-C is for the server, which ends its copiers after their last
                # copy; without it they die of PR_SET_PDEATHSIG.
                start_new_session=True,
                env=child_environment(
                    dict(os.environ), os.uname().machine, libc_name(), self._device_uuid
                ),
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

    def _await_ready(self, channel: socket.socket) -> Answer | None:
        """Waits until the copier has started.

        Returns:
            What it said; None when it does not start, and then the refusal says why.
        """
        poller = select.poll()
        poller.register(channel, select.POLLIN)
        if not poller.poll(READY_TIMEOUT_S * 1000):
            self._refusal = f"it was not ready within {READY_TIMEOUT_S:.0f} s"
            _log.error("copier %d: %s", self._copier, self._refusal)
            return None
        try:
            packet = channel.recv(MAX_ANSWER_BYTES)
            if not packet:
                self._refusal = "it ended before it was ready"
                return None
            answer = unpack_answer(packet)
            if answer.kind == Kind.READY and answer.error is None:
                return answer
            self._refusal = answer.error or "it talks nonsense"
        except (OSError, ValueError) as error:
            _log.error("copier %d did not start: %s", self._copier, error)
            self._refusal = str(error)
        return None

    def _read_answers(self, channel: socket.socket) -> None:
        while True:
            if not self._watch(channel):
                continue
            try:
                packet = channel.recv(MAX_ANSWER_BYTES)
                if not packet:
                    return
                self._reporter.post(CopierAnswered(self._copier, unpack_answer(packet)))
            except (OSError, ValueError) as error:
                _log.warning("copier %d: %s", self._copier, error)
                return

    def _watch(self, channel: socket.socket | None) -> bool:
        """Waits for the copier's next answer and for the end of stuck ones.

        Args:
            channel: to the copier, or None when there is none; the wait is short then.

        Returns:
            Whether the channel has something to read.
        """
        if channel is not None and not self._stuck:
            return True  # what reads it may block
        poller = select.poll()
        for stuck in self._stuck:
            poller.register(stuck.pidfd, select.POLLIN)
        if channel is not None:
            poller.register(channel, select.POLLIN)
        ready = {fd for fd, _ in poller.poll(None if channel is not None else _POLL_S * 1000)}
        for stuck in [one for one in self._stuck if one.pidfd in ready]:
            self._stuck.remove(stuck)
            stuck.close()
            try:
                stuck.child.wait(END_TIMEOUT_S)  # at once, unless somebody traces it
            except subprocess.TimeoutExpired:
                pass  # it is dead all the same, and subprocess looks again later
            _log.warning("copier %d (pid %d) ended at last", self._copier, stuck.child.pid)
            if stuck.was_ready:
                self._reporter.post(CopierGone(self._copier, stuck.number))
        return channel is not None and channel.fileno() in ready

    def _end(self, child: subprocess.Popen[bytes]) -> bool:
        """Ends the child.

        Returns:
            Whether it was seen dead, so that nothing of it touches memory any more. Reporting it
            lost while it may still write would be wrong.
        """
        if not self._stopping.is_set():
            child.kill()  # its socket ended, or it talks nonsense: either way it is of no use
        for _ in range(2):
            try:
                code = child.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                continue
            if not self._stopping.is_set():
                _log.warning("copier %d (pid %d) ended with %d", self._copier, child.pid, code)
            return True
        return False
