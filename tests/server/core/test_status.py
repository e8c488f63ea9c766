"""STATUS says what is so: engines, namespaces, tiers and copiers, in bounds and in slices."""

from __future__ import annotations

from typing import Any

import pytest

from protocol import messages as m
from protocol.limits import MAX_STATUS_CHARS, MAX_STATUS_ROWS, MAX_TEXT_CHARS
from protocol.namespace import fingerprint
from protocol.status import (
    COPIER_STATES,
    ENGINE_STATES,
    TIER_STATES,
    EngineStatus,
    NamespaceStatus,
    OpLatency,
)
from server.core import effects as fx
from server.core import status as collected
from server.core.config import Adopted, Identity, Outside, TierConfig
from server.core.dispatch import CAPABILITIES
from server.core.status import copier_name
from server.core.tiers.breaker import PORTER_ENDED
from tests.server.core.tiers.model import TierWorld, tiered
from tests.server.core.world import ARENA, EPOCH, SECOND, Engine, World, chain, config, namespace


def status(asker: Engine) -> m.StatusReply:
    reply = asker.ask(m.Status())
    assert isinstance(reply, m.StatusReply)
    states = {one.state for one in reply.engines}
    assert states <= set(ENGINE_STATES)
    assert {one.state for one in reply.tiers} <= set(TIER_STATES)
    assert {one.state for one in reply.copiers} <= set(COPIER_STATES)
    return reply


def row(reply: m.StatusReply, engine: Engine) -> EngineStatus:
    (found,) = [one for one in reply.engines if one.instance == engine.instance]
    return found


def space(reply: m.StatusReply, name: Any) -> NamespaceStatus:
    (found,) = [one for one in reply.namespaces if one.fingerprint == fingerprint(name)]
    return found


def test_it_is_an_ability_that_the_server_announces() -> None:
    assert "status" in CAPABILITIES


