"""Long work in slices, round robin by engine.

Purpose: a message about thousands of blocks is worked off in slices between other peers'
messages. A piece of work is a generator: ``yield`` ends a slice; ``yield WAIT`` sleeps until
``wake``. Must not know: what the work is. Runs in: the loop thread.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable
from enum import Enum

from protocol.errors import KvkeepError


class Pause(Enum):
    """What a slice ends with."""

    MORE = 0
    WAIT = 1


MORE, WAIT = Pause.MORE, Pause.WAIT

Steps = Generator[Pause, None, None]
"""A piece of long work."""

SLICE_BLOCKS = 64
"""Blocks that are reserved, published or freed in one slice."""

WALK_BLOCKS = 512
"""Nodes that are only read in one slice."""


def _nobody(error: Exception) -> None:
    """Who is told of errors of work that has ended."""


class Task:
    """One piece of work.

    Args:
        lane: whose work it is.
        steps: the work.
        failed: called with an error that the work raised.
    """

    __slots__ = ("failed", "lane", "queued", "steps")

    def __init__(self, lane: Hashable, steps: Steps, failed: Callable[[Exception], None]) -> None:
        self.lane = lane
        self.steps = steps
        self.failed = failed
        self.queued = False


class Lanes:
    """Runnable tasks, one queue per lane; lanes take turns."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[Hashable, deque[Task]] = OrderedDict()
        self._running = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is runnable."""
        return not self._lanes

    def start(self, lane: Hashable, steps: Steps, failed: Callable[[Exception], None]) -> Task:
        """Queues work; the first slice runs at once when nothing else waits.

        Args:
            lane: whose work it is.
            steps: the work.
            failed: called with an error that the work raises.

        Returns:
            The task, for ``wake``.
        """
        task = Task(lane, steps, failed)
        alone = self.is_idle and not self._running
        self.wake(task)
        if alone:
            self.step()
        return task

    def wake(self, task: Task) -> None:
        """Makes a sleeping task runnable; a runnable or ended one is left alone."""
        if task.queued:
            return
        task.queued = True
        queue = self._lanes.get(task.lane)
        if queue is None:
            queue = self._lanes[task.lane] = deque()
        queue.append(task)

    def step(self) -> bool:
        """Runs one slice of the lane whose turn it is.

        Returns:
            Whether anything is still runnable.
        """
        if not self._lanes:
            return False
        lane, queue = self._lanes.popitem(last=False)
        task = queue.popleft()
        task.queued = False
        pause = WAIT
        self._running = True
        try:
            pause = next(task.steps)
        except StopIteration:
            # Whoever may be told holds what holds the task: left as it is, that would be a ring,
            # and stay with all its keys until the collector comes.
            task.failed = _nobody
        except KvkeepError as error:
            task.failed(error)
            task.failed = _nobody
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the loop
            task.failed(error)
            task.failed = _nobody
        finally:
            self._running = False
        if pause is MORE and not task.queued:
            task.queued = True
            queue.appendleft(task)
        later = self._lanes.pop(lane, None)
        if later is not None:
            queue.extend(later)
        if queue:
            self._lanes[lane] = queue
        return bool(self._lanes)
