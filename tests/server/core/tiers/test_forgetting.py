"""CLEAR and DELETE reach the tiers, behind writes under way, now or when a tier is back."""

from __future__ import annotations

import pytest

from protocol import messages as m
from protocol.errors import KvkeepError
from protocol.ids import Fingerprint
from protocol.namespace import fingerprint
from server.core import effects as fx
from server.core.config import TierConfig
from server.core.tiers import forgetting as module
from server.core.tiers import tier as tier_module
from server.core.tiers.policy import Policy
from tests.server.core.tiers.model import TierWorld, tiered
from tests.server.core.tiers.reading import world_of
from tests.server.core.world import SECOND, Engine, chain, namespace

NAME, OTHER = fingerprint(namespace()), fingerprint(namespace("other"))


def begin(world: TierWorld, name: str = "a", model: str = "m") -> Engine:
    engine = world.engine(name)
    engine.register(namespace(model))
    return engine


def drops(world: TierWorld) -> list[fx.TierDrop]:
    return [effect for effect in world.log if isinstance(effect, fx.TierDrop)]


def test_clear_empties_a_tier_of_one_namespace() -> None:
    world = TierWorld(tiered(extents=8))
    world.up()
    a, b = begin(world), begin(world, "b", "other")
    a.save(chain("x", 5))
    b.save(chain("x", 5))
    a.ask(m.Clear(fingerprint=NAME))
    assert {name[0] for name in world.tiers[0].store} == {OTHER}
    a.save(chain("y", 3))
    assert sum(name[0] == NAME for name in world.tiers[0].store) == 3


def test_a_namespace_that_only_a_tier_has_is_cleared_by_its_name() -> None:
    # After a reboot L1 is empty, and nobody has registered yet.
    world = TierWorld(tiered())
    world.up()
    world.tiers[0].store = {(name, key, 0) for name in (NAME, OTHER) for key in chain("x", 3)}
    operator = world.engine("o")
    reply = operator.ask(m.Clear(fingerprint=NAME))
    assert (reply.chunks, reply.tiers_pending) == (0, 0)
    assert {name[0] for name in world.tiers[0].store} == {OTHER}


def test_made_up_names_do_not_push_out_what_is_owed_of_real_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_OWED", 8)
    world = TierWorld(tiered(extents=8), auto_tiers=False)
    world.up()
    operator = world.engine("o")
    for number in range(4):
        operator.begin(m.Clear(fingerprint=Fingerprint(bytes([number]) * 16)))
    with pytest.raises(KvkeepError, match="BUSY"):
        operator.ask(m.Clear(fingerprint=Fingerprint(b"z" * 16)))
    operator.begin(m.Clear(fingerprint=Fingerprint(bytes(16))))  # owed already
    a = begin(world)
    a.begin(m.Clear(fingerprint=NAME))
    assert not world.core._state.tiers.readable(NAME)
    assert world.core.stats().get("tier_t_drops_lost", 0) == 0
    assert world.core.stats()["tier_t_drops_owed"] == 5


def test_without_a_tier_to_tell_an_unknown_namespace_is_an_error() -> None:
    world = TierWorld(tiered(TierConfig("a", Policy.NONE)))
    world.up()
    with pytest.raises(KvkeepError, match="UNKNOWN_NAMESPACE"):
        world.engine("o").ask(m.Clear(fingerprint=NAME))


def test_a_write_in_flight_is_over_before_and_later_ones_wait_for_the_answer() -> None:
    world = TierWorld(tiered(extents=16), auto_tiers=False)
    world.up()
    a = begin(world)
    a.save(chain("x", 3))
    clear = a.begin(m.Clear(fingerprint=NAME))
    a.save(chain("y", 3))
    assert not world.core._state.tiers.readable(NAME)
    assert clear not in a.replies
    (drop,) = drops(world)
    world.answer(drop.job)
    world.pump()
    assert a.answer(clear).tiers_pending == 0
    assert not world.tiers[0].store
    assert world.core._state.tiers.readable(NAME)
    world.auto_tiers = True
    world.pump()
    for number in list(world.tier_jobs):
        world.answer(number)
    world.pump()
    assert {name[1] for name in world.tiers[0].store} == set(chain("y", 3))


def test_a_tier_that_was_away_is_told_when_it_is_back() -> None:
    world = TierWorld(tiered())
    world.up()
    a = begin(world)
    a.save(chain("x", 3))
    world.down()
    assert a.ask(m.Clear(fingerprint=NAME)).tiers_pending == 1
    assert world.core.stats()["tier_t_drops_owed"] == 1
    world.up()
    world.wait(0)
    assert not world.tiers[0].store
    assert world.core.stats()["tier_t_drops_owed"] == 0


