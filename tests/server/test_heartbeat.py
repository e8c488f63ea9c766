"""The word of a process that lives: when it is due, and never at the price of a wait."""

from __future__ import annotations

import os

from server.heartbeat import BEAT, Heartbeat


def test_it_is_said_at_once_and_again_when_it_is_due() -> None:
    read, write = os.pipe()
    seldom, often = Heartbeat(write), Heartbeat(write, every_s=0.0)
    for beat in (seldom, seldom, often, often):
        beat()
    assert os.read(read, 1000).decode() == 3 * f"{BEAT}\n"
    os.close(read)
    os.close(write)


def test_where_nobody_reads_nothing_waits() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, bytes(4096))
    except BlockingIOError:
        os.set_blocking(write, True)
    Heartbeat(write)()  # would wait for ever
    os.close(read)
    os.close(write)
