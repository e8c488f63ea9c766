import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.conformance.loadgen import latency
from adapter.conformance.loadgen.engine import Engine
from adapter.conformance.loadgen.orders import Lookup, Ping
from protocol.messages import Done, LookupReply
from protocol.messages import Lookup as LookupRequest
from protocol.messages import Ping as PingRequest
from tests.adapter.conformance.loadgen.conftest import NUM_PAGES


@pytest.fixture
def echo(short_dir: Path) -> Iterator[str]:
    url = f"ipc://{short_dir}/echo.sock"
    with subprocess.Popen(
        [sys.executable, "-m", "adapter.conformance.loadgen", "echo", url], stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()
        try:
            yield url
        finally:
            server.kill()


def test_pings_and_echoes_take_turns(engine: Engine, echo: str) -> None:
    found = latency.run_ping(engine, Ping(echo=echo, calls=5), lambda done, of: None)
    assert {name: len(times) for name, times in found.items()} == {"ping_ms": 5, "echo_ms": 5}
    assert min(found["ping_ms"] + found["echo_ms"]) > 0


def test_lookups(engine: Engine, echo: str) -> None:
    order = Lookup(echo=echo, num_blocks=NUM_PAGES, calls=4, cold_calls=3, seed=1)
    steps = []
    found = latency.run_lookup(engine, order, lambda done, of: steps.append((done, of)))
    lengths = {name: len(times) for name, times in found.items() if name.endswith("_ms")}
    assert lengths == {
        "lookup_ms": 4,
        "lookup_echo_ms": 4,
        "lookup_cold_ms": 3,
        "hashing_ms": 3,
    }
    assert found["request_bytes"] > NUM_PAGES * 16 > found["reply_bytes"]
    assert steps[-1] == (7, 7)


def test_frame_lengths_are_those_of_the_wire() -> None:
    request, reply = latency.frame_bytes(PingRequest(), Done())
    assert request > reply > 0
    keys = bytes(16 * 4096)
    asked = LookupRequest(session=1, request=1, start=0, keys=keys)
    request, reply = latency.frame_bytes(asked, LookupReply(lease=bytes(16), ready=4096))
    assert 65_536 < request < 65_800
    assert 30 < reply < 120