def test_a_drop_that_fails_is_tried_again_and_bars_the_namespace_meanwhile() -> None:
    world = TierWorld(tiered())
    world.up()
    a = begin(world)
    a.save(chain("x", 3))
    world.tiers[0].fails = True
    deleted = a.send(m.Delete(fingerprint=NAME, keys=b"".join(chain("x", 2)[1:])))
    world.wait(3 * SECOND)
    assert deleted not in a.replies
    assert not world.core._state.tiers.readable(NAME)
    world.tiers[0].fails = False
    world.wait(60 * SECOND)
    assert world.core._state.tiers.readable(NAME)
    assert {name[1] for name in world.tiers[0].store} == set(chain("x", 1))
    assert a.answer(deleted).tiers_pending == 0


def test_delete_takes_what_continues_a_chunk_and_what_only_the_tier_has() -> None:
    world = TierWorld(tiered())
    world.up()
    a = begin(world)
    keys = chain("x", 6)
    a.save(keys)
    gone = chain("gone", 1)
    world.tiers[0].store.add((NAME, gone[0], 0))
    a.ask(m.Delete(fingerprint=NAME, keys=keys[2] + gone[0]))
    assert {name[1] for name in world.tiers[0].store} == set(keys[:2])


def test_more_than_can_be_owed_becomes_all_of_the_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_OWED_KEYS", 4)
    world = TierWorld(tiered())
    a = begin(world)
    a.ask(m.Delete(fingerprint=NAME, keys=b"".join(chain("x", 5))))
    world.up()
    (drop,) = drops(world)
    assert drop.keys == b""
    assert world.core.stats()["tier_t_deletes_widened"] == 1


def test_a_tier_that_is_only_read_forgets_nothing() -> None:
    world = TierWorld(tiered(TierConfig("t", Policy.NONE)))
    world.up()
    a = begin(world)
    a.save(chain("x", 3))
    a.ask(m.Clear(fingerprint=NAME))
    a.ask(m.Delete(fingerprint=NAME, keys=b"".join(chain("x", 3))))
    assert not drops(world)
    assert not any(isinstance(effect, fx.TierPut) for effect in world.log)


# --- who waits ------------------------------------------------------------------------------


def silent(world: TierWorld) -> Engine:
    """An engine whose chunks a tier has that does not answer any more."""
    world.up()
    a = begin(world)
    a.save(chain("x", 3))
    world.auto_tiers = False
    return a


def asked(world: TierWorld, engine: Engine, timeout_ns: int = 3600 * SECOND) -> int:
    return engine.begin(m.Clear(fingerprint=NAME), timeout_ns)


