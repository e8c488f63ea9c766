"""The scraper of a run: it is answered before anything is measured, and says so when it is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from server.bench import scraper
from server.bench.children import BenchError
from server.bench.scraper import PATHS, Scraper
from tests.wire.process import wait_until


@contextmanager
def pages(codes: dict[str, int]) -> Iterator[tuple[str, list[str]]]:
    """Pages that answer with these codes, else 200; what was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(codes.get(self.path, 200))
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"page")

        def log_request(self, *args: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", asked
        finally:
            server.shutdown()
            thread.join(5)


def test_all_pages_are_asked_for_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scraper, "EVERY_S", 0.05)
    with pages({"/readyz": 503}) as (url, asked):
        one = Scraper(url)
        one.start()
        assert asked[: len(PATHS)] == list(PATHS), "answered before it begins"
        assert wait_until(lambda: len(asked) >= 4 * len(PATHS), 5, every_s=0.01)
        done = one.stop()
        count = len(asked)
        time.sleep(0.1)
        assert len(asked) == count, "it has ended"
    assert done.scrapes == done.not_ready == count // len(PATHS) >= 4
    assert done.num_bytes == 4 * count
    assert 0 < done.took_s < 5


def test_pages_that_fail_end_the_run() -> None:
    with pages({"/metrics": 500}) as (url, _):
        one = Scraper(url)
        one.start()
        with pytest.raises(BenchError, match="/metrics says 500"):
            one.stop()


def test_nobody_there_ends_the_run() -> None:
    with pages({}) as (url, _):
        pass
    one = Scraper(url)
    one.start()
    with pytest.raises(BenchError, match="refused"):
        one.stop()
