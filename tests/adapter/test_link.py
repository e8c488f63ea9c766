"""The link as its users see it: joining, losing, joining again, giving back, closing in time."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapter.copy import LoadError, ShardLoad, load_pages
from adapter.link import Joined, Link, LinkConfig
from adapter.pagememory import GroupPages
from protocol.device.host import HostDevice
from protocol.errors import ConfigError, ErrorCode, ReplyError, RequestError
from protocol.ids import Epoch, InstanceId, LeaseId, RequestKey
from protocol.layout import SLOT_DTYPE
from protocol.messages import Body, Heartbeat, Lookup, Op, Ping, Request
from protocol.namespace import fingerprint
from tests.adapter.linking import joined_link, make_pool, open_link, register
from tests.adapter.responder import PAGE_BYTES, ExtentFile, Responder, geometry, namespace, until

LEASE = LeaseId(b"L" * 16)


@pytest.fixture
def server(short_dir: Path) -> Iterator[Responder]:
    with Responder(short_dir) as server:
        yield server


@pytest.fixture
def link(server: Responder) -> Iterator[Link]:
    with joined_link(server.url) as link:
        yield link


def first_refused(code: ErrorCode, then: Callable[[Request], Body], times: int = 1) -> Any:
    """A handler that refuses some requests before it serves the rest."""
    refused = iter(range(times))

    def handler(body: Request) -> Body:
        if next(refused, None) is not None:
            raise RequestError(code, "as the test wants it")
        return then(body)

    return handler


def joined(link: Link, but: Joined | None = None) -> Joined:
    """The registration, waited for; another one than ``but``."""
    result: Joined = until(lambda: link.joined is not but and link.joined, 10)
    return result


@pytest.mark.parametrize("url", ["", "host:1", "tcp://::1:1", "ipc://relative", "inproc://x"])
def test_odd_urls_fail_at_once_with_the_valid_forms(url: str) -> None:
    with pytest.raises(ConfigError, match="valid are"):
        Link(LinkConfig(url, InstanceId(bytes(16))))


def test_join_tells_everything_that_requests_need(server: Responder, link: Link) -> None:
    snapshot = joined(link)
    assert snapshot.epoch == server.epoch
    assert snapshot.arena == server.arena
    assert snapshot.session == 1
    assert snapshot.fingerprint == fingerprint(namespace())
    assert snapshot.max_blocks == 16_384
    assert snapshot.rank == 0
    assert snapshot.capabilities == {"stats"}
    assert os.fstat(server.pools[0]).st_size == 16 * PAGE_BYTES


def test_tcp_learns_the_side_socket_from_the_server(short_dir: Path) -> None:
    with (
        Responder(short_dir, "tcp://127.0.0.1:*") as server,
        joined_link(server.url) as link,
    ):
        channel = link.open_channel()
        channel.call(Ping(), 2)
        channel.close()
        assert link.close(5)


def test_a_reader_without_memory_joins(server: Responder) -> None:
    with open_link(server.url) as link:
        link.register(namespace(), 0, None, 0, ())
        assert link.wait_joined(5) is not None
        assert server.bodies(Op.REGISTER_KV_CACHE)[0].memory is None
        assert server.pools == []


class DeviceOnTheSecondNode(HostDevice):
    numa_node = 1


def test_the_node_near_the_engines_device_is_said(server: Responder) -> None:
    """Of whatever pool: what is loaded comes from the arena."""
    with joined_link(server.url, device=DeviceOnTheSecondNode()):
        assert server.bodies(Op.REGISTER_KV_CACHE)[0].numa_node == 1
    with joined_link(server.url):
        assert server.bodies(Op.REGISTER_KV_CACHE)[-1].numa_node is None


def test_a_server_that_comes_later_is_found(short_dir: Path) -> None:
    pool = make_pool()
    with open_link(f"ipc://{short_dir}/kvkeep.sock") as link:
        register(link, pool)
        assert link.wait_joined(0.1) is None
        with Responder(short_dir):
            assert link.wait_joined(5) is not None


def test_a_restarted_server_is_joined_without_help(short_dir: Path) -> None:
    with Responder(short_dir) as first, joined_link(first.url) as link:
        before = joined(link)
        first.stop()
        until(lambda: link.joined is None)
        assert link.is_breaker_open
        with Responder(short_dir) as second:
            after = joined(link, before)
            assert after.epoch == second.epoch != before.epoch
            until(lambda: not link.is_breaker_open)
            channel = link.open_channel()
            channel.call(Ping(), 2)
            channel.close()
            assert link.close(5)


def load(link: Link, epoch: bytes, pool: Any, slot: int = 0) -> int:
    slots = np.array([(1, slot, slot + 1)], dtype=SLOT_DTYPE)
    pages = np.zeros((1, 1), dtype=np.int32)
    shard = ShardLoad(0, GroupPages.packed(pool, PAGE_BYTES), slots, pages)
    return load_pages(link.extents, Epoch(epoch), [shard])


def test_offers_of_a_server_that_died_are_loaded_for_a_while_beside_the_next_ones(
    short_dir: Path,
) -> None:
    pool = np.zeros(PAGE_BYTES, dtype=np.uint8)
    with Responder(short_dir) as first, joined_link(first.url, quiet_s=0.3) as link:
        before = joined(link)
        old_file = ExtentFile(geometry(1, namespace()), first.arena, seed=1)
        first.give(old_file)
        until(lambda: link.extents.get(1))
        first.stop()
        until(lambda: link.joined is None)
        load(link, before.epoch, pool)
        with Responder(short_dir) as second:
            after = joined(link, before)
            new_file = ExtentFile(geometry(1, namespace()), second.arena, seed=2)
            second.give(new_file)
            until(lambda: link.extents.get(1, after.epoch))
            load(link, before.epoch, pool)
            assert np.array_equal(pool, old_file.payloads[0])
            load(link, after.epoch, pool)
            assert np.array_equal(pool, new_file.payloads[0])
            until(lambda: len(link.extents) == 1)
            with pytest.raises(LoadError):
                load(link, before.epoch, pool)
            load(link, after.epoch, pool)
        for file in (old_file, new_file):
            file.close()


def test_a_refused_pool_is_said_once_and_not_offered_over_and_over(
    short_dir: Path,
) -> None:
    pool = make_pool()
    with Responder(short_dir) as server, open_link(server.url) as link:
        server.refuse_pool = ErrorCode.POOL_INVALID
        register(link, pool)
        assert link.wait_joined(10) is None
        assert link.refusal is not None
        assert link.refusal.code == ErrorCode.POOL_INVALID
        assert link.counters["registrations_refused"] == 1
        assert Op.REGISTER_KV_CACHE not in server.ops()
        server.stop()
        with Responder(short_dir):
            assert joined(link) is not None
            assert link.refusal is None


def test_a_refused_namespace_stays_refused(server: Responder) -> None:
    server.handlers[Op.REGISTER_KV_CACHE] = first_refused(
        ErrorCode.PAGE_SIZE_MISMATCH, server._default, times=100
    )
    pool = make_pool()
    with open_link(server.url) as link:
        register(link, pool)
        until(lambda: link.refusal)
        time.sleep(0.1)  # more than a turn of the keeper: nothing may follow
        assert len(server.bodies(Op.REGISTER_KV_CACHE)) == 1
        register(link, make_pool(8))
        until(lambda: len(server.bodies(Op.REGISTER_KV_CACHE)) == 2)
        del server.handlers[Op.REGISTER_KV_CACHE]
        register(link, pool)
        assert joined(link) is not None


def test_no_room_is_tried_again(server: Responder) -> None:
    server.handlers[Op.REGISTER_KV_CACHE] = first_refused(ErrorCode.NO_ROOM, server._default)
    with joined_link(server.url) as link:
        assert len(server.bodies(Op.REGISTER_KV_CACHE)) == 2
        assert link.refusal is None


@pytest.mark.parametrize("code", [ErrorCode.VERSION_MISMATCH, ErrorCode.UNWATCHABLE_PEER])
def test_a_server_that_does_not_want_this_process_leaves_it_uncached(
    server: Responder, code: ErrorCode
) -> None:
    server.refuse_side = code
    with open_link(server.url) as link:
        register(link, make_pool())
        started_s = time.monotonic()
        assert link.wait_joined(10) is None
        assert time.monotonic() - started_s < 5
        assert link.refusal is not None
        assert link.refusal.code == code
        server.refuse_side = None
        assert joined(link) is not None


def test_another_pool_replaces_the_first_after_it_was_unregistered(
    server: Responder, link: Link
) -> None:
    before = joined(link)
    link.offers.lead()
    register(link, make_pool(8))
    assert joined(link, before).session == 2
    ops = [op for op in server.ops() if op in (Op.REGISTER_KV_CACHE, Op.UNREGISTER)]
    assert ops == [Op.REGISTER_KV_CACHE, Op.UNREGISTER, Op.REGISTER_KV_CACHE]


def test_extents_that_overtake_the_reply_are_mapped(server: Responder) -> None:
    file = ExtentFile(geometry(1, namespace()), server.arena)
    server.delay_s[Op.REGISTER_KV_CACHE] = 0.1

    def give_first(body: Request) -> Body:
        reply = server._default(body)
        server.give(file)
        return reply

    server.handlers[Op.REGISTER_KV_CACHE] = give_first
    with joined_link(server.url) as link:
        until(lambda: server.bodies(Op.MAPPED))
        assert link.extents.get(1) is not None
    file.close()


def test_mapping_reports_are_repeated_until_answered(server: Responder, link: Link) -> None:
    server.handlers[Op.MAPPED] = first_refused(ErrorCode.BUSY, server._default, times=2)
    file = ExtentFile(geometry(1, namespace()), server.arena)
    server.give(file)
    until(lambda: len(server.bodies(Op.MAPPED)) == 3)
    assert {body.mapped for body in server.bodies(Op.MAPPED)} == {b"\x01\0\0\0"}
    server.take(1)
    until(lambda: server.bodies(Op.MAPPED)[-1].unmapped == b"\x01\0\0\0")
    assert link.extents.get(1) is None
    file.close()


def test_extents_of_another_session_are_not_mapped(server: Responder, link: Link) -> None:
    file = ExtentFile(geometry(1, namespace()), server.arena)
    server.give(file, session=99)
    until(lambda: link.counters.get("extents_of_other_sessions"))
    assert len(link.extents) == 0
    file.close()


def test_releases_and_ends_are_repeated_until_answered(server: Responder, link: Link) -> None:
    server.handlers[Op.RELEASE] = first_refused(ErrorCode.BUSY, server._default, times=2)
    link.release(LEASE, 2, 3)
    link.end_request(RequestKey(7))
    until(lambda: len(server.bodies(Op.RELEASE)) == 3)
    until(lambda: link.counters.get("notices_delivered") == 2)
    body = server.bodies(Op.RELEASE)[-1]
    assert (body.lease, body.start, body.count, body.all_readers) == (LEASE, 2, 3, False)
    assert server.bodies(Op.END_SESSION)[0].request == 7


def test_a_refused_release_is_not_repeated(server: Responder, link: Link) -> None:
    server.handlers[Op.RELEASE] = first_refused(ErrorCode.UNKNOWN_LEASE, server._default)
    link.release(LEASE, all_readers=True)
    link.end_request(RequestKey(7))
    until(lambda: link.counters.get("notices_delivered") == 2)
    assert len(server.bodies(Op.RELEASE)) == 1


def test_releases_end_with_the_epoch(short_dir: Path) -> None:
    with Responder(short_dir) as first, joined_link(first.url) as link:
        before = joined(link)
        first.mute.add(Op.RELEASE)
        for number in range(100):
            link.release(LEASE, number)
        first.stop()
        with Responder(short_dir) as second:
            joined(link, before)
            link.end_request(RequestKey(1))
            until(lambda: second.bodies(Op.END_SESSION))
            assert second.bodies(Op.RELEASE) == []
        link.release(LEASE)


def test_it_beats_from_registration_on(server: Responder, link: Link) -> None:
    until(lambda: len(server.bodies(Op.PING)) >= 3)
    assert server.bodies(Op.HEARTBEAT) == []
    link.set_live_requests(lambda: [3, 2**63 - 1])
    beat: Heartbeat = until(lambda: server.bodies(Op.HEARTBEAT))[0]
    assert np.frombuffer(beat.requests, "<u8").tolist() == [3, 2**63 - 1]


def test_a_failing_list_of_requests_ends_no_leases(server: Responder, link: Link) -> None:
    def fail() -> list[int]:
        raise RuntimeError("the scheduler is busy")

    link.set_live_requests(fail)
    until(lambda: link.counters.get("live_requests_failed"))
    pings = len(server.bodies(Op.PING))
    until(lambda: len(server.bodies(Op.PING)) > pings)
    link.set_live_requests(lambda: range(10_000))
    until(lambda: link.counters.get("heartbeats_too_long"))
    assert server.bodies(Op.HEARTBEAT) == []


def test_a_new_incarnation_behind_the_same_sockets_is_noticed(
    server: Responder, link: Link
) -> None:
    before = joined(link)
    server.epoch = type(server.epoch)(os.urandom(16))
    assert joined(link, before).epoch == server.epoch


def test_a_dropped_side_connection_is_made_again_and_the_old_session_ended(
    server: Responder,
) -> None:
    with joined_link(server.url, quiet_s=0.3) as link:
        before = joined(link)
        lost_s = time.monotonic()
        server.drop_sides()
        assert joined(link, before).session == 2
        assert time.monotonic() - lost_s >= 0.3
        assert server.bodies(Op.UNREGISTER)[0].session == before.session


def test_an_engine_that_the_server_forgot_is_back_within_a_second(server: Responder) -> None:
    with joined_link(server.url) as link:
        channel = link.open_channel()
        for _ in range(3):
            before = joined(link)
            server.handlers[Op.LOOKUP] = first_refused(ErrorCode.UNKNOWN_SESSION, server._default)
            lost_s = time.monotonic()
            with pytest.raises(ReplyError):
                channel.call(Lookup(session=before.session, request=1, start=0, keys=bytes(16)), 2)
            joined(link, before)
            assert time.monotonic() - lost_s < 1.5
        channel.close()


def test_a_half_open_side_socket_blocks_nothing(short_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{short_dir}/kvkeep.sock.side")
        listener.listen(8)
        with open_link(f"ipc://{short_dir}/kvkeep.sock", connect_timeout_s=0.1) as link:
            register(link, make_pool())
            until(lambda: link.counters.get("approaches_failed", 0) >= 2)
            started_s = time.monotonic()
            assert link.close(5)
            assert time.monotonic() - started_s < 0.5


def test_channels_outlive_the_link_without_harm(server: Responder) -> None:
    with joined_link(server.url) as link:
        channel = link.open_channel()
        channel.call(Ping(), 2)
        assert link.close(5)
        with pytest.raises(Exception, match="not registered"):
            channel.call(Ping(), 2)
        channel.close()
