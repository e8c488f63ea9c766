"""Writing threads: runs as asked, each told once, errors told too."""

from __future__ import annotations

import select
import threading
import time
import weakref

import numpy as np
import pytest

from server.copier.wake import Wake
from server.copier.writers import Writers, Written
from tests.wire.process import wait_until


@pytest.mark.parametrize("num_threads", [1, 3])
def test_each_piece_is_written_and_told_once(num_threads: int) -> None:
    wake = Wake()
    writers: Writers[int] = Writers(num_threads, wake)
    source = np.random.default_rng(1).integers(0, 256, 64_000, dtype=np.uint8)
    target = np.zeros(200_000, dtype=np.uint8)
    expected = target.copy()
    for number in range(16):
        start, at = number * 4000, number * 9000
        runs = [(start, at, 1000), (start + 1000, at + 5000, 3000)]
        for begin, to, size in runs:
            expected[to : to + size] = source[begin : begin + size]
        writers.submit(number, source, target, runs)
    assert select.select([wake], [], [], 10)[0]
    assert writers.settle(10)
    written = writers.collect()
    assert sorted(one.token for one in written) == list(range(16))
    assert all(one.error is None for one in written)
    assert np.array_equal(target, expected)
    assert writers.collect() == []
    assert writers.settle(0)
    writers.stop()


def test_a_failure_is_told_and_the_thread_lives_on() -> None:
    writers: Writers[str] = Writers(1, Wake())
    short, long = np.zeros(10, dtype=np.uint8), np.ones(100, dtype=np.uint8)
    writers.submit("bad", long, short, [(0, 0, 100)])
    writers.submit("good", long, short, [(0, 0, 10)])
    assert writers.settle(10)
    bad, good = writers.collect()
    assert bad.token == "bad"
    assert bad.error is not None
    assert "ValueError" in bad.error
    assert good == Written("good", None)
    writers.stop()


def test_a_thread_that_waits_for_work_keeps_nothing_of_the_last_one() -> None:
    """An extent that was unmapped and unlinked would keep its memory."""
    writers: Writers[int] = Writers(3, Wake())
    targets = [np.zeros(1000, dtype=np.uint8) for _ in range(12)]
    left = [weakref.ref(target) for target in targets]
    for number, target in enumerate(targets):
        writers.submit(number, np.ones(10, dtype=np.uint8), target, [(0, 5, 10)])
    del target
    assert writers.settle(10)
    assert len(writers.collect()) == 12
    targets.clear()
    assert wait_until(lambda: not any(one() is not None for one in left), 5)
    writers.stop()


class Slow:
    """Stands for a long run: ends when it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __iter__(self) -> Slow:
        return self

    def __next__(self) -> tuple[int, int, int]:
        assert self.go.wait(20)
        raise StopIteration


def test_settle_gives_up_in_time_and_threads_end() -> None:
    writers: Writers[int] = Writers(2, Wake())
    slow, nothing = Slow(), np.zeros(1, dtype=np.uint8)
    writers.submit(1, nothing, nothing, slow)  # type: ignore[arg-type]
    begun_s = time.monotonic()
    assert not writers.settle(0.1)
    assert time.monotonic() - begun_s < 5
    assert writers.collect() == []
    slow.go.set()
    assert writers.settle(10)
    assert [one.token for one in writers.collect()] == [1]
    writers.stop()
    for thread in writers._threads:
        thread.join(10)
        assert not thread.is_alive()
