import json

import pytest

from adapter.conformance.loadgen import orders


def test_an_order_is_read() -> None:
    line = json.dumps({"order": "flood", "pid": 7, "share": 0.5, "seed": 1}).encode()
    assert orders.read(line) == orders.Flood(pid=7, share=0.5, seed=1)
    assert orders.read(b'{"order": "leave"}') == orders.Leave()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b'{"order": "dance"}',
        b'{"order": "leave", "at": "once"}',
        b'{"order": "flood", "pid": 7, "share": 1.5, "seed": 1}',
        b'{"order": "flood", "pid": "7", "share": 0.5, "seed": 1}',
        b'{"order": "probe", "url": "ipc:///x", "timeout_s": 0}',
    ],
)
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="not an order"):
        orders.read(line)


def test_answers_are_lines() -> None:
    for line in (orders.progress(1, 2), orders.done({"a": [1.5]}), orders.failed("two\nlines")):
        assert b"\n" not in line
        assert json.loads(line)["event"] in ("progress", "done", "failed")
