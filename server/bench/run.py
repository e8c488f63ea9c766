"""The run: which servers and load generators do what, in which order.

Purpose: one server after the other is started and timed; the last of them is weighed while it
idles and then asked; another one, with an arena that nobody has touched, is filled and then moves
pages, alone and under control traffic of others. Must not know: how figures are judged or shown.
Runs in: the benchmark's main thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from server.bench import footprint, samples
from server.bench.children import BenchError, Child, Generator, Progress, Workplace
from server.bench.figures import LOADS, Bandwidth, Measured
from server.bench.launch import Server
from server.bench.sizing import PAGE_BYTES, PAGES_PER_REQUEST, Sizing

LOOKUP_BLOCKS = 4096
"""128k tokens in blocks of 32."""

_SMALL_PAGE_BYTES = 4096
_FLOOD_PAGES = 16
_IDLE_S = 1.0
_START_S = 30.0
_REPLY_S = 60.0
"""Longest silence of a child between two signs of progress."""

Begin = Callable[[str], Progress]
"""Told the name of each step; returns what is told how far the step is."""


@dataclass
class Run:
    """One run of the benchmark.

    Attributes:
        place: its folders and children.
        sizing: its sizes.
        seed: of tokens and orders.
        begin: told of each step.
    """

    place: Workplace
    sizing: Sizing
    seed: int
    begin: Begin

    def measure(self) -> tuple[Measured, dict[str, Any]]:
        """Measures everything.

        Returns:
            The figures, and what was taken down of single rounds.

        Raises:
            BenchError: something could not be measured.
        """
        server, start_s = self._starts()
        idle = self._idle(server)
        latency = self._latency(server)
        used = footprint.total(server.weights())
        stopped(server)
        moved = self._bandwidth()
        measured = Measured(
            warm=moved["warm"],
            single=moved["single"],
            cold=moved["cold"],
            fill_s=moved["fill_s"],
            fill_bytes=moved["fill_bytes"],
            **{name: samples.latency(times) for name, times in latency.items()},
            start_s=median(start_s),
            idle_rss_mib=footprint.mib(footprint.total(idle).rss_bytes),
            idle_main_rss_mib=footprint.mib(idle[0].rss_bytes),
            heavy=tuple(moved["heavy"]),
        )
        taken = {
            "start_s": start_s,
            "latency": {name: asdict(samples.latency(one)) for name, one in latency.items()},
            "idle_weights": [asdict(weight) for weight in idle],
            "used_rss_mib": footprint.mib(used.rss_bytes),
            **moved["samples"],
        }
        return measured, taken

    def _starts(self) -> tuple[Server, list[float]]:
        progress, count = self.begin("starting servers"), self.sizing.starts
        probe = Generator(self.place, "probe")
        took_s = []
        for number in range(count - 1):
            server, start_s = self._start(probe, f"start-{number}")
            took_s.append(start_s)
            stopped(server)
            progress(number + 1, count)
        server, start_s = self._start(probe, "start-last")
        progress(count, count)
        probe.stop()
        return server, [*took_s, start_s]

    def _start(self, probe: Generator, name: str) -> tuple[Server, float]:
        # The probe waits for the socket before the server is there, so nothing is missed.
        probe.begin("probe", url=Server.url_of(self.place, name), timeout_s=_START_S)
        server = Server(self.place, name, self.sizing.start_arena_bytes)
        answered_ns = probe.result(_REPLY_S)["answered_ns"]
        server.wait_ready()
        return server, (answered_ns - server.started_ns) / 1e9

    def _idle(self, server: Server) -> list[footprint.Weight]:
        progress = self.begin("weighing an idle server")
        time.sleep(_IDLE_S)
        weights = server.weights()
        progress(1, 1)
        return weights

    def _latency(self, server: Server) -> dict[str, list[float]]:
        echo_url = f"ipc://{self.place.runtime_dir}/echo.sock"
        echo = Child(self.place, "echo", ["-m", "adapter.conformance.loadgen", "echo", echo_url])
        echo.line(_REPLY_S)
        asker = Generator(self.place, "asker")
        joined(asker, server, "bench-lookup", _SMALL_PAGE_BYTES, LOOKUP_BLOCKS)
        ping = asker.order(
            "ping", _REPLY_S, self.begin("pings"), echo=echo_url, calls=self.sizing.calls
        )
        lookup = asker.order(
            "lookup",
            _REPLY_S,
            self.begin("lookups of 128k tokens"),
            echo=echo_url,
            num_blocks=LOOKUP_BLOCKS,
            calls=self.sizing.lookups,
            cold_calls=self.sizing.cold_lookups,
            seed=self.seed,
        )
        asker.order("leave", _REPLY_S)
        asker.stop()
        echo.stop()
        return {
            "ping": ping["ping_ms"],
            "echo": ping["echo_ms"],
            "lookup": lookup["lookup_ms"],
            "lookup_echo": lookup["lookup_echo_ms"],
            "lookup_cold": lookup["lookup_cold_ms"],
            "hashing": lookup["hashing_ms"],
        }

    def _bandwidth(self) -> dict[str, Any]:
        server = Server(self.place, "mover", self.sizing.arena_bytes)
        server.wait_ready()
        engine = Generator(self.place, "engine")
        num_pages = self.sizing.pool_pages
        scratch = str(self.place.shm_dir)
        joined(engine, server, "bench-move", PAGE_BYTES, num_pages, scratch)
        fill = engine.order(
            "fill",
            _REPLY_S,
            self.begin("cold slots"),
            num_requests=self.sizing.fill_requests,
            pages_per_request=PAGES_PER_REQUEST,
            scratch_dir=scratch,
            pid=server.pid,
            seed=self.seed,
        )
        rounds = {f"load_{load}": self._loaded_rounds(server, engine, load) for load in LOADS}
        single = self._rounds(server, engine, "one page a request", num_pages, 1)
        heavy = server.heavy()
        engine.order("leave", _REPLY_S)
        engine.stop()
        stopped(server)
        return {
            "warm": {load: _bandwidth(rounds[f"load_{load}"]) for load in LOADS},
            "single": _bandwidth(single),
            "cold": _bandwidth(fill),
            "fill_s": fill["fill_s"],
            "fill_bytes": fill["num_bytes"] * self.sizing.fill_requests,
            "heavy": heavy,
            "samples": {"cold": fill, **rounds, "one_page": single},
        }

    def _loaded_rounds(self, server: Server, engine: Generator, load: int) -> dict[str, Any]:
        requests = self.sizing.requests_per_round
        if not load:
            return self._rounds(server, engine, "warm slots", requests, PAGES_PER_REQUEST)
        flood = Generator(self.place, f"flood-{load}")
        joined(flood, server, "bench-move", PAGE_BYTES, _FLOOD_PAGES)
        flood.begin("flood", pid=server.pid, share=load / 100, seed=self.seed)
        flood.await_progress(_REPLY_S)
        name = f"warm slots, loop at {load} %"
        taken = self._rounds(server, engine, name, requests, PAGES_PER_REQUEST)
        flood.begin("leave")
        taken["flood"] = flood.result(_REPLY_S)
        flood.result(_REPLY_S)
        flood.stop()
        return taken

    def _rounds(
        self, server: Server, engine: Generator, name: str, num_requests: int, num_pages: int
    ) -> dict[str, Any]:
        return engine.order(
            "rounds",
            _REPLY_S,
            self.begin(name),
            rounds=self.sizing.rounds,
            num_requests=num_requests,
            pages_per_request=num_pages,
            pid=server.pid,
            seed=self.seed,
        )


def joined(
    child: Generator,
    server: Server,
    model_id: str,
    page_bytes: int,
    num_pages: int,
    scratch_dir: str = "",
) -> None:
    """Has a load generator register a pool.

    Args:
        child: which.
        server: with whom.
        model_id: names the namespace.
        page_bytes: bytes per page.
        num_pages: pages in the pool.
        scratch_dir: folder for plain copies; none are made without it.

    Raises:
        BenchError: it could not.
    """
    child.order(
        "join",
        _REPLY_S,
        url=server.url,
        model_id=model_id,
        page_bytes=page_bytes,
        num_pages=num_pages,
        scratch_dir=scratch_dir,
        timeout_s=_START_S,
    )


def stopped(server: Server) -> None:
    """Ends a server.

    Args:
        server: which.

    Raises:
        BenchError: it did not end well.
    """
    code = server.stop()
    if code != 0:
        raise BenchError(f"{server.name} ended with exit code {code} on SIGTERM")


def _bandwidth(taken: dict[str, Any]) -> Bandwidth:
    seconds, num_bytes = taken["seconds"], taken["num_bytes"]
    return Bandwidth(
        store=samples.transfer(seconds, "store", num_bytes),
        retrieve=samples.transfer(seconds, "retrieve", num_bytes),
        loop_share=taken["loop_share"],
    )
