"""What a busy lower tier costs a LOOKUP that L1 answers: three arms in turn, ratios of each round.

    python -m tests.benchmarks.bench_tiers [--rounds N] [--seconds S] [--l2 URL] [--json]

A program, not a test: it judges nothing, since a busy machine would decide. Arms: a server without
tiers that nobody else uses (``idle``); the same under load (``loaded``); a server with a tier under
the same load, which keeps that tier saturated (``tier``). The load, a process of its own, stores
chains and asks for old ones, four at a time; in the last arm these come from the tier. What is
measured is a LOOKUP of 64 chunks that L1 holds, at the client. Knows the wire only.
"""

from __future__ import annotations

import json
import select
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click

from protocol.messages import EndSession, LookupReply, QueryPrefetchStatus, Released
from server import asking
from tests.tiers.rig import UP_S, num_up
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import ROOT, ServerProcess, wait_until

MIB: Final = 1 << 20
PAGE_BYTES: Final = MIB
CHAIN: Final = 16
NUM_COLD: Final = 96
"""Chains of the load: 1.5 GiB, three times L1."""

NUM_HOT: Final = 64
L1: Final = "512M"
IN_FLIGHT: Final = 4
STORE_EVERY: Final = 4
"""One chain in so many is stored anew: the tier writes while it reads."""

WAIT_MS: Final = 10_000
PAUSE_S: Final = 0.002
"""Between two LOOKUPs that are measured."""


def cold(number: int) -> list[bytes]:
    """Keys of a chain of the load."""
    return make_keys(number % NUM_COLD, CHAIN)


class Load:
    """The engine that keeps a server busy.

    Args:
        url: of the server.
        side_path: its side socket.
    """

    def __init__(self, url: str, side_path: str) -> None:
        self._engine = Engine(url, side_path, make_namespace(PAGE_BYTES, "bench/load"), CHAIN)
        self._engine.register()
        self._engine.pump_while_waiting()
        self._engine.pages[:] = 7
        self._number = 0
        self._fresh = NUM_COLD

    def fill(self) -> None:
        """Stores every chain once."""
        for number in range(NUM_COLD):
            self._store(cold(number))

    def _store(self, keys: list[bytes]) -> None:
        held, deadline_s = 0, time.monotonic() + 30.0
        while held < CHAIN and time.monotonic() < deadline_s:
            held = self._engine.save(keys, list(range(CHAIN)))

    def go_on(self, is_over: Callable[[], bool]) -> int:
        """Asks for chains, several at a time, and stores some.

        Args:
            is_over: asked between two of them.

        Returns:
            Chunks that came.
        """
        came, waiting = 0, deque[tuple[int, int]]()
        while not is_over():
            while len(waiting) < IN_FLIGHT:
                waiting.append(self._ask())
            request, seq = waiting.popleft()
            body = self._engine.wire.reply(seq, WAIT_MS / 1000 + 5).body
            came += body.ready if isinstance(body, LookupReply) else 0
            end = EndSession(session=self._engine.session, request=request)
            self._engine.wire.call(end, Released)
            if not request % STORE_EVERY:
                self._fresh += 1
                self._store(make_keys(self._fresh, CHAIN))
        return came

    def _ask(self) -> tuple[int, int]:
        self._number += 1
        engine = self._engine
        found = engine.lookup(cold(self._number), self._number)
        wait_ms = 0 if found.final else WAIT_MS
        body = QueryPrefetchStatus(session=engine.session, request=self._number, wait_ms=wait_ms)
        return self._number, engine.wire.submit(body, WAIT_MS / 1000 + 5)


def run_load(url: str, side_path: str) -> None:
    """The load's process: ``go`` on stdin begins it, any other line ends it."""
    load = Load(url, side_path)
    load.fill()
    print("filled", flush=True)
    while sys.stdin.readline().strip() == "go":
        came = load.go_on(lambda: bool(select.select([sys.stdin], [], [], 0)[0]))
        sys.stdin.readline()
        print(came, flush=True)