def test_the_server_says_who_it_is() -> None:
    identity = Identity("1.2", 77, "ipc:///run/x", begun_ns=SECOND // 2)
    world = World(config(identity=identity))
    world.core.begin_drain(world.now_ns)
    server = status(world.engine()).server
    assert (server.version, server.pid, server.endpoint) == ("1.2", 77, "ipc:///run/x")
    assert (server.epoch, server.arena, server.draining) == (EPOCH, ARENA, True)
    assert server.uptime_s == pytest.approx(0.5, abs=0.01)


def test_an_engine_from_its_coming_to_its_leaving() -> None:
    world = World(config(), auto_pools=False)
    operator, a = world.engine("operator"), world.engine("a")
    assert row(status(operator), a).state == "connected"
    assert row(status(operator), operator).state == "operator"
    world.core.pool_offered(a.process, a.pool, 4096 * len(a.pages))
    a.begin(a.register_body(namespace()))
    seen = row(status(operator), a)
    assert (seen.state, seen.sessions) == ("registering", 1)
    world.act(world.pending.pop())
    world.pump()
    seen = row(status(operator), a)
    assert (seen.state, seen.namespaces) == ("serving", (fingerprint(namespace()),))
    assert seen.quarantined_bytes == 0
    world.core.process_quiet(a.process, world.now_ns)
    world.pump()
    assert row(status(operator), a).state == "leaving"
    a.die()
    assert [one.instance for one in status(operator).engines] == [operator.instance]


def test_idle_time_begins_anew_with_each_request() -> None:
    world = World(config())
    operator, a = world.engine("operator"), world.engine("a")
    world.step(3 * SECOND)
    assert row(status(operator), a).idle_s == pytest.approx(3, abs=0.01)
    a.ask(m.Ping())
    seen = row(status(operator), a)
    assert seen.idle_s == pytest.approx(0, abs=0.01)
    assert seen.connected_s == pytest.approx(3, abs=0.01)


def test_process_and_client_are_told_and_cut_off() -> None:
    world = World(config())
    a = world.engine("a")
    world.core.process_joined(fx.ProcessId(50), a.token, a.instance, world.now_ns, pid=4711)
    a.client.client = "x" * (MAX_STATUS_CHARS + 1)
    a.peer = fx.PeerId(b"\0new!")
    a.hello()
    engines = {one.pid: one for one in status(a).engines}
    assert engines[4711].client == "x" * MAX_STATUS_CHARS


def test_chunks_asked_for_and_found_are_the_scheduler_ranks_own() -> None:
    world = World(config(extents=8))
    two = namespace(ranks=2)
    ranks = [world.engine("a", rank) for rank in range(2)]
    for one in ranks:
        one.register(two)
    keys = chain("x", 3)
    for shard, one in enumerate(ranks):
        assert one.save(keys, shard=shard) == 3
    assert ranks[0].lookup(chain("x", 5)).ready == 3
    first, second = (
        next(one for one in status(ranks[0]).engines if one.pid == 0 and one.leases == leases)
        for leases in (1, 0)
    )
    assert (first.requested_chunks, first.hit_chunks) == (5, 3)
    assert (second.requested_chunks, second.hit_chunks) == (0, 0)
    assert space(status(ranks[0]), two).sessions == 2


def test_what_is_taken_back_and_not_let_go_of_counts_as_quarantined() -> None:
    world = World(config(extents=2, slots=4))
    a = world.engine("a")
    a.register(namespace())
    a.save(chain("x", 8))
    world.auto_map = False
    b, operator = world.engine("b"), world.engine("operator")
    world.core.pool_offered(b.process, b.pool, 4096 * len(b.pages))
    asked = b.begin(b.register_body(namespace("other")))
    taken = world.extents[a.to_unmap[0]].geometry.file_bytes
    assert row(status(operator), a).quarantined_bytes == taken
    assert row(status(operator), b).quarantined_bytes == 0
    a.report()
    world.pump()
    assert row(status(operator), a).quarantined_bytes == 0
    assert b.answer(asked).session


def test_namespaces_with_their_content_the_fullest_first() -> None:
    world = World(config(extents=8))
    small, large = world.engine("small"), world.engine("large")
    small.register(namespace("m/small", chunk_blocks=2))
    large.register(namespace("m/large"))
    small.save(chain("y", 1))
    world.step(2 * SECOND)
    large.save(chain("x", 4))
    assert large.ask(m.Pin(fingerprint=fingerprint(large.space), keys=chain("x", 1)[0], ttl_s=9))
    reply = status(small)
    assert [one.name for one in reply.namespaces] == ["m/large", "m/small"]
    one, other = reply.namespaces
    assert (one.chunks, one.bytes, one.pinned_chunks) == (4, 4 * 4096, 1)
    assert (other.chunks, other.bytes, other.pinned_chunks) == (1, 2 * 4096, 0)
    assert (other.chunk_tokens, other.chunk_blocks) == (64, 2)
    assert (other.ranks, other.shards, other.sessions) == (1, 1, 1)
    assert one.idle_s == pytest.approx(0, abs=0.01)
    assert other.idle_s == pytest.approx(2, abs=0.01)
    small.lookup(chain("y", 1))
    assert space(status(large), small.space).idle_s == pytest.approx(0, abs=0.01)


def test_pins_end_with_what_they_pinned() -> None:
    world = World(config())
    a = world.engine()
    a.register(namespace())
    a.save(chain("x", 2))
    name = fingerprint(a.space)
    a.ask(m.Pin(fingerprint=name, keys=b"".join(chain("x", 2)), ttl_s=9))
    assert space(status(a), a.space).pinned_chunks == 2
    a.ask(m.Clear(fingerprint=name))
    assert space(status(a), a.space).pinned_chunks == 0
    a.save(chain("y", 3))
    a.ask(m.Pin(fingerprint=name, keys=b"".join(chain("y", 3)), ttl_s=9))
    assert space(status(a), a.space).pinned_chunks == 3


def test_a_chunk_under_several_pins_is_told_once() -> None:
    world = World(config(extents=8))
    a = world.engine()
    a.register(namespace())
    common, name = chain("x", 3), fingerprint(a.space)
    a.save(chain("x", 4))
    for length in (1, 2, 3):
        a.ask(m.Pin(fingerprint=name, keys=b"".join(common[:length]), ttl_s=9))
    assert space(status(a), a.space).pinned_chunks == 3
    a.ask(m.Unpin(fingerprint=name, keys=b"".join(common)))
    assert space(status(a), a.space).pinned_chunks == 2


def test_pins_longer_than_a_slice_are_counted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collected, "SLICE_PINS", 2)
    world = World(config(extents=8))
    a, b = world.engine("a"), world.engine("b")
    for one, model, letter in ((a, "m/a", "x"), (b, "m/b", "y")):
        one.register(namespace(model))
        one.save(chain(letter, 5))
        for length in (5, 3, 4):
            keys = b"".join(chain(letter, 5)[:length])
            one.ask(m.Pin(fingerprint=fingerprint(one.space), keys=keys, ttl_s=9))
    reply = status(a)
    assert [one.pinned_chunks for one in reply.namespaces] == [5, 5]


