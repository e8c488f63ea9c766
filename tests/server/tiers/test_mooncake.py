"""The Mooncake tier against a real cluster, when all is well and when it is full."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from server.core.tiers.parts import Share, Status
from server.porter.engines import open_tier
from server.tiers import mooncake as engine
from server.tiers import values
from server.tiers.interface import HEADER_BYTES, Name, Tier, TierError
from server.tiers.ledger import with_ledger
from server.tiers.ledger.tier import LedgerTier
from server.tiers.mooncake import Mooncake
from server.tierspec import parse
from tests.stores import parts
from tests.stores.mooncake import CLIENT_TTL_S, LEASE_MS, Cluster, Slots, cluster, until
from tests.stores.parts import FINGERPRINT, OTHER_FINGERPRINT, key
from tests.stores.valkey import required
from tests.wire.ports import free_port

OK, ABSENT, CORRUPT, NO_ROOM, ERROR, *_ = Status
NODE_MIB = 64


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    required("mooncake")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("mooncake"), nodes=2, node_mib=NODE_MIB) as made:
        yield made


@pytest.fixture(scope="module")
def opened(servers: Cluster) -> Iterator[Mooncake]:
    tier = open_tier(parse(f"mooncake://{servers.address}?replicas=1&max_replicas=2"))
    assert isinstance(tier, Mooncake)
    yield tier
    tier.close()


@pytest.fixture
def tier(opened: Mooncake) -> Mooncake:
    for fingerprint in (FINGERPRINT, OTHER_FINGERPRINT):
        opened.clear(fingerprint)
    return opened


@pytest.fixture
def slots(tier: Mooncake) -> Iterator[Slots]:
    made = Slots(tier)
    yield made
    made.forget()


def copies(tier: Mooncake, number: int) -> int:
    name = f"kvkeep/1/{FINGERPRINT.hex()}/{key(number).hex()}/0"
    return len(tier._store.get_replica_desc(name))


def names(*numbers: int) -> list[Name]:
    return [Name(FINGERPRINT, key(number), 0) for number in numbers]


def timed_put(slots: Slots, numbers: list[int], statuses: list[Status]) -> float:
    begun = time.monotonic()
    statuses += slots.put(*numbers)
    return time.monotonic() - begun


def test_what_was_put_comes_back_in_its_order(tier: Mooncake, slots: Slots) -> None:
    numbers = list(range(30))
    assert slots.put(*numbers) == [OK] * 30
    assert slots.get(*numbers) == [OK] * 30
    numbers.reverse()
    assert slots.get(*numbers[:20], 99, *numbers[20:]) == [OK] * 20 + [ABSENT] + [OK] * 10


def test_nothing_beside_the_value_is_written(slots: Slots) -> None:
    assert slots.put(1, 2) == [OK, OK]
    assert slots.get(1, 2) == [OK, OK]
    rooms = [one.room for one in slots.parts(1, 2, 3)]
    payload = parts.SLOT_BYTES - 1000
    assert not any(rooms[0][payload:])
    assert not any(rooms[1][payload:])
    assert not any(rooms[2])


def test_existence_is_told_name_by_name(tier: Mooncake, slots: Slots) -> None:
    slots.put(*range(10))
    found = tier.batch_exists(names(*range(8), 77, 8, 9))
    assert found == [True] * 8 + [False] + [True] * 2
    many = tier.batch_exists(names(*range(10), *range(1000, 3000)))
    assert many == [True] * 10 + [False] * 2000
    assert tier.batch_exists([]) == []


def test_touching_tells_it_too(tier: Mooncake, slots: Slots) -> None:
    assert slots.put(3, 5) == [OK] * 2
    assert tier.touch([Name(FINGERPRINT, key(number), 0) for number in (3, 4, 5)]) == [
        OK,
        ABSENT,
        OK,
    ]


def test_a_second_put_leaves_the_first_value(slots: Slots) -> None:
    assert slots.put(1) == [OK]
    assert slots.put(1, 2) == [OK, OK]
    assert slots.get(1, 2) == [OK, OK]


def test_deletion_does_not_wait_for_leases(tier: Mooncake, slots: Slots) -> None:
    slots.put(1, 2, 3)
    assert slots.get(1, 2, 3) == [OK] * 3  # leased now
    tier.delete(names(1, 3, 55))
    assert slots.get(1, 2, 3) == [ABSENT, OK, ABSENT]


def test_a_namespace_is_forgotten_and_no_other(tier: Mooncake, slots: Slots) -> None:
    slots.put(1, 2)
    slots.put(1, 2, fingerprint=OTHER_FINGERPRINT)
    assert slots.get(1, 2) == [OK, OK]
    tier.clear(FINGERPRINT)
    assert slots.get(1, 2) == [ABSENT, ABSENT]
    assert slots.get(1, 2, fingerprint=OTHER_FINGERPRINT) == [OK, OK]


def test_wrong_bytes_are_seen(tier: Mooncake, slots: Slots) -> None:
    assert slots.put(1, 2) == [OK, OK]
    name = f"kvkeep/1/{FINGERPRINT.hex()}/{key(1).hex()}/0"
    tier._store.remove(name, True)
    assert tier._store.put(name, bytes(128 + parts.PAYLOAD_BYTES)) == 0
    assert slots.get(1, 2) == [CORRUPT, OK]


@pytest.mark.parametrize("num_bytes", [1, 127, 5000, 128 + parts.PAYLOAD_BYTES + 1, 1 << 20])
def test_a_value_of_another_length_is_corrupt(tier: Mooncake, slots: Slots, num_bytes: int) -> None:
    assert slots.put(2, 3) == [OK, OK]
    name = f"kvkeep/1/{FINGERPRINT.hex()}/{key(1).hex()}/0"
    assert tier._store.put(name, b"x" * num_bytes) == 0
    assert slots.get(1, 2, 3) == [CORRUPT, OK, OK]


def test_what_is_used_often_lies_on_more_nodes(tier: Mooncake, slots: Slots) -> None:
    slots.put(101, heat=0)
    slots.put(102, heat=4)
    slots.put(103, heat=1000)
    assert [copies(tier, number) for number in (101, 102, 103)] == [1, 2, 2]
    for _ in range(6):
        assert slots.get(101) == [OK]
    tier.delete(names(101))
    assert slots.put(101) == [OK]
    assert copies(tier, 101) == 2  # it was read often, so it is put with one more
    assert slots.get(101, 102, 103) == [OK] * 3


def test_a_put_of_several_temperatures_is_one_answer(tier: Mooncake, slots: Slots) -> None:
    made = [
        replace(one, heat=heat)
        for one, heat in zip(slots.parts(*range(201, 207)), (50, 0) * 3, strict=True)
    ]
    for one in made:
        one.payload[:] = parts.content(one)
        values.seal(one, parts.PARENT)
    assert tier.batch_put(made) == [OK] * 6
    assert [copies(tier, number) for number in range(201, 207)] == [2, 1] * 3
    assert slots.get(*range(201, 207)) == [OK] * 6


def test_several_threads_at_once(tier: Mooncake) -> None:
    failed: list[object] = []

    def carry(first: int) -> None:
        mine = Slots(tier, 12)
        for turn in range(3):
            numbers = range(first + 100 * turn, first + 100 * turn + 12)
            if mine.put(*numbers) != [OK] * 12 or mine.get(*numbers) != [OK] * 12:
                failed.append(numbers)
        mine.forget()

    threads = [threading.Thread(target=carry, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert not any(thread.is_alive() for thread in threads)


def test_one_server_reads_what_another_wrote(servers: Cluster, slots: Slots) -> None:
    slots.put(*range(5))
    other = open_tier(parse(f"mooncake://{servers.address}"))
    try:
        theirs = Slots(other)
        assert theirs.get(*range(5)) == [OK] * 5
        theirs.forget()
    finally:
        other.close()


def test_health_is_a_value_that_made_the_way(tier: Mooncake) -> None:
    assert tier.health().ok
    assert tier._store.remove_by_regex("^kvkeep/1/health/", True) == 0  # none is left behind


def test_memory_that_is_known_already_is_refused(tier: Mooncake, slots: Slots) -> None:
    with pytest.raises(TierError, match=r"cannot be registered \(code -"):
        tier.register(slots.memory.ctypes.data, slots.memory.size)


def test_a_full_cluster_makes_room_or_says_so(tmp_path: Path) -> None:
    """Twice as much as there is room for: the library evicts behind our back and refuses."""
    with cluster(tmp_path, node_mib=16) as small:
        tier = open_tier(parse(f"mooncake://{small.address}"))
        slots = Slots(tier, 16, 1 << 18)
        statuses: list[Status] = []
        for begin in range(0, 128, 16):
            statuses += slots.put(*range(begin, begin + 16))
        print("kept", statuses.count(OK), "refused", statuses.count(NO_ROOM), "of 128")
        assert set(statuses) <= {OK, NO_ROOM}
        assert statuses.count(OK) > 64
        there = tier.batch_exists(names(*range(128)))
        assert 0 < sum(there) < 128
        assert tier.health().ok
        tier.close()


def test_a_cluster_whose_values_are_all_read_refuses_soon(tmp_path: Path) -> None:
    with cluster(tmp_path, node_mib=16) as small:
        tier = open_tier(parse(f"mooncake://{small.address}"))
        slots = Slots(tier, 16, 1 << 18)
        numbers = iter(range(10_000))
        refused: list[Status] = []
        took = 0.0
        for _ in range(20):  # until it is full of values that are leased
            some = [next(numbers) for _ in range(16)]
            took = timed_put(slots, some, refused)
            tier.batch_exists(names(*range(some[-1] + 1)))
            if NO_ROOM in refused[-16:]:
                break
        assert NO_ROOM in refused[-16:]
        assert ERROR not in refused
        # Two pieces: the first waits for room, the other only asks.
        assert took < 2 * engine.ROOM_WAIT_S + 1
        again = timed_put(slots, [next(numbers) for _ in range(16)], refused)
        print(f"refused after {took:.2f} s, then after {again:.2f} s")
        until(
            lambda: slots.put(next(numbers)) == [OK],
            10 * LEASE_MS / 1000 + CLIENT_TTL_S,
        )
        tier.close()


def test_a_cluster_without_a_node_holds_nothing(tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=0) as empty:
        tier = open_tier(parse(f"mooncake://{empty.address}"))
        slots = Slots(tier)
        assert slots.put(1, 2) == [NO_ROOM, NO_ROOM]
        assert slots.get(1, 2) == [ABSENT, ABSENT]
        assert tier.health().ok
        assert "no node" in tier.health().note
        tier.close()


def test_a_server_may_lend_memory_itself(tmp_path: Path) -> None:
    with cluster(tmp_path, nodes=0) as empty:
        tier = open_tier(parse(f"mooncake://{empty.address}?segment=32M"))
        empty.wait_for_nodes(1)
        slots = Slots(tier)
        assert slots.put(1, 2) == [OK, OK]
        assert slots.get(1, 2) == [OK, OK]
        tier.close()


def test_no_master_is_one_line() -> None:
    port = free_port()
    with pytest.raises(TierError, match=f"by way of the master at 127.0.0.1:{port} ") as caught:
        open_tier(parse(f"mooncake://127.0.0.1:{port}"))
    assert "\n" not in str(caught.value)


def test_it_is_a_tier(tier: Mooncake) -> None:
    known: Tier = tier
    assert known.batch_get_into([]) == []
    assert known.batch_put([]) == []


def test_a_tenants_limit_is_kept_and_its_values_are_named(
    tier: Mooncake, slots: Slots, tmp_path: Path
) -> None:
    spec = f"mooncake://m:1?ledger={tmp_path}/ledger"
    beside = with_ledger(tier, parse(spec))
    assert isinstance(beside, LedgerTier)
    salt, other, value = b"s" * 16, b"o" * 16, parts.PAYLOAD_BYTES + HEADER_BYTES
    beside.set_quotas([Share(True, salt, 0, 3 * value)])

    def put(whose: bytes, *numbers: int) -> list[Status]:
        made = slots.parts(*numbers)
        for one in made:
            one.payload[:] = parts.content(one)
            values.seal(one, parts.PARENT)
        return beside.batch_put([replace(one, salt=whose) for one in made])

    assert put(other, 20, 21) == [OK] * 2
    for number in range(0, 9, 3):
        assert put(salt, *range(number, number + 3)) == [OK] * 3
    assert slots.get(*range(9)) == [ABSENT] * 6 + [OK] * 3
    assert slots.get(20, 21) == [OK] * 2
    assert sorted(beside.of_salt(salt, 9)) == sorted(names(6, 7, 8))
    assert beside.health().salts == ((salt, 3 * value),)
    beside.delete(beside.of_salt(salt, 9))
    assert tier.batch_exists(names(6, 7, 8, 20)) == [False] * 3 + [True]
    assert beside.of_salt(salt, 9) == []
    beside._ledger.close()
