"""What runs in each rank of a chaos engine: requests without end, and a report when asked.

``model`` makes the rank's payload model and ``install`` the watch, both before the engine is there;
``begin``, ``report``, ``drop_side``, ``drop_wire`` and ``finish`` are called on the running engine.
The leader's requests come from a thread of their own. Must not know: what the conductor does to
this process.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import threading
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Final

from adapter.channel import Channel
from adapter.conformance.host.engine import HostEngine
from adapter.conformance.host.errors import RequestCancelledError
from adapter.conformance.host.ranks.injection import Injector
from adapter.conformance.host.requests import HostResult, RequestHandle
from adapter.copy import LoadError
from tests.chaos import sockets
from tests.chaos.payload import ChaosPayload
from tests.chaos.stacks import Stacks
from tests.chaos.texts import Library
from tests.chaos.watch import Watch, WatchedHooks, watched

TASK: Final = "CHAOS_TASK"
FIRST_REQUESTS: Final = 40
"""Of an incarnation: their hits are what a killed engine did not lose."""

_CANCELLED: Final = 0.03
_MEMORY: Final = 60
"""Prompts that an engine may ask again; its pool holds a third of them."""

_LIMIT_S: Final = 120.0
_MAX_TOLD: Final = 10


@dataclass(frozen=True)
class Task:
    """What a rank is to do.

    Attributes:
        kind: engines of one kind share bytes.
        seed: of the requests.
        num_layers: of the pool.
        head_bytes: bytes per token in one layer's K or V, over all ranks.
        windows: of the layers.
        width: requests in flight.
        rate: requests per second at most.
        fresh: share of prompts that begin like no other.
        again: share of prompts that are asked again.
        wire: path of the endpoint's socket.
        side: path of the side socket.
    """

    kind: str
    seed: int
    num_layers: int
    head_bytes: int
    windows: tuple[int, ...]
    width: int
    rate: float
    fresh: float
    again: float
    wire: str
    side: str

    def as_environ(self) -> dict[str, str]:
        """For the rank's process."""
        return {TASK: json.dumps(asdict(self))}

    @classmethod
    def of_environ(cls) -> Task:
        """In the rank's process."""
        values = json.loads(os.environ[TASK])
        return cls(**{**values, "windows": tuple(values["windows"])})


class Rank:
    """What this process knows of itself; one per process, made once."""

    def __init__(self) -> None:
        self.task = Task.of_environ()
        self.watch = Watch()
        self.hooks = WatchedHooks(self.watch)
        self.stacks = Stacks(self.watch)
        self.payload: ChaosPayload | None = None
        self.labour: Labour | None = None


@cache
def this_rank() -> Rank:
    """The state of this process."""
    return Rank()


def model(rank: int, size: int) -> ChaosPayload:
    """The forward of a rank; see ``JobSpec.model``."""
    state = this_rank()
    task = state.task
    state.payload = ChaosPayload(
        Library.block,
        rank=rank,
        kind=task.kind,
        num_layers=task.num_layers,
        bytes_per_token=task.head_bytes // size,
        windows=task.windows,
    )
    return state.payload


def install(rank: int, injector: Injector) -> None:
    """Times every control call of the adapter; see ``JobSpec.plugins``.

    SIGUSR1 has a rank write down what its threads are doing.
    """
    faulthandler.register(signal.SIGUSR1)
    timed = watched(
        this_rank().watch, Channel.call, lambda _, body, *__, **___: f"call {body.op.name}"
    )
    setattr(Channel, "call", timed)  # noqa: B010 - a plain assignment is refused by the checker


def begin(engine: HostEngine) -> None:
    """Watches the hooks; the leader begins to ask."""
    state = this_rank()
    engine.connector.recorder = state.hooks
    state.stacks.start()
    if engine.connector.scheduler is not None:
        state.labour = Labour(engine, state.task)
        state.labour.start()


def report(engine: HostEngine) -> dict[str, Any]:
    """How this rank fares: figures since its start, JSON-ready."""
    state = this_rank()
    counters = getattr(engine.connector.worker, "counters", dict)
    payload = state.payload
    found: dict[str, Any] = {
        "pid": os.getpid(),
        "wrong_bytes": 0 if payload is None else payload.num_wrong,
        "wrong": [] if payload is None else list(payload.wrong),
        "verified_pages": 0 if payload is None else payload.num_verified_pages,
        "hooks": state.hooks.histogram(),
        "long": state.watch.long_ones(),
        "long_lost": state.watch.num_long_lost,
        "stacks": list(state.stacks.notes),
        "calls": state.watch.num_calls,
        "counters": counters(),
        "died_of": "" if engine.error is None else repr(engine.error),
    }
    return found | ({} if state.labour is None else state.labour.figures())