@pytest.mark.parametrize(
    ("timeout_ns", "longest_ns"), [(3600 * SECOND, 5 * SECOND), (2 * SECOND, 3 * SECOND // 2)]
)
def test_the_reply_comes_without_a_tier_that_does_not_answer(
    timeout_ns: int, longest_ns: int
) -> None:
    world = TierWorld(tiered())
    a = silent(world)
    seq = asked(world, a, timeout_ns)
    world.wait(longest_ns - 1)
    assert seq not in a.replies
    world.wait(1)
    assert a.answer(seq) == m.ForgottenReply(chunks=3, tiers_pending=1)
    (drop,) = drops(world)
    world.answer(drop.job)
    assert world.core.stats()["tier_t_drops_owed"] == 0
    assert a.lookup(chain("x", 3)).ready == 0


def test_the_reply_comes_when_a_tier_cannot_be_asked_any_more() -> None:
    world = TierWorld(tiered())
    a = silent(world)
    seq = asked(world, a)
    world.down()
    world.pump()
    assert a.answer(seq).tiers_pending == 1


def test_each_tier_that_is_written_to_is_waited_for_and_counted() -> None:
    config = tiered(TierConfig("a"), TierConfig("b"), TierConfig("c"), TierConfig("d", Policy.NONE))
    world = TierWorld(config, auto_tiers=False)
    for number in (0, 1, 3):
        world.up(number)
    a, b = begin(world), begin(world, "b", "other")
    seq = asked(world, a)
    world.auto_tiers = True
    assert b.ask(m.Clear(fingerprint=OTHER)).tiers_pending == 1
    for drop in drops(world)[:2]:
        assert seq not in a.replies
        world.answer(drop.job)
        world.pump()
    assert a.answer(seq).tiers_pending == 1


def test_more_namespaces_than_drops_fly_at_once_are_forgotten_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tier_module, "MAX_DROPS", 2)
    world = TierWorld(tiered(), auto_tiers=False)
    world.up()
    engines = [begin(world, str(number), f"m{number}") for number in range(5)]
    seq = engines[0].begin(m.Clear())
    assert len(drops(world)) == 2
    for number in range(len(engines)):
        assert seq not in engines[0].replies
        world.answer(drops(world)[number].job)
        world.pump()
    assert engines[0].answer(seq).tiers_pending == 0


# --- what is written down -------------------------------------------------------------------


def test_what_is_owed_is_written_down_before_the_reply_and_until_it_is_forgotten() -> None:
    world = TierWorld(tiered())
    a = begin(world)
    world.auto_owed = False
    seq = asked(world, a)
    assert seq not in a.replies
    assert world.owed == {(0, NAME): (1, b"")}
    (keep,) = [effect for effect in world.log if isinstance(effect, fx.KeepOwed)]
    world.owed_kept(keep)
    world.pump()
    assert a.answer(seq).tiers_pending == 1
    world.auto_owed = True
    world.up()
    assert not world.owed


def test_an_older_file_is_not_taken_for_the_newer_one() -> None:
    world = TierWorld(tiered())
    a = begin(world)
    world.auto_owed = False
    one, two = asked(world, a), asked(world, a)
    first, second = [effect for effect in world.log if isinstance(effect, fx.KeepOwed)]
    world.owed_kept(first)
    world.pump()
    assert two not in a.replies
    world.owed_kept(second)
    world.pump()
    assert {a.answer(one).tiers_pending, a.answer(two).tiers_pending} == {1}


def test_a_file_that_is_not_written_does_not_hold_the_reply_back_for_long() -> None:
    world = TierWorld(tiered())
    a = begin(world)
    world.auto_owed = False
    seq = asked(world, a)
    world.wait(5 * SECOND)
    assert a.answer(seq).tiers_pending == 1


def test_chunks_are_written_down_with_what_the_tier_was_told_and_has_not_answered() -> None:
    world = TierWorld(tiered())
    a = silent(world)
    keys = chain("gone", 3)
    for key in keys[:2]:
        a.begin(m.Delete(fingerprint=NAME, keys=key))
    assert [drop.keys for drop in drops(world)] == keys[:1]
    assert world.owed == {(0, NAME): (1, keys[0] + keys[1])}
    asked(world, a)
    a.begin(m.Delete(fingerprint=NAME, keys=keys[2]))
    assert world.owed == {(0, NAME): (1, b"")}
    for _ in range(2):
        world.answer(drops(world)[-1].job)
        world.pump()
    assert not world.owed


def test_of_a_chunk_that_is_owed_no_part_is_left_out_for_one_that_has_fewer() -> None:
    world = TierWorld(tiered())
    for key, shards in zip(chain("x", 2), (2, 1), strict=True):
        world.core._state.forgetting.delete_name(NAME, key, shards)
    world.up()
    world.pump()
    assert [(one.keys, one.shards) for one in drops(world)] == [(b"".join(chain("x", 2)), 2)]


def test_a_server_owes_what_a_former_one_wrote_down() -> None:
    world = TierWorld(tiered(TierConfig("a"), TierConfig("b", Policy.NONE)), auto_tiers=False)
    kept, gone = chain("x", 2), chain("y", 2)
    for tier in world.tiers:
        tier.store = {(name, key, 0) for name in (NAME, OTHER) for key in kept + gone}
    world.owed = {(0, NAME): (0, b""), (1, OTHER): (1, b"".join(gone))}
    for (number, name), (shards, keys) in world.owed.items():
        world.core.owes(fx.TierId(number), Fingerprint(name), shards, keys, world.now_ns)
    world.up(0)
    world.up(1)
    tiers = world.core._state.tiers
    assert [tier.name for tier in tiers.readable(NAME)] == ["b"]
    assert [tier.name for tier in tiers.readable(OTHER)] == ["a"]
    for drop in drops(world):
        world.answer(drop.job)
    world.pump()
    assert len(tiers.readable(NAME)) == len(tiers.readable(OTHER)) == 2
    assert world.tiers[0].store == {(OTHER, key, 0) for key in kept + gone}
    assert world.tiers[1].store == {(NAME, key, 0) for key in kept + gone} | {
        (OTHER, key, 0) for key in kept
    }
    assert not world.owed


def test_a_drop_that_a_killed_porter_does_late_loses_what_was_written_since() -> None:
    # No more than a miss: the next porter forgot what was to be forgotten before that was written.
    world, a = world_of(TierConfig("t"), extents=8, auto_tiers=False)
    keys, name = chain("x", 3), fingerprint(a.space)
    a.save(keys)
    world.settle()
    a.begin(m.Clear(fingerprint=name))
    (late,) = world.flying(0, fx.TierDrop)
    world.down(0, stuck_life=1)
    world.up()
    world.wait(2 * SECOND)
    world.settle()
    world.wait(2 * SECOND)
    assert drops(world)[1:]
    assert not world.tiers[0].store
    assert world.flying(0, fx.TierDrop) == [late]
    a.save(keys)
    world.settle()
    assert world.tiers[0].store == world.names_of(a, keys)
    world.gone(0, 1)
    assert not world.tiers[0].store
    assert a.lookup(keys).ready == len(keys)  # of L1
