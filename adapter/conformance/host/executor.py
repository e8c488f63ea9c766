"""The executor: one thread that fetches commands and runs iterations until it is stopped.

Fetching blocks without any poll when nothing is active or waiting (host contract §5, step 1; E4
polls for pending transfers). Ranks with identical batches get the leader's commands; ranks of
attention DP have their own and go round together.

Must not know: the model, what an iteration does, how results reach clients. All of it but
``submit``, ``cancel``, ``forget_reuse`` and ``stop`` runs on the executor's thread.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from typing import Final

from adapter.conformance.host.errors import ExecutorDiedError
from adapter.conformance.host.feed import Adopt, CommandFeed
from adapter.conformance.host.finishing import Finisher
from adapter.conformance.host.inbox import Command, Inbox
from adapter.conformance.host.iteration import Iteration, Parts
from adapter.conformance.host.requests import HostRequest, Phase
from adapter.conformance.host.transfers import TransferLedger

_log = logging.getLogger(__name__)
_SPIN_WAIT_S: Final = 0.0005
_IDLE_POLL_S: Final = 0.001
_LOCKSTEP_WAIT_S: Final = 0.02
_DRAIN_S: Final = 10.0


class Executor:
    """The loop over iterations.

    Args:
        parts: What it works with on this rank.
        adopt: Makes this rank's state of a request that the leader took in.
    """

    def __init__(self, parts: Parts, adopt: Adopt) -> None:
        self.num_iterations = 0
        self.error: BaseException | None = None
        self._parts = parts
        self._scheduler = parts.scheduler
        self._inbox = Inbox()
        self._iteration = Iteration(parts, lambda: self._inbox.wants_end)
        self._feed = CommandFeed(self._inbox, parts.control, adopt)
        self._cancelled: list[int] = []
        self._forgets: list[Future[int]] = []
        self._is_anyone_busy = False
        self._thread = threading.Thread(target=self._run, name="executor", daemon=True)

    @property
    def ledger(self) -> TransferLedger:
        """Transfers under way."""
        return self._iteration.ledger

    @property
    def finisher(self) -> Finisher:
        """Ends requests."""
        return self._iteration.finisher

    @property
    def num_forwards(self) -> int:
        """Forwards launched."""
        return self._iteration.launcher.num_forwards

    @property
    def num_computed_tokens(self) -> int:
        """Tokens run through forwards."""
        return self._iteration.launcher.num_computed_tokens

    def start(self) -> None:
        """Start the thread; from here on every hook runs on it."""
        self._thread.start()

    def submit(self, request: HostRequest) -> None:
        """Queue a request; fails its handle at once if the executor is gone."""
        if not self._inbox.put(request):
            request.handle.fail(self._death())

    def cancel(self, request_id: int) -> None:
        """Ask for the end of a request; taken up at the end of an iteration."""
        self._inbox.put(request_id)

    def forget_reuse(self) -> Future[int]:
        """Ask for an empty reuse tree; see ``HostEngine.forget_reuse``.

        Returns:
            Ends with the number of pages given up, or with why it could not be.
        """
        forget: Future[int] = Future()
        if not self._inbox.put(forget):
            forget.set_exception(self._death())
        return forget

    def stop(self, timeout_s: float) -> None:
        """Cancel what is left and end the thread; a follower ends when its leader is stopped.

        Raises:
            TimeoutError: If the thread does not end; a hook blocks.
        """
        self._inbox.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the executor did not end within {timeout_s} s")

    def _run(self) -> None:
        try:
            self._parts.device.hardware.bind()
            while self._fetch():
                self._iterate()
        except BaseException as error:  # noqa: BLE001 - a dead executor is a result here
            _log.warning("executor died: %r", error)
            self.error = error
        try:
            if self.error is None:
                self._drain()
        except BaseException as error:  # noqa: BLE001 - E1 calls the connector here
            self.error = error
        if self.error is not None:
            self._parts.comm.abort(repr(self.error))
        self._close()

    def _fetch(self) -> bool:
        lockstep = self._iteration.lockstep
        while True:
            commands = self._feed.take(self._wait_s())
            stopping = not self._take_in(commands)
            busy = bool(commands) or self._is_busy() or self._polls_idle()
            if lockstep is not None:
                busy, stopping = lockstep.meet(busy, stopping)
                self._is_anyone_busy = busy
            if stopping:
                return False
            if busy:
                return True

    def _take_in(self, commands: list[Command]) -> bool:
        for command in commands:
            if command is None:
                return False
            if isinstance(command, HostRequest):
                self._scheduler.waiting.append(command)
            elif isinstance(command, Future):
                self._forgets.append(command)
            else:
                self._cancelled.append(command)
        return True

    def _wait_s(self) -> float | None:
        if self._is_busy():
            return _SPIN_WAIT_S if self._is_stuck() else 0.0
        if self._iteration.lockstep is not None:
            return 0.0 if self._is_anyone_busy else _LOCKSTEP_WAIT_S
        return _IDLE_POLL_S if self._polls_idle() else None

    def _is_busy(self) -> bool:
        # A batch of requests that all ended is scanned when others come: it keeps nobody busy.
        waiting = self._scheduler.waiting or self.finisher.replaying
        return bool(self._scheduler.active or waiting or self._forgets)

    def _polls_idle(self) -> bool:
        return self._parts.options.epoch == "E4" and bool(self.ledger)

    def _is_stuck(self) -> bool:
        # Only loads to wait for, or pages held by saves: go round, but not at full speed.
        runnable = any(r.phase is not Phase.LOADING for r in self._scheduler.active.values())
        return self._iteration.previous is None and not runnable

    def _iterate(self) -> None:
        self.num_iterations += 1
        cancelled, self._cancelled = self._cancelled, []
        self._iteration.run(self.num_iterations, cancelled)
        if self._forgets:
            self._forget()
        self._iteration.probe("iteration", [])

    def _forget(self) -> None:
        # Pages held for a save come back to the tree when it ends: wait for those too.
        if self._scheduler.active or self._scheduler.waiting or self.ledger.num_saving_pages:
            return
        num_pages = self._parts.cache.forget()
        forgets, self._forgets = self._forgets, []
        for forget in forgets:
            forget.set_result(num_pages)

    def _drain(self) -> None:
        waiting = [*self._scheduler.waiting, *self.finisher.replaying.values()]
        left = [*self._scheduler.active, *(request.request_id for request in waiting)]
        self.finisher.cancel(left, "ended by shutdown")
        deadline_s = time.monotonic() + _DRAIN_S
        control = self._parts.control
        # The leader's clock decides for all: the poll inside is one of all ranks.
        while control.broadcast(self.finisher.num_cancelling and time.monotonic() < deadline_s):
            time.sleep(_IDLE_POLL_S)
            self.finisher.poll_transfers()

    def _death(self) -> ExecutorDiedError:
        death = ExecutorDiedError(
            "the executor was stopped" if self.error is None else f"executor died: {self.error!r}"
        )
        death.__cause__ = self.error
        return death

    def _close(self) -> None:
        left: list[Command] = [*self._inbox.close(), *self._forgets]
        left += [*self._scheduler.active.values(), *self._scheduler.waiting]
        left += self.finisher.replaying.values()
        for command in left:
            if isinstance(command, HostRequest):
                command.handle.fail(self._death())
            elif isinstance(command, Future):
                command.set_exception(self._death())
