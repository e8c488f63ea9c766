"""Other processes' pools on a device: opened by their handles, checked, closed.

Purpose: the real range of each allocation is asked of the device before the first copy (fault P06);
what an engine says about it is only compared. Opening and closing may take long or wait for the
device, so both happen on a thread of their own, in the order in which they were asked for. Must not
know: jobs, sockets. Runs in: a device copier; called by its main thread.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from queue import SimpleQueue

from protocol.device.interface import Device, DeviceError, Opened
from server.copier.wake import Wake
from server.copier.wire import Answer, Command, Kind


@dataclass(frozen=True)
class Pool:
    """Pages that can be copied from.

    Attributes:
        address: first byte on the device, as this process sees it.
        size_bytes: length.
    """

    address: int
    size_bytes: int


@dataclass(frozen=True)
class _Ended:
    answer: Answer
    pool: Pool | None = None
    failure: DeviceError | None = None


class Pools:
    """All pools of one device.

    Args:
        device: bound by each thread that uses it.
        wake: set when there is something to collect.

    Attributes:
        failure: a sticky error of the device that opening or closing met, or None.
    """

    def __init__(self, device: Device, wake: Wake) -> None:
        self.failure: DeviceError | None = None
        self._device = device
        self._wake = wake
        self._usable: dict[int, Pool] = {}
        self._closing: set[int] = set()
        self._asked: deque[tuple[Command, float]] = deque()
        self._todo: SimpleQueue[Command | None] = SimpleQueue()
        self._ended: deque[_Ended] = deque()
        self._opened: dict[int, Opened] = {}  # the thread's
        thread = threading.Thread(target=self._run, name="kvkeep-pools", daemon=True)
        thread.start()

    @property
    def oldest_s(self) -> float | None:
        """When that was asked for which is under way, or None."""
        return self._asked[0][1] if self._asked else None

    def open(self, command: Command, now_s: float) -> None:
        """Has a pool opened; ``collect`` tells when.

        Args:
            command: an OPEN_POOL.
            now_s: a monotonic clock.
        """
        self._ask(command, now_s)

    def close(self, command: Command, now_s: float) -> None:
        """Has a pool closed, of which no copy is under way; it is unknown from here on.

        Args:
            command: an UNMAP_POOL; unknown numbers are fine.
            now_s: a monotonic clock.
        """
        self._closing.add(command.number)
        self._usable.pop(command.number, None)
        self._ask(command, now_s)

    def find(self, number: int) -> Pool | None:
        """An open pool."""
        return self._usable.get(number)

    def collect(self) -> list[Answer]:
        """Answers to what has been done since the last call."""
        answers = []
        while self._ended:
            ended = self._ended.popleft()
            self._asked.popleft()
            number = ended.answer.number
            if ended.answer.kind == Kind.UNMAP_POOL:
                self._closing.discard(number)
                self._usable.pop(number, None)
            elif ended.pool is not None and number not in self._closing:
                self._usable[number] = ended.pool
            self.failure = self.failure or ended.failure
            answers.append(ended.answer)
        return answers

    def stop(self) -> None:
        """Ends the thread after what it was asked; does not wait, and closes no pool."""
        self._todo.put(None)

    def _ask(self, command: Command, now_s: float) -> None:
        self._asked.append((command, now_s))
        self._todo.put(command)

    # --- the thread -------------------------------------------------------------------------

    def _run(self) -> None:
        is_bound = False
        while (command := self._todo.get()) is not None:
            pool, error, failure = None, None, None
            try:
                if not is_bound:
                    self._device.bind()
                    is_bound = True
                if command.kind == Kind.OPEN_POOL:
                    pool = self._open(command)
                else:
                    self._close(command.number)
            except DeviceError as caught:
                # What could not be closed is closed by this process's end alone.
                is_over = caught.is_sticky or command.kind == Kind.UNMAP_POOL
                error, failure = str(caught), caught if is_over else None
            except ValueError as caught:
                error = str(caught)
            except Exception as caught:  # noqa: BLE001 - a thread that ended would answer nobody
                error = f"{type(caught).__name__}: {caught}"
            self._ended.append(_Ended(Answer(command.kind, command.number, error), pool, failure))
            self._wake.set()

    def _open(self, command: Command) -> Pool:
        opened = self._device.open(command.handle)
        end = command.offset_bytes + command.size_bytes
        if command.size_bytes < 1 or end > opened.num_bytes:
            opened.close()
            raise ValueError(
                f"the pool was said to end at byte {end} of its allocation, which has "
                f"{opened.num_bytes}"
            )
        self._close(command.number)
        self._opened[command.number] = opened
        return Pool(opened.base + command.offset_bytes, command.size_bytes)

    def _close(self, number: int) -> None:
        opened = self._opened.pop(number, None)
        if opened is not None:
            opened.close()
