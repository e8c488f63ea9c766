"""Quotas of lower tiers: checked, kept, and told before anything is written."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.errors import ErrorCode, ReplyError
from protocol.namespace import fingerprint
from protocol.quotas import MAX_QUOTAS, QuotaChange, QuotaRow, TenantKind
from server.core import effects as fx
from server.core.config import TierConfig
from server.core.tiers.parts import Share, Status, pack_shares
from tests.server.core.engine import Engine
from tests.server.core.tiers.model import TierWorld, tiered
from tests.server.core.world import PAGE, SECOND, chain, namespace

SALT, OTHER = b"s" * 16, b"t" * 16
DISK = TierConfig("disk", shared_bytes=100)


def change(floor: int, limit: int = 0, tier: str = "disk", tenant: bytes = SALT) -> QuotaChange:
    return QuotaChange(
        kind=TenantKind.SALT, tenant=tenant, floor_bytes=floor, limit_bytes=limit, tier=tier
    )


def allot(engine: Engine, wanted: QuotaChange) -> tuple[QuotaRow, ...]:
    reply: m.QuotasReply = engine.ask(m.Quotas(change=wanted))
    return reply.quotas


def begun(*tiers: TierConfig) -> tuple[TierWorld, Engine]:
    world = TierWorld(tiered(*(tiers or (DISK,))))
    engine = world.engine()
    engine.register(namespace())
    return world, engine


def test_a_tier_is_told_at_once_and_by_its_next_porter_before_any_write() -> None:
    world, engine = begun()
    world.up()
    assert not world.tiers[0].quotas, "nothing is said where there is none"
    rows = allot(engine, change(40, 60))
    assert [(one.tier, one.floor_bytes, one.limit_bytes) for one in rows] == [("disk", 40, 60)]
    assert world.tiers[0].quotas == [Share(True, SALT, 40, 60)]
    world.down()
    allot(engine, change(30))
    engine.save(chain("x", 4))
    del world.log[:]
    world.up()
    world.wait(5 * SECOND)
    assert world.tiers[0].quotas == [Share(True, SALT, 30, 0)]
    kinds = [type(one) for one in world.log]
    assert kinds.index(fx.TierAllot) < kinds.index(fx.TierPut)
    assert allot(engine, change(0)) == ()
    assert world.tiers[0].quotas == []


def test_what_is_taken_back_while_a_tier_is_left_alone_is_told_afterwards() -> None:
    world, engine = begun()
    world.up()
    allot(engine, change(40))
    tier = world.core._state.tiers.tiers[0]
    tier.breaker.open("a read hangs")
    assert (tier.is_up, tier.is_open) == (True, False), "its porter lives, and knows the quota"
    assert allot(engine, change(0)) == ()
    world.wait(5 * SECOND)
    assert (tier.is_up, tier.is_open) == (True, True)
    assert world.tiers[0].quotas == []


def test_a_tier_that_could_not_be_told_is_told_again() -> None:
    world, engine = begun()
    world.up()
    world.tiers[0].fails = True
    allot(engine, change(40))
    assert world.tiers[0].quotas is None
    world.tiers[0].fails = False
    world.wait(2 * SECOND)
    assert world.tiers[0].quotas == [Share(True, SALT, 40, 0)]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (change(101), "at most 100 bytes, 7/8 of its size: 70 bytes are left"),
        (change(71), "70 bytes are left"),
        (change(1, tier="valkey"), "keeps no quotas: .* ledger=/a/folder"),
        (change(0, 1, tier="valkey"), "keeps no quotas"),
        (change(1, tier="s3"), "no floors, .* a limit, so that all fit together"),
        (change(1, 2, tier="s3"), "no floors"),
        (change(1, tier="tape"), "there are: disk, valkey, s3"),
        (change(0, tier="tape"), "no lower tier"),
        (change(9, limit=8), "below the floor"),
    ],
)
def test_what_cannot_be_is_refused(wanted: QuotaChange, expected: str) -> None:
    _, engine = begun(DISK, TierConfig("valkey"), TierConfig("s3", has_ledger=True))
    allot(engine, change(30, tenant=OTHER))
    request = m.Quotas(change=wanted)
    with pytest.raises(ReplyError, match=expected) as caught:
        engine.ask(request)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT
    assert len(engine.ask(m.Quotas()).quotas) == 1


def test_a_store_with_a_ledger_is_told_its_limits() -> None:
    world, engine = begun(TierConfig("s3", has_ledger=True))
    world.up()
    rows = allot(engine, change(0, 60, tier="s3"))
    assert [(one.tier, one.floor_bytes, one.limit_bytes) for one in rows] == [("s3", 0, 60)]
    assert world.tiers[0].quotas == [Share(True, SALT, 0, 60)]


def test_there_is_a_most_of_quotas_in_all_tiers_together() -> None:
    _, engine = begun()
    for number in range(1, MAX_QUOTAS):
        allot(engine, change(0, 1, tenant=number.to_bytes(16, "big")))
    allot(engine, change(1 * PAGE, tier=""))
    assert engine.error(m.Quotas(change=change(0, 1))) is ErrorCode.LIMIT_EXCEEDED


def test_one_tenant_has_a_quota_in_each_place_and_what_it_holds_is_told() -> None:
    world, engine = begun()
    world.up()
    name = fingerprint(engine.space)
    allot(engine, change(PAGE, tier=""))
    allot(engine, change(40))
    rows = allot(
        engine,
        QuotaChange(kind=TenantKind.NAMESPACE, tenant=name, floor_bytes=7, tier="disk"),
    )
    assert [(one.tenant, one.tier) for one in rows] == [
        (SALT, ""),
        (SALT, "disk"),
        (name, "disk"),
    ]
    world.auto_tiers = False
    world.core._state.tiers.tiers[0]._check()
    world.pump()
    (job,) = world.flying(0, fx.TierHealth)
    packed = pack_shares([(name, 55)], [(SALT, 33)])
    world.core.tier_health(job.job, True, 0, 0, world.now_ns, packed)
    rows = engine.ask(m.Quotas()).quotas
    assert [(one.held_bytes, one.tier_bytes) for one in rows] == [
        (0, {"disk": 33}),
        (33, {}),
        (55, {}),
    ]


def test_quotas_are_kept_and_restored_by_tier() -> None:
    world, engine = begun()
    allot(engine, change(PAGE, tier=""))
    allot(engine, change(40))
    kept = [one for one in world.log if isinstance(one, fx.KeepQuotas)][-1].quotas
    again = TierWorld(tiered(DISK))
    refused = again.core.allot([change(50)], kept)
    assert refused == []
    again.up()
    assert again.tiers[0].quotas == [Share(True, SALT, 50, 0)], "the settings come first"
    without = TierWorld(tiered(TierConfig("other")))
    (refusal,) = without.core.allot([], kept)
    assert refusal.startswith(f"salt {SALT.hex()} in disk: ")


def test_what_a_quota_leaves_no_room_for_is_given_up_and_the_rest_goes_on() -> None:
    world, engine = begun()
    world.up()
    world.tiers[0].put_status = Status.OVER
    engine.save(chain("x", 4))
    stats = world.core.stats()
    assert (stats["tier_disk_over"], stats["tier_disk_puts_dropped"]) == (4, 4)
    assert stats["tier_disk_puts_waiting"] == 0
    world.tiers[0].put_status = Status.OK
    engine.save(chain("y", 4))
    assert len(world.tiers[0].store) == 4, "no pause, as when a tier is full"