class Arm:
    """A server, an engine that measures, and the process that loads it.

    Args:
        folder: for sockets.
        arena_dir: for the arena.
        l2: URL of a tier, or none.
    """

    def __init__(self, folder: Path, arena_dir: Path, l2: str) -> None:
        folder.mkdir()
        tiers = ("--l2", l2, "--promote-deadline", "10s") if l2 else ()
        self._server = ServerProcess(folder, arena_dir, "--l1-size", L1, *tiers)
        assert wait_until(lambda: num_up(self._server) == bool(l2), UP_S, 0.02)
        names = [sys.executable, "-m", "tests.benchmarks.bench_tiers"]
        self._load = subprocess.Popen(
            [*names, "--load", self._server.url, self._server.side_path],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._keys = make_keys(1_000_000, NUM_HOT)
        namespace = make_namespace(16_384, "bench/hot")
        self._engine = Engine(self._server.url, self._server.side_path, namespace, NUM_HOT)
        self._engine.register()
        self._engine.pump_while_waiting()

    def ready(self) -> None:
        """Waits until the load has stored what it asks for, and keeps the hot chunks."""
        assert self._line() == "filled"
        assert self._engine.save(self._keys, list(range(NUM_HOT))) == NUM_HOT
        time.sleep(2.0)

    def _line(self) -> str:
        assert self._load.stdout is not None
        return self._load.stdout.readline().strip()

    def _say(self, word: str) -> None:
        assert self._load.stdin is not None
        self._load.stdin.write(word + "\n")
        self._load.stdin.flush()

    def measure(self, seconds: float) -> list[float]:
        """Microseconds of LOOKUPs, one after the other."""
        figures, engine = [], self._engine
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            begin = time.perf_counter_ns()
            found = engine.lookup(self._keys, 1)
            figures.append((time.perf_counter_ns() - begin) / 1000)
            assert found.ready == NUM_HOT
            assert found.final
            engine.wire.call(EndSession(session=engine.session, request=1), Released)
            engine.pump()
            time.sleep(PAUSE_S)
        return figures

    def measure_loaded(self, seconds: float) -> tuple[list[float], float]:
        """The same beside the load; and the MB/s that went to and from the tier meanwhile."""
        before, begin_s = self._moved(), time.monotonic()
        self._say("go")
        time.sleep(0.3)
        figures = self.measure(seconds)
        moved_s = time.monotonic() - begin_s
        moved = (self._moved() - before) / moved_s / 1e6
        self._say("stop")
        self._line()
        return figures, moved

    def _moved(self) -> int:
        values = asking.stats(self._server.side_path, 10.0)
        return sum(values[name] for name in values if name.endswith(("_get_bytes", "_put_bytes")))

    def close(self) -> None:
        """Ends everything."""
        self._say("end")
        self._load.wait(30)
        self._engine.close()
        self._server.terminate()


@dataclass(frozen=True)
class Round:
    """LOOKUPs of one round, microseconds.

    Attributes:
        idle: without tiers and load.
        loaded: without tiers.
        tier: with a saturated tier.
        moved_mb_s: what the tier moved meanwhile.
    """

    idle: list[float]
    loaded: list[float]
    tier: list[float]
    moved_mb_s: float

    def figures(self) -> dict[str, float]:
        """Quantiles of each arm, and ratios of the last one to the others."""
        found = {"moved_mb_s": self.moved_mb_s}
        for name in ("idle", "loaded", "tier"):
            cuts = statistics.quantiles(getattr(self, name), n=100)
            found[f"{name}_p50_us"], found[f"{name}_p99_us"] = cuts[49], cuts[98]
        for name in ("idle", "loaded"):
            for cut in ("p50", "p99"):
                ratio = found[f"tier_{cut}_us"] / found[f"{name}_{cut}_us"]
                found[f"{cut}_to_{name}"] = ratio
        return found


@contextmanager
def arms(l2: str) -> Iterator[tuple[Arm, Arm]]:
    """A server without tiers and one with one."""
    with (
        TemporaryDirectory(prefix="kvk-") as folder,
        TemporaryDirectory(prefix="kvk-", dir="/dev/shm") as shared,
    ):
        url = l2 or f"disk:{folder}/tier?size=8G"
        plain = Arm(Path(folder) / "p", Path(shared) / "p", "")
        tiered = Arm(Path(folder) / "t", Path(shared) / "t", url)
        plain.ready()
        tiered.ready()
        try:
            yield plain, tiered
        finally:
            plain.close()
            tiered.close()


def play(l2: str, rounds: int, seconds: float) -> list[dict[str, float]]:
    """All rounds, arms in turn."""
    found = []
    with arms(l2) as (plain, tiered):
        for _ in range(rounds):
            idle = plain.measure(seconds)
            loaded, _ = plain.measure_loaded(seconds)
            tier, moved = tiered.measure_loaded(seconds)
            found.append(Round(idle, loaded, tier, moved).figures())
    return found


@click.command()
@click.option("--rounds", default=10, show_default=True)
@click.option("--seconds", default=4.0, show_default=True, help="of each arm")
@click.option("--l2", default="", help="URL of the tier; a disk in the temporary folder without")
@click.option("--json", "as_json", is_flag=True)
@click.option("--load", nargs=2, default=None, hidden=True)
def main(rounds: int, seconds: float, l2: str, as_json: bool, load: tuple[str, str] | None) -> None:
    """Measures, and prints medians over the rounds."""
    if load is not None:
        run_load(*load)
        return
    found = play(l2, rounds, seconds)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for name in found[0]:
        values = sorted(one[name] for one in found)
        print(f"{name:16}{statistics.median(values):10.2f}  ({values[0]:.2f} to {values[-1]:.2f})")


if __name__ == "__main__":
    main()
