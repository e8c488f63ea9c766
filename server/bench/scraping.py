"""The main figures with and without somebody who scrapes the pages every second.

Purpose: one server with its own web process; stretches of lookups and of copies follow one another,
in turns with and without a scraper, so that drift of the machine hits both alike. Must not know:
how figures are judged or shown. Runs in: the benchmark's main thread.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from protocol import endpoint
from server import asking
from server.bench import samples
from server.bench.children import BenchError, Child, Generator, Workplace
from server.bench.launch import Server
from server.bench.noise import Turn
from server.bench.run import LOOKUP_BLOCKS, Begin, joined, stopped
from server.bench.scraper import Scraped, Scraper
from server.bench.sizing import PAGE_BYTES, PAGES_PER_REQUEST, Sizing

_SMALL_PAGE_BYTES = 4096
_ASKED_BYTES = 96 << 20
"""An extent for what is asked for, besides the arena that copies are measured in."""

_REPLY_S = 60.0
_PAGES_S = 20.0
"""Until the pages are served."""


@dataclass(frozen=True)
class Turns:
    """How much is measured.

    Attributes:
        turns: with a scraper; as many without.
        lookups: in each; some seconds' worth, so that scrapes fall among them.
        rounds: of stores and retrieves in each.
    """

    turns: int
    lookups: int
    rounds: int


TURNS = {
    False: Turns(turns=8, lookups=4000, rounds=6),
    True: Turns(turns=3, lookups=1500, rounds=3),
}
"""By whether it is the quick run."""


@dataclass
class ScrapeRun:
    """One run.

    Attributes:
        place: its folders and children.
        sizing: its sizes.
        turns: how much is measured.
        seed: of tokens and orders.
        begin: told of each step.
    """

    place: Workplace
    sizing: Sizing
    turns: Turns
    seed: int
    begin: Begin

    def measure(self) -> tuple[dict[bool, list[Turn]], dict[str, Any]]:
        """Measures everything.

        Returns:
            The turns without and with a scraper, in their order, and what was taken down.

        Raises:
            BenchError: something could not be measured, or nothing was scraped.
        """
        arena_bytes = self.sizing.arena_bytes + _ASKED_BYTES
        options = ("--http", f"127.0.0.1:{_free_port()}")
        server = Server(self.place, "scraped", arena_bytes, options)
        server.wait_ready()
        url = _pages_of(server)
        echo = Child(self.place, "echo", ["-m", "adapter.conformance.loadgen", "echo", self._echo])
        echo.line(_REPLY_S)
        asker, mover = self._engines(server)
        found: dict[bool, list[Turn]] = {False: [], True: []}
        scraped: list[Scraped] = []
        progress = self.begin("with and without scraping")
        for number in range(2 * self.turns.turns):
            # Without, with; with, without: neither is always the first of its pair.
            is_scraped = number % 4 in (1, 2)
            scraper = Scraper(url) if is_scraped else None
            if scraper is not None:
                scraper.start()
            try:
                found[is_scraped].append(self._turn(server, asker, mover, number))
            finally:
                if scraper is not None:
                    scraped.append(scraper.stop())
            progress(number + 1, 2 * self.turns.turns)
        for engine in (asker, mover):
            engine.order("leave", _REPLY_S)
            engine.stop()
        echo.stop()
        stopped(server)
        taken = {
            "turns": asdict(self.turns),
            "without": [asdict(turn) for turn in found[False]],
            "scraped": [asdict(turn) for turn in found[True]],
            "scrapes": [asdict(one) for one in scraped],
        }
        return found, taken

    @property
    def _echo(self) -> str:
        return f"ipc://{self.place.runtime_dir}/echo.sock"

    def _engines(self, server: Server) -> tuple[Generator, Generator]:
        """One that asks, and one that moves pages of an arena that was written once."""
        asker = Generator(self.place, "asker")
        joined(asker, server, "bench-lookup", _SMALL_PAGE_BYTES, LOOKUP_BLOCKS)
        mover = Generator(self.place, "mover")
        scratch = str(self.place.shm_dir)
        joined(mover, server, "bench-move", PAGE_BYTES, self.sizing.pool_pages, scratch)
        mover.order(
            "fill",
            _REPLY_S,
            self.begin("cold slots"),
            num_requests=self.sizing.fill_requests,
            pages_per_request=PAGES_PER_REQUEST,
            scratch_dir=scratch,
            pid=server.pid,
            seed=self.seed,
        )
        return asker, mover

    def _turn(self, server: Server, asker: Generator, mover: Generator, number: int) -> Turn:
        seed = self.seed + number  # what is asked for is stored first, and new each time
        asked = asker.order(
            "lookup",
            _REPLY_S,
            num_blocks=LOOKUP_BLOCKS,
            calls=self.turns.lookups,
            cold_calls=1,
            echo=self._echo,
            seed=seed,
        )
        moved = mover.order(
            "rounds",
            _REPLY_S,
            rounds=self.turns.rounds,
            num_requests=self.sizing.requests_per_round,
            pages_per_request=PAGES_PER_REQUEST,
            pid=server.pid,
            seed=seed,
        )
        return turn_of(asked, moved)


def turn_of(asked: Mapping[str, Any], moved: Mapping[str, Any]) -> Turn:
    """What one turn comes to.

    Args:
        asked: result of its lookups.
        moved: result of its rounds.
    """
    lookup = samples.latency(asked["lookup_ms"])
    seconds, num_bytes = moved["seconds"], moved["num_bytes"]
    return Turn(
        lookup_p50_ms=lookup.p50_ms,
        lookup_p99_ms=lookup.p99_ms,
        echo_p50_ms=median(asked["lookup_echo_ms"]),
        store_ratio=samples.transfer(seconds, "store", num_bytes).ratio,
        retrieve_ratio=samples.transfer(seconds, "retrieve", num_bytes).ratio,
        loop_share=moved["loop_share"],
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
    return port


def _pages_of(server: Server) -> str:
    """URL of the pages that the server's own web process serves."""
    side_path = endpoint.parse(server.url).side_path("")
    end_s = time.monotonic() + _PAGES_S
    with asking.connected(side_path, _PAGES_S, "bench") as asker:
        while time.monotonic() < end_s:
            url = asker.status(_PAGES_S).server.http
            if url:
                return url
            time.sleep(0.1)
    raise BenchError("the server serves no pages")
