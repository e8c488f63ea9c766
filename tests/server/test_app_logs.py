"""What a real server writes to stderr: every line an object, the request named, floods bounded."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import zmq

from protocol import frames
from protocol.errors import ErrorCode
from protocol.messages import Store
from tests.wire.client import Engine, make_keys
from tests.wire.process import ServerProcess, wait_until

JSON = ("--l1-size", "64M", "--extent-size", "4M", "--log-format", "json", "--log-level", "INFO")


def told(server: ServerProcess) -> list[dict[str, Any]]:
    """Every line of stderr; one that is no JSON fails the test."""
    return [json.loads(line) for line in server.log().splitlines()]


def of(server: ServerProcess, event: str) -> list[dict[str, Any]]:
    return [line for line in told(server) if line["event"] == event]


def refuse(engine: Engine, request: int) -> ErrorCode:
    """A STORE whose pages are fewer than its chunks need."""
    body = Store(
        session=engine.session,
        store=request + 1,
        request=request,
        shard=0,
        start=0,
        parent=b"",
        keys=b"".join(make_keys(request, 3)),
        pages=bytes(4),
    )
    error = engine.wire.reply(engine.wire.submit(body)).error
    assert error is not None
    return error.code


def stranger(url: str, *message: bytes) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(url)
        socket.send_multipart(message)
        assert socket.poll(10_000)
        socket.recv()


def test_every_line_is_an_object_and_names_its_request(short_dir: Path, shm_dir: Path) -> None:
    (short_dir / "l2").write_text("no folder")
    arguments = (*JSON, "--l2", f"disk:{short_dir}/l2?size=64M")
    with ServerProcess(short_dir, shm_dir / "a", *arguments) as server:
        with Engine(server.url, server.side_path) as engine:
            engine.register()
            assert refuse(engine, 77) == ErrorCode.COUNT_MISMATCH
            stranger(server.url, b"no frame")
            stranger(server.url, b"a", b"b", b"c")
            for pid in server.children():
                if b"server.copier" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
            assert wait_until(lambda: of(server, "copier_lost") != [])
            assert wait_until(lambda: of(server, "tier_refused") != [])
            [refusal] = [one for one in of(server, "request_refused") if one.get("op") == "STORE"]
            assert refusal["request"] == 77
            assert refusal["engine"] == engine.instance.hex()
            assert len(refusal["namespace"]) == 32
            assert refusal["level"] == "INFO"
            assert "COUNT_MISMATCH: 3 chunks need" in refusal["message"]
            assert "request 77" in refusal["message"]
        assert server.terminate() == 0
        lines = told(server)
    assert {"frames", "request_refused", "copier_lost", "keeper"} <= {one["event"] for one in lines}
    assert all(
        {"time", "level", "process", "event", "message"} <= set(one) and one["time"].endswith("Z")
        for one in lines
    )


def test_a_flood_of_refusals_stays_within_the_bound(short_dir: Path, shm_dir: Path) -> None:
    with ServerProcess(short_dir, shm_dir / "a", *JSON) as server:
        with Engine(server.url, server.side_path) as engine:
            engine.register()
            for number in range(300):
                refuse(engine, number)
        assert server.terminate() == 0
        assert 1 <= len(of(server, "request_refused")) <= 3


def test_as_text_the_request_is_named_too(short_dir: Path, shm_dir: Path) -> None:
    arguments = ("--l1-size", "64M", "--extent-size", "4M", "--log-level", "INFO")
    with ServerProcess(short_dir, shm_dir / "a", *arguments) as server:
        with Engine(server.url, server.side_path) as engine:
            engine.register()
            refuse(engine, 5)
        assert server.terminate() == 0
        [line] = [one for one in server.log().splitlines() if "request_refused: COUNT" in one]
        assert " INFO kvkeep.server: request_refused: " in line
        assert f"request 5, engine {engine.instance.hex()}, namespace " in line


def test_the_frames_of_a_stranger_are_refused_as_ever(short_dir: Path, shm_dir: Path) -> None:
    with ServerProcess(short_dir, shm_dir / "a", "--l1-size", "64M") as server:
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.connect(server.url)
            socket.send(b"no frame")
            assert socket.poll(10_000)
            error = frames.unpack_reply(socket.recv()).error
        assert error is not None
        assert error.code == ErrorCode.MALFORMED
        assert server.terminate() == 0
        assert "request_refused" not in server.log()  # below WARNING
