"""A job as whoever started it sees it: its processes, what they are asked, how it died.

Must not know: engines, requests. One daemon thread per channel takes answers; any thread asks.
"""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from adapter.conformance.host.errors import HostError
from adapter.conformance.host.ranks.nursery import plant
from adapter.conformance.host.ranks.spec import Answer, Ask, Dying, Ended, JobSpec, Started
from adapter.conformance.host.ranks.wire import Wire, pair

_SEND_LIMIT_S: Final = 30.0
_START_LIMIT_S: Final = 90.0
_END_LIMIT_S: Final = 10.0
_LOG_TAIL_CHARS: Final = 4000


class JobDiedError(HostError):
    """A rank of the job ended badly, and with it the job."""


class Job:
    """The processes of one engine.

    Args:
        spec: What to start.

    Raises:
        JobDiedError: If the ranks do not come up; says why.
    """

    def __init__(self, spec: JobSpec) -> None:
        self.size = spec.size
        self.exit_codes: dict[int, int] = {}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the job
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._pending: dict[tuple[int, int], Future[Any]] = {}
        self._causes: list[str] = []
        self._is_closed = False
        self._ready = [Future[None]() for _ in range(spec.size)]
        pairs = [pair("the facade", name) for name in self._names()]
        self._wires = [mine for mine, _ in pairs]  # each rank's; the launcher's comes last
        self._pid = 0
        self._over = threading.Event()
        self._readers = [
            threading.Thread(target=self._read, args=(index,), name=f"job-{index}", daemon=True)
            for index in range(spec.size + 1)
        ]
        self._start(spec, [theirs for _, theirs in pairs])
        for reader in self._readers:
            reader.start()
        try:
            for ready in self._ready:
                ready.result(_START_LIMIT_S)
        except BaseException:
            self.close()
            raise

    @property
    def causes(self) -> list[str]:
        """What ranks said when they died, first things first."""
        with self._lock:
            return list(self._causes)

    @property
    def is_alive(self) -> bool:
        """Whether every process is there."""
        return not self._over.is_set() and not self.exit_codes

    def ask(self, rank: int, name: str, **arguments: Any) -> Future[Any]:
        """Have a rank do something.

        Args:
            rank: Which.
            name: As ``rankserver`` knows it.
            arguments: Of what is asked.

        Returns:
            The answer. Fails with ``JobDiedError`` if the rank ends first.
        """
        return self.ask_numbered(rank, name, **arguments)[1]

    def ask_numbered(self, rank: int, name: str, **arguments: Any) -> tuple[int, Future[Any]]:
        """As ``ask``; also returns the number by which the rank knows what was asked."""
        ask, answer = Ask(next(self._numbers), name, arguments), Future[Any]()
        with self._lock:
            self._pending[rank, ask.number] = answer
        try:
            self._wires[rank].send(ask, _SEND_LIMIT_S)
        except HostError as error:
            self._fail(lambda key: key == (rank, ask.number), self._death(str(error)))
        return ask.number, answer

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank's process; nothing if it is gone."""
        try:
            self._wires[-1].send((rank, number), _SEND_LIMIT_S)
        except HostError:
            pass  # the job is over

    def wait(self, limit_s: float) -> int:
        """Wait for the end of all processes.

        Args:
            limit_s: Longest wait in seconds.

        Returns:
            0 if every rank ended well.

        Raises:
            TimeoutError: If they live on.
        """
        if not self._over.wait(limit_s):
            raise TimeoutError(f"the job did not end within {limit_s} s")
        is_well = len(self.exit_codes) == self.size and not any(self.exit_codes.values())
        return 0 if is_well else 1

    def log(self) -> str:
        """The end of what the processes wrote to stderr; empty once the job is closed."""
        if self._log.closed:
            return ""
        size = os.fstat(self._log.fileno()).st_size
        start = max(0, size - _LOG_TAIL_CHARS)
        return os.pread(self._log.fileno(), size - start, start).decode("utf-8", "replace")

    def close(self) -> None:
        """End what is left of the job, at once. Idempotent."""
        with self._lock:
            self._is_closed = True
        # The launcher ends all ranks when its socket closes for writing, then says so and ends.
        self._wires[-1].end_sending()
        if not self._over.wait(_END_LIMIT_S) and self._pid:
            os.kill(self._pid, signal.SIGKILL)  # the kernel ends its ranks
        for wire in self._wires:
            wire.close()
        for reader in self._readers:
            if reader.is_alive():
                reader.join(_END_LIMIT_S)
        self._log.close()

    def _names(self) -> list[str]:
        return [*(f"rank {rank}" for rank in range(self.size)), "the launcher"]

    def _start(self, spec: JobSpec, theirs: list[Wire]) -> None:
        fds = [theirs[-1].fileno(), *(wire.fileno() for wire in theirs[:-1])]
        try:
            plant([self._log.fileno(), *fds])
            self._wires[-1].send(spec, _SEND_LIMIT_S)
        except HostError:
            pass  # the readers will see that nobody is there
        finally:
            for wire in theirs:
                wire.release()

    def _read(self, index: int) -> None:
        try:
            while True:
                self._take(index, self._wires[index].receive(None))
        except HostError:
            self._lost(index)

    def _take(self, index: int, message: Answer | Dying | Started | Ended) -> None:
        if isinstance(message, Started):
            self._pid = message.pid
        elif isinstance(message, Ended):
            self.exit_codes[message.rank] = message.code
        elif isinstance(message, Dying):
            with self._lock:
                self._causes.append(f"rank {index}: {message.reason}")
        elif not message.number:
            self._ready[index].set_result(None)
        else:
            with self._lock:
                answer = self._pending.pop((index, message.number), None)
            if answer is not None and message.is_error:
                answer.set_exception(message.value)
            elif answer is not None:
                answer.set_result(message.value)

    def _lost(self, index: int) -> None:
        if index == self.size:
            self._over.set()
            return
        death = self._death(f"rank {index} is gone")
        self._fail(lambda key: key[0] == index, death)
        if not self._ready[index].done():
            self._ready[index].set_exception(death)

    def _fail(self, concerns: Callable[[tuple[int, int]], bool], death: JobDiedError) -> None:
        with self._lock:
            gone = [self._pending.pop(key) for key in list(self._pending) if concerns(key)]
        for answer in gone:
            answer.set_exception(death)

    def _death(self, what: str) -> JobDiedError:
        if self._is_closed:
            return JobDiedError(f"{what}: the job was closed")
        said = "; ".join(self.causes)
        return JobDiedError(f"{what}: {said}" if said else f"{what}; log: {self.log()}")
