from pathlib import Path

import pytest

from server.bench.children import BenchError, workplace
from server.bench.footprint import mib
from server.bench.launch import Server
from tests.wire.process import wait_until


def test_a_server_starts_is_weighed_and_ends_cleanly() -> None:
    with workplace() as place:
        server = Server(place, "one", 64 << 20)
        assert server.url in server.wait_ready()
        # The server does not wait for its copier, which on a busy machine is still being read in.
        assert wait_until(
            lambda: [5 < mib(w.rss_bytes) < 500 for w in server.weights()] == [True] * 2
        )
        assert server.heavy() == []
        assert server.arena_dir.is_dir()
        assert server.stop() == 0
        assert not Path(server.url.removeprefix("ipc://")).exists()
        with pytest.raises(BenchError, match="cannot be weighed"):
            server.weights()


def test_why_a_server_did_not_start_is_told() -> None:
    with workplace() as place:
        server = Server(place, "huge", 1 << 43)
        with pytest.raises(BenchError, match=r"huge ended early \(exit code 2\): .*does not fit"):
            server.wait_ready()
