"""STATUS of a real server: what a client did is what it tells, with the times it took."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from click.testing import CliRunner

from protocol import __version__
from protocol.messages import Events, EventsReply, Op, Status, StatusReply
from protocol.status import LATENCY_BOUNDS_US
from server.cli import cli
from tests.server.web.pageserver import serving
from tests.wire.client import Engine
from tests.wire.process import ServerProcess, wait_until


def test_it_tells_who_is_there_and_what_each_answer_took(short_dir: Path, shm_dir: Path) -> None:
    tier = f"disk:{short_dir}/tier?size=64M"
    with (
        ServerProcess(short_dir, shm_dir / "a", "--l1-size", "64M", "--l2", tier) as server,
        Engine(server.url, server.side_path) as engine,
    ):
        engine.register()
        keys = [os.urandom(16) for _ in range(4)]
        assert engine.save(keys, [0, 1, 2, 3]) == 4
        for request in range(1, 6):
            found = engine.lookup(keys, request=request)
            assert found.ready == 4

        def told() -> StatusReply:
            return engine.wire.call(Status(), StatusReply)

        assert wait_until(lambda: told().tiers[0].state == "up")
        reply = told()
        me = reply.engines[0]
        assert (me.pid, me.state, me.sessions) == (os.getpid(), "serving", 1)
        assert (me.requested_chunks, me.hit_chunks, me.leases) == (20, 20, 5)
        assert 0 <= me.idle_s < me.connected_s <= reply.server.uptime_s
        assert reply.server.pid == server.pid
        assert reply.server.endpoint == server.url
        assert reply.server.version == __version__
        assert [one.chunks for one in reply.namespaces] == [4]
        assert (reply.tiers[0].name, reply.tiers[0].kind) == ("disk", "disk")
        assert [(one.name, one.state) for one in reply.copiers] == [("host", "up")]
        assert reply.latency["LOOKUP"].count == 5
        assert reply.latency["COMMIT"].count == reply.latency["STORE"].count == 1
        assert set(reply.latency) <= {op.name for op in Op}
        assert reply.latency_bounds_us == LATENCY_BOUNDS_US


def test_a_slow_request_is_told_and_one_that_only_waited_as_it_asked_is_not(
    short_dir: Path, shm_dir: Path
) -> None:
    with (
        ServerProcess(short_dir, shm_dir / "a", "--l1-size", "64M") as server,
        Engine(server.url, server.side_path) as engine,
    ):
        space = engine.register().fingerprint
        waited = engine.wire.call(Events(cursor=0, wait_ms=0), EventsReply)
        assert engine.wire.call(Events(cursor=waited.cursor, wait_ms=200), EventsReply).events == ()
        [pid] = server.children()
        os.kill(pid, signal.SIGSTOP)
        try:
            seq = engine.submit_store([os.urandom(16)], [0])
            time.sleep(0.25)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert engine.stored(seq).copied == 1
        reply = engine.wire.call(Status(), StatusReply)
        [row] = [one for one in reply.slow if one.op != "REGISTER_KV_CACHE"]  # a busy machine
        assert (row.op, row.seq, row.fingerprint) == ("STORE", seq, space)
        assert row.request >= 0
        assert row.instance == reply.engines[0].instance
        assert row.client == reply.engines[0].client
        assert 200_000 <= row.spent_us < 20_000_000
        assert row.age_s < 10
        assert sum(reply.latency["EVENTS"].buckets[10:]) == 1, "its wait is in the histogram"


def test_a_frozen_copier_is_told_of_before_it_is_replaced(short_dir: Path, shm_dir: Path) -> None:
    with (
        ServerProcess(short_dir, shm_dir / "a", "--l1-size", "64M") as server,
        Engine(server.url, server.side_path) as engine,
        serving(server.side_path) as (pages, _),
    ):
        engine.register()
        assert wait_until(lambda: pages.get("/readyz")[0] == 200, every_s=0.1)
        [pid] = server.children()
        os.kill(pid, signal.SIGSTOP)
        try:
            # A new engine comes: its pool is to be mapped, and nobody answers.
            with Engine(server.url, server.side_path) as other, ThreadPoolExecutor(1) as pool:
                coming = pool.submit(other.register)
                assert wait_until(lambda: pages.get("/readyz")[0] == 503, every_s=0.1)
                why = pages.json("/readyz")["why"]
                assert "host: copier not answering for " in why[0]
                shown = CliRunner().invoke(cli, ["status", "--endpoint", server.url])
                assert shown.exit_code == 3
                assert "the copier of host has not answered for " in shown.output.splitlines()[0]
                assert server.children() == [pid], "before the ten seconds are over"
                os.kill(pid, signal.SIGCONT)
                assert coming.result(10).session > 0
        finally:
            with suppress(ProcessLookupError):  # replaced after all
                os.kill(pid, signal.SIGCONT)
        assert wait_until(lambda: pages.get("/readyz")[0] == 200, every_s=0.1)
