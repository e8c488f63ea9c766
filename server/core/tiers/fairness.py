"""Reads that wait for one tier: whoever waits for them takes turns, by bytes.

Purpose: an engine that has a great deal promoted does not hold up another one's few chunks. What
one of them waits for is read in its order; whoever got least is next; and while several want
wait, none has more than its share of the window on its way, and one read besides: who only has
something on its way holds nobody back. Must not know: what is read, who they are. Runs in: the
loop thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Read(Protocol):
    """Something to read.

    Attributes:
        flow: whose it is.
        num_bytes: how much.
    """

    flow: Hashable
    num_bytes: int


R = TypeVar("R", bound=Read)


@dataclass
class Flow(Generic[R]):
    """What one of them wants.

    Attributes:
        served: bytes that were sent for it, counted from what those had whom it found here.
        flying: bytes on their way.
        waiting: what is not sent yet, in order.
        waiting_bytes: the sum of that.
    """

    served: int
    flying: int = 0
    waiting: deque[R] = field(default_factory=deque)
    waiting_bytes: int = 0


class FairQueue(Generic[R]):
    """All that wait for one tier.

    Args:
        window_bytes: most bytes on their way.
    """

    def __init__(self, window_bytes: int) -> None:
        self._window_bytes = window_bytes
        self._flows: dict[Hashable, Flow[R]] = {}
        self._num_waiting = 0

    def __len__(self) -> int:
        """Reads that wait."""
        return self._num_waiting

    def add(self, read: R) -> None:
        """One more waits."""
        flow = self._flows.get(read.flow)
        if flow is None:
            served = min((other.served for other in self._flows.values()), default=0)
            flow = self._flows[read.flow] = Flow(served)
        flow.waiting.append(read)
        flow.waiting_bytes += read.num_bytes
        self._num_waiting += 1

    def take(self, fits: Callable[[int], bool]) -> R | None:
        """The next one, which is on its way from now on until ``ended``.

        Args:
            fits: whether so many bytes more may be on their way, whosever they are.
        """
        if not self._num_waiting:
            return None
        share = self._window_bytes // self._waiting()
        for flow in sorted(self._flows.values(), key=lambda one: (one.served, one.flying)):
            if not flow.waiting:
                continue
            if flow.flying >= share:
                continue
            num_bytes = flow.waiting[0].num_bytes
            # One that fits in nowhere now is waited for: others would take its room for ever.
            if not fits(num_bytes):
                return None
            flow.served += num_bytes
            flow.flying += num_bytes
            flow.waiting_bytes -= num_bytes
            self._num_waiting -= 1
            return flow.waiting.popleft()
        return None

    def ended(self, read: R) -> None:
        """One is not on its way any more."""
        flow = self._flows[read.flow]
        flow.flying -= read.num_bytes
        self._forget(read.flow, flow)

    def empty(self) -> list[R]:
        """Takes all that wait out, for nothing is read any more."""
        found: list[R] = []
        for name, flow in list(self._flows.items()):
            found += flow.waiting
            flow.waiting.clear()
            flow.waiting_bytes = 0
            self._forget(name, flow)
        self._num_waiting = 0
        return found

    def has_room(self, name: Hashable, fits: Callable[[int], bool]) -> bool:
        """Whether one more read of one of them would be sent soon.

        Args:
            name: of the flow.
            fits: as for ``take``.
        """
        flow = self._flows.get(name)
        is_waiting = flow is not None and bool(flow.waiting)
        others_waiting = self._waiting() - is_waiting
        if not others_waiting and not is_waiting and fits(1):
            return True
        others = len(self._flows) - (flow is not None)
        if not others:
            return False
        # Others have more than their share on the way, or will be held back for it.
        mine_bytes = 0 if flow is None else flow.flying + flow.waiting_bytes
        return mine_bytes < self._window_bytes // ((others_waiting or others) + 1)

    def _waiting(self) -> int:
        """How many of them wait for something."""
        return sum(bool(flow.waiting) for flow in self._flows.values())

    def _forget(self, name: Hashable, flow: Flow[R]) -> None:
        if not flow.waiting and not flow.flying:
            del self._flows[name]
