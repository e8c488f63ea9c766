"""Messages between processes: whole, in order, and an error when the other end is gone."""

from __future__ import annotations

import threading

import pytest

from adapter.conformance.host.ranks.wire import RankLostError, RankSilentError, Wire, pair


@pytest.fixture
def ends() -> tuple[Wire, Wire]:
    return pair("left", "right")


def test_values_arrive_in_order(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    for value in ({"a": 1}, [b"\0" * 1000], None):
        left.send(value, 1.0)
    assert [right.receive(1.0) for _ in range(3)] == [{"a": 1}, [b"\0" * 1000], None]
    left.close()
    right.close()


def test_a_message_larger_than_the_socket_holds(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    big = bytes(range(256)) * 20_000
    thread = threading.Thread(target=left.send, args=(big, 10.0))
    thread.start()
    assert right.receive(10.0) == big
    thread.join(10.0)
    left.close()
    right.close()


def test_an_end_that_is_gone_is_told_from_one_that_is_silent(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    with pytest.raises(RankSilentError, match=r"left said nothing for 0\.05 s"):
        right.receive(0.05)
    left.close()
    with pytest.raises(RankLostError, match="left is gone"):
        right.receive(None)
    with pytest.raises(RankLostError, match="left is gone"):
        right.send("x", 1.0)
    right.close()


def test_an_end_that_does_not_read(ends: tuple[Wire, Wire]) -> None:
    left, right = ends
    with pytest.raises(RankSilentError, match="right did not read"):
        left.send(b"\0" * (8 << 20), 0.05)
    left.close()
    left.close()
    right.close()
