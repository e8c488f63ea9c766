"""Replies that cannot be sent: to who closed its connection, and to who reads none."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.messages import Op
from server.core.effects import PeerId, SendReply
from server.shell import clock
from server.shell.loop import SEND_QUEUE_FRAMES
from tests.faults import rawzmtp
from tests.server.shell.looping import Running, running_loop
from tests.wire.process import wait_until


@pytest.fixture
def running(short_dir: Path) -> Iterator[Running]:
    yield from running_loop(short_dir)


def test_who_closed_its_connection_is_forgotten_and_no_complaint(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """As a client does on which an answer did not come in time: nobody misses that one."""
    caplog.set_level(logging.INFO)
    askers: list[PeerId] = []

    def wait(peer: PeerId, frame: bytes) -> None:
        if frame == b"slow":
            askers.append(peer)
        else:  # an answer at last
            begun_ns = clock.now_ns() - 3_000_000
            running.core.effects.append(SendReply(askers[0], b"", int(Op.LOOKUP), begun_ns, seq=44))

    running.core.on_request = wait
    leaver = running.connect()
    leaver.send(b"slow")
    assert leaver.recv() == b"echo slow"
    leaver.close()
    other = running.connect()

    def is_dropped() -> bool:
        # ZMQ notices the end of a connection in its own time; until then replies vanish in it.
        other.send(b"x")
        other.recv()
        return "closed" in running.core.log

    assert wait_until(is_dropped)
    assert "deaf" not in running.core.log
    assert running.complaints.counts() == {}
    record = next(one for one in caplog.records if "reply_unheard" in one.getMessage())
    assert record.levelno == logging.INFO
    said = record.getMessage()
    assert "process 7 (a client) had closed the connection" in said
    assert "ms after it asked" in said
    assert f"[LOOKUP, message 44, engine {'69' * 16}]" in said
    assert running.thread.is_alive()


def test_who_reads_no_replies_is_a_complaint_by_name(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    def flood(peer: PeerId, frame: bytes) -> None:
        running.core.effects += [SendReply(peer, bytes(1 << 16))] * (2 * SEND_QUEUE_FRAMES)

    running.core.on_request = flood
    with rawzmtp.greeted(running.url) as deaf:
        deaf.sendall(rawzmtp.frame(b"x"))
        assert wait_until(lambda: "deaf" in running.core.log)
        assert wait_until(lambda: "peer_dropped" in caplog.text)
    assert "process 7 (a client) does not read its replies" in caplog.text
    assert running.complaints.counts()["peer_dropped"] >= 1
    assert running.thread.is_alive()
