import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.conformance.loadgen.echo import EchoClient, frame_for


@pytest.fixture
def endpoint(short_dir: Path) -> Iterator[str]:
    url = f"ipc://{short_dir}/echo.sock"
    with subprocess.Popen(
        [sys.executable, "-m", "adapter.conformance.loadgen", "echo", url], stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        assert b"bound" in server.stdout.readline()
        try:
            yield url
        finally:
            server.kill()


def test_replies_have_the_length_that_was_asked_for(endpoint: str) -> None:
    client = EchoClient(endpoint)
    try:
        for request_bytes, reply_bytes in ((60, 30), (65_600, 70), (4, 4), (100_000, 0)):
            frame = frame_for(request_bytes, reply_bytes)
            assert len(frame) == request_bytes
            assert client.call(frame) == frame[:reply_bytes]
    finally:
        client.close()


def test_nobody_there(short_dir: Path) -> None:
    client = EchoClient(f"ipc://{short_dir}/nobody.sock", timeout_s=0.05)
    try:
        with pytest.raises(TimeoutError):
            client.call(b"x")
    finally:
        client.close()


@pytest.mark.parametrize(("request_bytes", "reply_bytes"), [(3, 0), (10, 11), (10, -1)])
def test_lengths_that_cannot_be_served(request_bytes: int, reply_bytes: int) -> None:
    with pytest.raises(ValueError, match="cannot answer"):
        frame_for(request_bytes, reply_bytes)