def test_tiers_say_how_they_stand() -> None:
    world = TierWorld(tiered(TierConfig("cold", kind="disk"), TierConfig("far", kind="s3")))
    a = world.engine()
    assert [one.state for one in status(a).tiers] == ["starting", "starting"]
    assert [one.why for one in status(a).tiers] == ["", ""]
    world.core.porter_refused(fx.TierId(1), world.now_ns, "no bucket")
    world.tiers[0].is_up = True
    world.core.porter_ready(fx.TierId(0), 5, 9, world.now_ns)
    cold, far = status(a).tiers
    assert (cold.name, cold.kind, cold.state, cold.waiting_puts) == ("cold", "disk", "up", 0)
    assert (cold.used_bytes, cold.capacity_bytes) == (5, 9)
    assert (far.kind, far.state, far.why) == ("s3", "down", "no bucket")
    world.up(1)
    assert [(one.state, one.why) for one in status(a).tiers] == [("up", ""), ("up", "")]
    world.core.porter_said(fx.TierId(0), "GET: no route", world.now_ns)
    world.core._state.tiers.tiers[0].breaker.open("requests failed")
    world.down(1)
    assert [(one.state, one.why) for one in status(a).tiers] == [
        ("breaker open", "requests failed: GET: no route"),
        ("down", PORTER_ENDED),
    ]
    world.core.porter_refused(fx.TierId(1), world.now_ns, "x" * (MAX_TEXT_CHARS + 1))
    assert status(a).tiers[1].why == "x" * MAX_TEXT_CHARS


def test_a_tier_that_hangs_is_silent_for_as_long_as_it_does() -> None:
    """Frozen with a check-up to answer: nobody reads or writes, and its breaker is closed."""
    world = TierWorld(tiered(TierConfig("cold", kind="disk")), auto_tiers=False)
    world.up(0)
    a = world.engine()
    assert status(a).tiers[0].silent_s == 0
    tier = world.core._state.tiers.tiers[0]
    tier.breaker._check()
    world.step(8 * SECOND)
    row = status(a).tiers[0]
    assert row.state == "up"
    assert 8 <= row.silent_s < 9


def test_what_a_tier_warns_of_is_told_while_it_is_used() -> None:
    world = TierWorld(tiered(TierConfig("cold", kind="disk")))
    world.up(0)
    a = world.engine()
    tier = world.core._state.tiers.tiers[0]

    def checked(well: bool, warning: str = "") -> str:
        tier.breaker._check()
        (job,) = tier.flying
        world.core.tier_health(job, well, 0, 0, world.now_ns, b"", warning)
        return status(a).tiers[0].warning

    assert checked(True, "its file system is full") == "its file system is full"
    assert checked(True, "x" * 600) == "x" * MAX_TEXT_CHARS
    assert checked(False) == "", "it says why it is not used instead"