def drop_side(engine: HostEngine) -> int:
    """Drops the connection to the side socket."""
    return sockets.drop(this_rank().task.side)


def drop_wire(engine: HostEngine) -> int:
    """Drops the connections to the endpoint."""
    return sockets.drop(this_rank().task.wire)


def finish(engine: HostEngine) -> bool:
    """Asks for nothing more and waits for what is in flight; whether all of it ended."""
    labour = this_rank().labour
    return True if labour is None else labour.finish(15.0)


class Labour:
    """The leader's requests.

    Args:
        engine: of this process.
        task: what to ask.
    """

    def __init__(self, engine: HostEngine, task: Task) -> None:
        self._engine = engine
        self._task = task
        self._rng = random.Random(f"requests {task.seed}")
        self._library = Library(fresh=task.fresh)
        self._flying: deque[tuple[RequestHandle, int, bool, int]] = deque()
        self._asked: deque[tuple[int, ...]] = deque(maxlen=_MEMORY)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="labour", daemon=True)
        self._counts: Counter[str] = Counter()
        self._told: list[str] = []
        self._next_s = time.monotonic()

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def finish(self, limit_s: float) -> bool:
        """Ends; whether everything in flight ended in time."""
        self._over.set()
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def figures(self) -> dict[str, Any]:
        """Counts so far."""
        flying = tuple(self._flying)
        return {
            "counts": dict(self._counts),
            "errors": list(self._told),
            "oldest_ns": flying[0][1] if flying else 0,
            "flying": len(flying),
        }

    def _run(self) -> None:
        while not self._over.is_set():
            while len(self._flying) < self._task.width and not self._over.is_set():
                self._pace()
                self._submit()
            self._take(self._flying[0])
            self._flying.popleft()
        while self._flying:
            self._take(self._flying[0])
            self._flying.popleft()

    def _pace(self) -> None:
        now_s = time.monotonic()
        self._next_s = max(self._next_s + 1 / self._task.rate, now_s - 1.0)
        if self._next_s > now_s:
            self._over.wait(self._next_s - now_s)

    def _submit(self) -> None:
        prompt = self._prompt()
        handle = self._engine.submit(prompt, self._rng.choice((1, 1, 2)))
        is_cancelled = self._rng.random() < _CANCELLED
        self._flying.append((handle, time.monotonic_ns(), is_cancelled, len(prompt)))
        if is_cancelled:
            self._engine.cancel(handle)

    def _prompt(self) -> tuple[int, ...]:
        """A new one, or one of an age at which this engine has given up its own pages."""
        if len(self._asked) == _MEMORY and self._rng.random() < self._task.again:
            return self._asked[self._rng.randrange(_MEMORY // 2)]
        prompt = self._library.draw(self._rng)
        self._asked.append(prompt)
        return prompt

    def _take(self, flying: tuple[RequestHandle, int, bool, int]) -> None:
        handle, _, is_cancelled, num_tokens = flying
        try:
            self._count(handle.result(_LIMIT_S), num_tokens)
        except RequestCancelledError as error:
            self._counts["cancelled"] += 1
            if not is_cancelled and not self._over.is_set():
                self._tell("failed_requests", error)
        except Exception as error:  # noqa: BLE001 - it is what a run looks for
            kinds = {type(one) for one in causes(error)}
            self._tell("failed_offers" if LoadError in kinds else "failed_requests", error)
            self._over.wait(0.2)  # a dead executor fails everything at once

    def _count(self, result: HostResult, num_tokens: int) -> None:
        counts, loaded = self._counts, result.num_loaded_tokens
        counts["requests"] += 1
        counts["prompt_tokens"] += num_tokens
        counts["loaded_tokens"] += loaded
        counts["device_tokens"] += result.num_device_tokens
        counts["loads"] += loaded > 0
        counts["chunks"] += loaded // Library.block
        if counts["requests"] <= FIRST_REQUESTS:
            counts["first_tokens"] += num_tokens
            counts["first_loaded_tokens"] += loaded

    def _tell(self, kind: str, error: BaseException) -> None:
        self._counts[kind] += 1
        if len(self._told) < _MAX_TOLD:
            self._told.append(f"{kind}: {' because of '.join(repr(one) for one in causes(error))}")


def causes(error: BaseException | None) -> list[BaseException]:
    """An error and what it came of, in order."""
    found: list[BaseException] = []
    while error is not None and len(found) < 10:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
