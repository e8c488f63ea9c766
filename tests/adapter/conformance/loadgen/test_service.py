import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from adapter.conformance.loadgen import orders
from adapter.conformance.loadgen.service import Service
from tests.adapter.conformance.loadgen.conftest import joining
from tests.wire.process import ServerProcess


def serve(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"".join(line + b"\n" for line in lines))
        os.close(writing)
        out = io.BytesIO()
        Service(reading, out).run()
    finally:
        os.close(reading)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_every_order_gets_one_answer_and_bad_ones_end_nothing() -> None:
    said = serve([b"nonsense", b'{"order": "leave"}', b'{"order": "dance"}'])
    assert [one["event"] for one in said] == ["failed"] * 3
    assert "not an order" in said[0]["reason"]
    assert "first order must be join" in said[1]["reason"]


def test_a_line_that_never_ends_ends_the_service() -> None:
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            os.close(reading)
            for _ in range(100):
                os.write(writing, b"x" * 65536)
        finally:
            os._exit(0)
    os.close(writing)
    out = io.BytesIO()
    Service(reading, out).run()
    os.close(reading)
    os.wait()
    assert out.getvalue() == b""


def test_an_engine_from_join_to_leave(server: ServerProcess, scratch_dir: Path) -> None:
    join = msgspec.json.encode(joining(server, scratch_dir, "service"))
    rounds = msgspec.json.encode(
        orders.Rounds(rounds=1, num_requests=2, pages_per_request=4, pid=server.pid, seed=1)
    )
    flood = msgspec.json.encode(orders.Flood(pid=server.pid, share=0.2, seed=1))
    said = serve([join, join, rounds, flood, b'{"order": "leave"}'])
    done = [one["result"] for one in said if one["event"] == "done"]
    failed = [one["reason"] for one in said if one["event"] == "failed"]
    assert failed == ["LoadgenError: joined already"]
    assert [set(result) for result in done] == [
        {"join_s"},
        {"seconds", "num_bytes", "loop_share"},
        {"share", "calls", "seconds"},
        set(),
    ]
    assert {"event": "progress", "done": 1, "of": 1} in said
