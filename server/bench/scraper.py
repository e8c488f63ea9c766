"""Who scrapes while something is measured: /metrics, /readyz and /api/status, once a second.

Purpose: one connection each time, as Prometheus, a probe and an open dashboard would; what is
answered is counted, so that a run in which nobody was answered is no run. Must not know: what is
measured meanwhile. Runs in: a thread of the benchmark's process.
"""

from __future__ import annotations

import http.client
import threading
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from server.bench.children import BenchError

PATHS = ("/metrics", "/readyz", "/api/status")
EVERY_S = 1.0
_LIMIT_S = 5.0
"""For one answer."""


@dataclass
class Scraped:
    """What came of it.

    Attributes:
        scrapes: times that all paths were answered.
        took_s: longest time for all of them.
        num_bytes: of all answers.
        not_ready: times that /readyz said no.
        failed: why one was not answered; empty when all were.
    """

    scrapes: int = 0
    took_s: float = 0.0
    num_bytes: int = 0
    not_ready: int = 0
    failed: str = ""


class Scraper:
    """Scrapes from ``start`` to ``stop``.

    Args:
        url: of the pages.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._place = (parts.hostname or "", parts.port or 0)
        self._scraped = Scraped()
        self._ending = threading.Event()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bench-scraper", daemon=True)

    def start(self) -> None:
        """Begins, and waits until it was answered once.

        Raises:
            BenchError: it was not.
        """
        self._thread.start()
        if not self._first.wait(len(PATHS) * _LIMIT_S + 1):
            raise BenchError("the pages do not answer")

    def stop(self) -> Scraped:
        """Ends.

        Returns:
            What came of it.

        Raises:
            BenchError: one was not answered.
        """
        self._ending.set()
        self._thread.join(len(PATHS) * _LIMIT_S + 1)
        if self._scraped.failed:
            raise BenchError(f"scraping failed: {self._scraped.failed}")
        return self._scraped

    def _run(self) -> None:
        due_s = time.monotonic()
        while True:
            began_s = time.monotonic()
            try:
                num_bytes = sum(map(self._get, PATHS))
            except (OSError, http.client.HTTPException) as error:
                self._scraped.failed = f"{type(error).__name__}: {error}"
                self._first.set()
                return
            done = self._scraped
            done.scrapes += 1
            done.num_bytes += num_bytes
            done.took_s = max(done.took_s, time.monotonic() - began_s)
            self._first.set()
            due_s = max(due_s + EVERY_S, began_s)
            if self._ending.wait(max(0.0, due_s - time.monotonic())):
                return

    def _get(self, path: str) -> int:
        connection = http.client.HTTPConnection(*self._place, timeout=_LIMIT_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status == 503 and path == "/readyz":
            self._scraped.not_ready += 1  # an answer like any other, as far as its cost goes
        elif answer.status != 200:
            raise http.client.HTTPException(f"{path} says {answer.status}")
        return len(content)
