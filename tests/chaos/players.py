"""An engine over all of its incarnations: started, asked how it fares, buried, started again.

One thread per engine does that; whoever acts on its processes comes from other threads and takes
hold of them by ``hit``. Must not know: when and why its processes are hit.
"""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final

from adapter.conformance.host.errors import HostError
from adapter.conformance.host.ranks.engines import TensorParallelEngine
from adapter.conformance.host.ranks.injection import Trap
from tests.chaos.cast import Part, Place, Role, draw_part, start
from tests.chaos.processes import Grip, state_of
from tests.chaos.stops import Stops
from tests.chaos.tally import Tally

_REPORT_EVERY_S: Final = 0.5
_ANSWER_S: Final = 25.0
_STUCK_NS: Final = 20_000_000_000
_DUMP_S: Final = 1.0
_DISARM_TRIES: Final = 5
_RETRY_S: Final = 1.0
_LABOUR: Final = "tests.chaos.labour"


class Player(threading.Thread):
    """One engine.

    Args:
        role: what it plays.
        seed: of the run.
        place: of the run.
        tally: counts what it reports.
        stops: who was stopped when.
    """

    def __init__(self, role: Role, seed: int, place: Place, tally: Tally, stops: Stops) -> None:
        super().__init__(name=f"player-{role.name}", daemon=True)
        self.role = role
        self._seed, self._place = seed, place
        self._tally, self._stops = tally, stops
        self._lock = threading.Lock()
        self._engine: TensorParallelEngine | None = None
        self._grips: list[Grip] = []
        self._is_stopping = False
        self._all_pids: list[Grip] = []
        self._is_doomed = False
        self._over = threading.Event()
        self.number = 0
        self.part: Part | None = None
        self.left: list[str] = []

    @property
    def who(self) -> str:
        """The present incarnation."""
        return f"{self.role.name}#{self.number}"

    def run(self) -> None:
        """Lives until told to end."""
        while not self._over.is_set():
            self.number += 1
            self.part = draw_part(self.role, self._seed, self.number, self._place)
            self._live(self.part)

    def _live(self, part: Part) -> None:
        try:
            engine = start(part, self._place)
        except HostError as error:
            self._tally.trouble(f"{self.who} did not start: {part}: {error}")
            self._over.wait(_RETRY_S)
            return
        try:
            self._serve(engine)
        except (HostError, TimeoutError, FutureTimeoutError) as error:
            self._bury(engine, error)
        finally:
            with self._lock:
                self._engine = None
                for grip in self._grips:
                    self._stops.end(grip.pid)
                self._all_pids += self._grips
                self._grips = []
            engine.job.close()
            self._tally.ended(self.who, engine.size)

    def _serve(self, engine: TensorParallelEngine) -> None:
        for rank in range(engine.size):
            engine.call(rank, f"{_LABOUR}:begin")
        grips = [Grip(self._report(engine, rank)["pid"]) for rank in range(engine.size)]
        with self._lock:
            self._engine, self._grips, self._is_doomed = engine, grips, False
            self._is_stopping = False
        self._tally.event("engine_starts")
        while not self._over.wait(_REPORT_EVERY_S):
            for rank in range(engine.size):
                self._report(engine, rank)
        self._end(engine)

    def _report(self, engine: TensorParallelEngine, rank: int) -> dict[str, Any]:
        found: dict[str, Any] = engine.job.ask(rank, "call", target=f"{_LABOUR}:report").result(
            _ANSWER_S
        )
        pid = found["pid"]
        self._tally.report(self.who, rank, found, self._stops.judge(pid, found["long"]))
        oldest_ns, now_ns = found.get("oldest_ns", 0), time.monotonic_ns()
        if oldest_ns:
            stopped_ns = sum(self._stops.within(g.pid, oldest_ns, now_ns) for g in self._grips)
            if now_ns - oldest_ns - stopped_ns > _STUCK_NS:
                self._tally.event("stuck_requests")
                self._tally.trouble(f"{self.who} ({self.part}): a request does not end")
        return found

    def _end(self, engine: TensorParallelEngine) -> None:
        with self._lock:
            self._engine = None  # nobody hits it any more
        if not all(engine.call(rank, f"{_LABOUR}:finish") for rank in range(engine.size)):
            self._tally.event("stuck_requests")
            self._tally.trouble(f"{self.who} ({self.part}): requests did not end at the end")
        for rank in range(engine.size):
            self._report(engine, rank)
        engine.shutdown()

    def _bury(self, engine: TensorParallelEngine, error: BaseException) -> None:
        with self._lock:
            is_doomed = self._is_doomed
        if is_doomed:
            return
        said = "; ".join(engine.job.causes) or repr(error)
        kind = "failed_offers" if "LoadError" in said else "engine_deaths"
        self._tally.event(kind)
        num_lines = 12
        if isinstance(error, (TimeoutError, FutureTimeoutError)):
            said += f", states {[state_of(grip.pid) for grip in self._grips]}"
            for grip in self._grips:
                grip.signal(signal.SIGUSR1)
            time.sleep(_DUMP_S)
            num_lines = 100
        log = "\n      ".join(engine.job.log().splitlines()[-num_lines:])
        self._tally.trouble(f"{self.who} ({self.part}) died: {said}\n      {log}")

    def hit(self, number: int, target: int = 0) -> Grip | None:
        """Sends a signal to one of its processes.

        Args:
            number: of the signal; SIGKILL ends the incarnation.
            target: which rank, modulo their number.

        Returns:
            The process, or None when nothing is there to be hit.
        """
        with self._lock:
            if self._engine is None or self._is_doomed:
                return None
            grip = self._grips[target % len(self._grips)]
            if number == signal.SIGSTOP and self._is_stopping:
                return None
            if number == signal.SIGKILL:
                self._is_doomed = True
            elif number == signal.SIGSTOP:
                self._stops.begin(grip.pid)
            if not grip.signal(number):
                return None
            self._is_stopping |= number == signal.SIGSTOP
            return grip

    def let_go_on(self, grip: Grip) -> None:
        """Continues a process that ``hit`` or ``arm`` stopped; nothing if it is gone."""
        with self._lock:
            if grip in self._grips:
                grip.signal(signal.SIGCONT)
                self._is_stopping = False
            self._stops.end(grip.pid)

    def kill_at(self, point: str) -> bool:
        """Has the leader kill itself when it passes a point; whether that will happen."""
        with self._lock:
            engine = self._engine
            if engine is None or self._is_doomed:
                return False
            self._is_doomed = True
        # Not waited for, as in stop_at: it may be dead before it answers.
        engine.job.ask(0, "arm", trap=Trap(point, "die"))
        return True

    def stop_at(self, point: str, limit_s: float) -> Grip | None:
        """Has the leader stop itself at a point.

        Only one stop of an engine at a time: another one's would be taken for this one, and the
        engine would stop itself once more when that one is over, with nobody knowing.

        Args:
            point: of the host's iteration.
            limit_s: longest wait for it to get there.

        Returns:
            The stopped process, or None when it did not get there.
        """
        with self._lock:
            engine = self._engine
            if engine is None or self._is_doomed or self._is_stopping:
                return None
            grip, self._is_stopping = self._grips[0], True
        begin_ns = time.monotonic_ns()
        # Its answer is not waited for: the engine may have stopped itself before it is sent.
        engine.job.ask(0, "arm", trap=Trap(point, "stop"))
        while (time.monotonic_ns() - begin_ns) / 1e9 < limit_s and grip.is_alive:
            if state_of(grip.pid) == "T":
                self._stops.begin(grip.pid, begin_ns)
                return grip
            time.sleep(0.005)
        # It may have got there just now, or get there yet: nobody else would continue it.
        self._stops.begin(grip.pid, begin_ns)
        self._disarm(engine, grip)
        self.let_go_on(grip)
        return None

    def _disarm(self, engine: TensorParallelEngine, grip: Grip) -> None:
        for _ in range(_DISARM_TRIES):
            try:
                engine.job.ask(0, "disarm").result(1.0)
                return
            except (HostError, TimeoutError, FutureTimeoutError):
                grip.signal(signal.SIGCONT)

    def ask(self, name: str, target: int) -> int:
        """Has one of its ranks do something to itself.

        Args:
            name: a function of ``labour``.
            target: which rank, modulo their number.

        Returns:
            What it returned, 0 when nothing is there to be asked.
        """
        with self._lock:
            engine = self._engine
        if engine is None:
            return 0
        try:
            answer = engine.job.ask(target % engine.size, "call", target=f"{_LABOUR}:{name}")
            return int(answer.result(_ANSWER_S))
        except (HostError, TimeoutError, FutureTimeoutError):
            return 0

    def end(self) -> None:
        """Has it end in order; ``join`` waits for it."""
        self._over.set()

    def processes_left(self) -> int:
        """Processes of any incarnation that have not exited; lets go of all."""
        left = sum(grip.is_alive for grip in self._all_pids)
        for grip in self._all_pids:
            grip.close()
        self._all_pids = []
        return left
