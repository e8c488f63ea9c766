"""A link that is closed: what was promised is loaded, the pool is given back, in bounded time."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.link import Link, LinkConfig
from adapter.metadata import ConnectorMetadata
from protocol.ids import Epoch, InstanceId, LeaseId
from protocol.messages import Op
from tests.adapter.linking import joined_link, make_pool, open_link, register
from tests.adapter.responder import ExtentFile, Responder, geometry, namespace, until

LEASE = LeaseId(b"L" * 16)


@pytest.fixture
def server(short_dir: Path) -> Iterator[Responder]:
    with Responder(short_dir) as server:
        yield server


@pytest.fixture
def link(server: Responder) -> Iterator[Link]:
    with joined_link(server.url) as link:
        yield link


def epoch_of(link: Link) -> Epoch:
    assert link.joined is not None
    return link.joined.epoch


def use_and_close(server: Responder) -> None:
    file = ExtentFile(geometry(1, namespace()), server.arena)
    with joined_link(server.url) as link:
        server.give(file)
        until(lambda: link.extents.get(1))
        assert link.close(5)
        assert link.close(5)
        assert server.ops().count(Op.UNREGISTER) == 1
        assert len(link.extents) == 0
        assert link.joined is None
        link.release(LEASE)
        link.start()
    file.close()


def test_close_unregisters_and_leaves_nothing_behind(server: Responder) -> None:
    gc.collect()
    threads, fds = threading.active_count(), len(os.listdir("/proc/self/fd"))
    use_and_close(server)
    assert threading.active_count() == threads
    gc.collect()
    for fd in server.pools:
        os.close(fd)
    server.pools.clear()
    until(lambda: len(os.listdir("/proc/self/fd")) <= fds)


def test_close_waits_for_the_acknowledgement_but_not_for_ever(
    server: Responder, link: Link
) -> None:
    server.mute.add(Op.UNREGISTER)
    started_s = time.monotonic()
    assert not link.close(0.3)
    assert time.monotonic() - started_s < 0.5


def test_close_takes_a_late_acknowledgement(server: Responder, link: Link) -> None:
    server.delay_s[Op.UNREGISTER] = 0.2
    assert link.close(5)


def test_close_after_the_server_died_is_quick_and_unsure(server: Responder, link: Link) -> None:
    server.stop()
    until(lambda: link.joined is None)
    started_s = time.monotonic()
    assert not link.close(5)
    assert time.monotonic() - started_s < 0.5


def test_close_lets_what_was_promised_be_loaded(server: Responder, link: Link) -> None:
    """An interpreter ends while its executor, a daemon thread, goes on."""
    file = ExtentFile(geometry(1, namespace()), server.arena)
    server.give(file)
    until(lambda: link.extents.get(1))
    epoch = epoch_of(link)
    link.offers.lead()
    link.offers.asking(epoch)
    link.offers.built(1, [], [epoch])
    closing = threading.Thread(target=link.close, args=(5,))
    closing.start()
    until(lambda: link.joined is None)
    link.offers.built(2, [epoch], [])
    time.sleep(0.05)
    assert Op.UNREGISTER not in server.ops()
    assert link.extents.get(1, epoch) is not None
    link.offers.begun(ConnectorMetadata(2))
    closing.join(1)
    assert Op.UNREGISTER in server.ops()
    assert len(link.extents) == 0
    file.close()


def test_close_lets_a_load_end_that_was_begun(server: Responder, link: Link) -> None:
    """On a device it may be queued only when its hook returns."""
    file = ExtentFile(geometry(1, namespace()), server.arena)
    server.give(file)
    until(lambda: link.extents.get(1))
    link.offers.lead()
    closing = threading.Thread(target=link.close, args=(5,))
    with link.extents.hold(epoch_of(link), [1]):
        closing.start()
        until(lambda: link.joined is None)
        time.sleep(0.1)  # long enough to go wrong
        assert Op.UNREGISTER not in server.ops()
    closing.join(5)
    assert Op.UNREGISTER in server.ops()
    file.close()


def test_close_waits_for_no_load_without_end(server: Responder, link: Link) -> None:
    file = ExtentFile(geometry(1, namespace()), server.arena)
    server.give(file)
    until(lambda: link.extents.get(1))
    link.offers.lead()
    with link.extents.hold(epoch_of(link), [1]):
        started_s = time.monotonic()
        assert link.close(5)
        assert 0.9 < time.monotonic() - started_s < 4
    file.close()


def test_close_waits_for_no_engine_that_stands_still(server: Responder, link: Link) -> None:
    link.offers.lead()
    link.offers.asking(epoch_of(link))
    started_s = time.monotonic()
    assert link.close(5)
    assert 0.2 < time.monotonic() - started_s < 1


def test_close_when_nothing_was_ever_given(short_dir: Path) -> None:
    not_started = Link(LinkConfig(f"ipc://{short_dir}/nobody", InstanceId(bytes(16))))
    assert not_started.close(1)
    with open_link(f"ipc://{short_dir}/nobody") as link:
        register(link, make_pool())
        started_s = time.monotonic()
        assert link.close(5)
        assert time.monotonic() - started_s < 0.5
