"""Runs a soak: one server, many clients in a few processes, samples once a second.

Knows the server's command line and ``/proc``. Runs in the soak's main process, or in a test's.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.messages import Stats, StatsReply
from tests.soak.figures import Latencies, Minute, Sample, slope_per_min, verdicts, warm
from tests.soak.worker import CHAIN_CHUNKS, PAGE_BYTES
from tests.wire.client import Engine
from tests.wire.load import anon_bytes, num_descriptors
from tests.wire.process import ROOT, ServerProcess

ARENA_MIB = 128
TIMES_THE_ARENA = 10
CLIENTS_PER_PROCESS = 16
_MIB = 1 << 20
_START_LIMIT_S = 60.0


@dataclass
class Soak:
    """What was seen.

    Attributes:
        clients: how many worked.
        seed: of their choices.
        seconds: how long.
        samples: of the server, once a second.
        minutes: of the clients.
        figures: of the server's own counting, at the end.
        left: what the server held for clients once all were gone.
    """

    clients: int
    seed: int
    seconds: float
    samples: list[Sample] = field(default_factory=list)
    minutes: list[Minute] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """For JSON and for a verdict."""
        steady = warm(self.samples, self.seconds)
        claims = verdicts(self.samples, self.minutes, self.seconds)
        claims["nothing is left of the clients"] = not any(self.left.values())
        return {
            "clients": self.clients,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "arena_mib": ARENA_MIB,
            "working_set_mib": ARENA_MIB * TIMES_THE_ARENA,
            "rss_anon_first_mib": round(steady[0].anon_mib, 2),
            "rss_anon_last_mib": round(steady[-1].anon_mib, 2),
            "rss_slope_mib_per_min": round(slope_per_min(steady), 3),
            "descriptors": [min(s.descriptors for s in steady), max(s.descriptors for s in steady)],
            "minutes": [_told(minute) for minute in self.minutes],
            "loop": {k: v for k, v in self.figures.items() if k.startswith("loop_")},
            "left": self.left,
            "claims": claims,
            "held": all(claims.values()),
        }


def _told(minute: Minute) -> dict[str, Any]:
    asked = minute.counts["loaded_pages"] + minute.counts["missed_pages"]
    return {
        **minute.counts,
        "hit_ratio": round(minute.counts["loaded_pages"] / max(1, asked), 3),
        "lookup_p50_ms": minute.lookups.percentile_ms(0.5),
        "lookup_p99_ms": minute.lookups.percentile_ms(0.99),
    }


def soak(
    seconds: float,
    clients: int,
    seed: int,
    say: Callable[[str], None] = lambda _: None,
    minute_s: float = 60.0,
) -> Soak:
    """Runs one.

    Args:
        seconds: of work.
        clients: how many.
        seed: of their choices.
        say: told one line per minute.
        minute_s: length of what is reported together.

    Raises:
        RuntimeError: a worker or the server ended before its time.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvk-")))
        arena = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvk-", dir="/dev/shm"))
        sizes = ("--l1-size", f"{ARENA_MIB}M", "--extent-size", "8M")
        server = stack.enter_context(ServerProcess(folder, Path(arena) / "a", *sizes))
        done = Soak(clients, seed, seconds)
        with _workers(server, clients, seed) as workers:
            _watch(server, workers, done, say, minute_s)
        with Engine(server.url, server.side_path) as engine:
            deadline_s = time.monotonic() + 10
            while time.monotonic() < deadline_s:
                done.figures = engine.wire.call(Stats(), StatsReply).values
                done.left = {name: done.figures[name] for name in _OWED}
                done.left["processes"] = done.figures["processes"] - 1
                if not any(done.left.values()):
                    break
                time.sleep(0.05)
        return done


_OWED = ("leases", "pinned_slots", "slots_reserved", "stores", "copies_in_flight", "sessions")


@contextmanager
def _workers(
    server: ServerProcess, clients: int, seed: int
) -> Iterator[list[subprocess.Popen[bytes]]]:
    chains = ARENA_MIB * TIMES_THE_ARENA * _MIB // (CHAIN_CHUNKS * PAGE_BYTES)
    made: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(0, clients, CLIENTS_PER_PROCESS):
            count = min(CLIENTS_PER_PROCESS, clients - number)
            where = (server.url, server.side_path)
            numbers = map(str, (count, chains, seed * 100 + number))
            command = [sys.executable, "-m", "tests.soak.worker", *where, *numbers]
            made.append(
                subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
        yield made
    finally:
        for worker in made:
            worker.kill()
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                if pipe is not None:
                    pipe.close()


def _watch(
    server: ServerProcess,
    workers: list[subprocess.Popen[bytes]],
    done: Soak,
    say: Callable[[str], None],
    minute_s: float,
) -> None:
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            assert worker.stdout is not None
            selector.register(worker.stdout, selectors.EVENT_READ)
            line = worker.stdout.readline()  # its clients are registered and at work
            if not line:
                raise RuntimeError("a worker did not start")
        begun_s = time.monotonic()
        now_s = 0.0
        while now_s < done.seconds:
            now_s = time.monotonic() - begun_s
            if len(done.minutes) <= now_s / minute_s:
                _report(server, done, say)
                done.minutes.append(Minute())
            for key, _ in selector.select(1.0):
                _take(key.fileobj, done.minutes[-1])
            if server.process.poll() is not None:
                raise RuntimeError(f"the server ended: {server.log()}")
            if not done.samples or now_s - done.samples[-1].at_s >= 1:
                mib = anon_bytes(server.pid) / _MIB
                done.samples.append(Sample(now_s, mib, num_descriptors(server.pid)))
        done.seconds = now_s
        _report(server, done, say)


def _take(pipe: Any, minute: Minute) -> None:
    line = pipe.readline()
    if not line:
        raise RuntimeError("a worker ended")
    plain = json.loads(line)
    minute.counts.update(plain["counts"])
    minute.lookups.merge(Latencies(plain["lookups"]))


def _report(server: ServerProcess, done: Soak, say: Callable[[str], None]) -> None:
    if not done.minutes or not done.samples:
        return
    told, last = _told(done.minutes[-1]), done.samples[-1]
    say(
        f"minute {len(done.minutes)}: {told.get('lookups', 0)} LOOKUPs, "
        f"p50 {told['lookup_p50_ms']} ms, p99 {told['lookup_p99_ms']} ms, "
        f"hit ratio {told['hit_ratio']}, RssAnon {last.anon_mib:.1f} MiB, "
        f"{last.descriptors} descriptors, load {os.getloadavg()[0]:.1f}"
    )