def test_copiers_by_the_name_of_their_device_and_how_often_they_came_again() -> None:
    world = World(config())
    a = world.engine()
    a.device = bytes(range(16))
    a.register(namespace())
    world.core.copier_lost(fx.HOST_COPIER, world.now_ns)
    host, device = status(a).copiers
    assert (host.name, host.state, host.restarts) == ("host", "starting", 0)
    assert device.name == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert (device.state, device.restarts) == ("up", 0)
    world.lose(1)
    assert status(a).copiers[1].state == "down"
    world.begin(fx.StartCopier(fx.CopierId(1), a.device))
    world.pump()
    assert (status(a).copiers[1].state, status(a).copiers[1].restarts) == ("up", 1)
    world.lose(1, stuck_life=1)
    assert status(a).copiers[1].stuck == 1
    world.core.copier_gone(fx.CopierId(1), 1, world.now_ns)
    world.auto_copiers = False
    a.die()
    world.step(60 * SECOND)
    world.core.tick(world.now_ns)
    world.pump()
    assert status(world.engine("b")).copiers[1].state == "ending"


def test_what_only_the_shell_knows_is_told_as_it_says() -> None:
    world = World(config())
    a = world.engine()
    told = status(a)
    assert (told.server.http, told.server.started_in_s, told.copiers[0].silent_s) == ("", 0, 0)
    adopted = Adopted(7, 4096, 0.5)
    world.core.tell_outside(lambda: Outside("http://x/", 1.5, adopted, {fx.HOST_COPIER: 2.5}))
    told = status(a)
    assert (told.server.http, told.server.started_in_s) == ("http://x/", 1.5)
    server = told.server
    assert (server.adopted_chunks, server.adopted_bytes, server.adopted_in_s) == (7, 4096, 0.5)
    assert told.copiers[0].silent_s == 2.5


def test_the_host_copier_has_one_name() -> None:
    assert copier_name(fx.HOST_COPIER, b"") == "host"


def test_latency_is_what_who_sends_answers_says() -> None:
    world = World(config())
    told = {"PING": OpLatency(buckets=(1,) * 18, sum_us=7, count=18)}
    world.core.tell_latency(lambda: told)
    assert status(world.engine()).latency == told


def test_more_than_fit_are_counted_and_engines_come_first() -> None:
    world = World(config(max_namespaces=1), check=False)
    for number in range(MAX_STATUS_ROWS + 3):
        token, name = number.to_bytes(16, "big"), number.to_bytes(16, "little")
        process = fx.ProcessId(1000 + number)
        world.core.process_joined(process, token, name, world.now_ns)  # type: ignore[arg-type]
    late = world.engine("late")
    late.register(namespace())
    reply = status(late)
    assert len(reply.engines) == MAX_STATUS_ROWS
    assert reply.engines_more == 4
    assert reply.engines[0].instance == late.instance


def test_a_long_answer_is_built_in_slices_while_others_are_served() -> None:
    world = World(config(), check=False)
    a = world.engine("a")
    a.register(namespace())
    for number in range(100):
        token = number.to_bytes(16, "big")
        process = fx.ProcessId(1000 + number)
        world.core.process_joined(process, token, token, world.now_ns)  # type: ignore[arg-type]
    asked = a.send(m.Status())
    pinged = a.send(m.Ping())
    answered = [one for one in world.core.take_effects() if isinstance(one, fx.SendReply)]
    for one in answered:
        a.receive(one)
    assert pinged in a.replies
    assert asked not in a.replies
    world.pump()
    assert len(a.answer(asked).engines) == 101
