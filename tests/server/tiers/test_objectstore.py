"""The S3 tier against a real server: when all is well, when it is killed, stopped, full, restarted.

What it measures it prints; the limits are those of the docs.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from server.core.tiers.parts import Share, Status
from server.porter.engines import open_tier
from server.tiers.interface import HEADER_BYTES, Moving, Name, Sharing, Tier, TierError
from server.tiers.objectstore import path_of
from server.tierspec import TierSpec, parse
from tests.stores import parts, s3
from tests.stores.parts import fetched, filled, names
from tests.stores.valkey import until
from tests.wire.ports import free_port

OK, ABSENT, CORRUPT, NO_ROOM, ERROR, *_ = Status
NUMBERS = tuple(range(12))
VALUE = HEADER_BYTES + parts.PAYLOAD_BYTES
T = TypeVar("T")


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    s3.required()


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.Weed]:
    s3.required()
    with s3.weed(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def tier(
    weed: s3.Weed, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Tier]:
    s3.credentials(monkeypatch)
    opened = open_tier(spec(weed, request.node.name.partition("[")[0]))
    yield opened
    opened.close()


def spec(weed: s3.Weed, prefix: str = "", bucket: str = s3.BUCKET) -> TierSpec:
    return parse(f"s3://{bucket}/{prefix}?endpoint=http://127.0.0.1:{weed.port}")


def timed(what: str, call: Callable[[], T], limit_s: float = 9.0) -> T:
    begun = time.monotonic()
    result = call()
    took_s = time.monotonic() - begun
    print(f"s3: {what}: {took_s:.2f} s")
    assert took_s < limit_s, what
    return result


def works(tier: Tier) -> bool:
    return tier.batch_put(filled(777)) == [OK] and fetched(tier, 777) == [OK]


def each_call_is_bounded(tier: Tier, when: str) -> None:
    absent = [Name(parts.FINGERPRINT, parts.key(number), 0) for number in range(500, 520)]
    with pytest.raises(TierError, match=f"s3: {s3.BUCKET}: "):
        timed(f"exists {when}", lambda: tier.batch_exists(absent))
    assert timed(f"get {when}", lambda: fetched(tier, *NUMBERS)) == [ERROR] * len(NUMBERS)
    assert timed(f"put {when}", lambda: tier.batch_put(filled(300, 301))) == [ERROR] * 2
    assert not timed(f"health {when}", tier.health).ok
    with pytest.raises(TierError):
        timed(f"delete {when}", lambda: tier.delete(absent))
    with pytest.raises(TierError):
        timed(f"clear {when}", lambda: tier.clear(parts.OTHER_FINGERPRINT))


def test_put_exists_get(tier: Tier) -> None:
    assert tier.batch_exists(names(filled(*NUMBERS))) == [False] * len(NUMBERS)
    assert tier.batch_put(filled(*NUMBERS)) == [OK] * len(NUMBERS)
    assert tier.batch_exists(names(filled(3, 99, 4))) == [True, False, True]
    assert fetched(tier, *NUMBERS, 99) == [OK] * len(NUMBERS) + [ABSENT]


def test_each_object_that_is_carried_is_a_sign_of_life(tier: Tier) -> None:
    assert isinstance(tier, Moving)
    moves: list[None] = []
    tier.moved = lambda: moves.append(None)
    assert tier.batch_put(filled(1, 2)) == [OK] * 2
    assert len(moves) == 2
    assert fetched(tier, 1, 2, 3) == [OK, OK, Status.ABSENT]
    assert len(moves) == 4


def test_shards_namespaces_and_prefixes_are_apart(weed: s3.Weed, tier: Tier) -> None:
    assert tier.batch_put(filled(1, shard=1)) == [OK]
    assert fetched(tier, 1) == [ABSENT]
    assert fetched(tier, 1, shard=1) == [OK]
    assert fetched(tier, 1, shard=1, fingerprint=parts.OTHER_FINGERPRINT) == [ABSENT]
    elsewhere = open_tier(spec(weed, "elsewhere"))
    assert fetched(elsewhere, 1, shard=1) == [ABSENT]
    elsewhere.close()


def test_four_mebibytes_and_many_calls_at_once(tier: Tier) -> None:
    big = 4 << 20
    assert tier.batch_put(filled(*range(6), slot_bytes=big)) == [OK] * 6
    found: list[list[Status]] = []

    def get() -> None:
        found.append(fetched(tier, *range(6), slot_bytes=big))

    threads = [threading.Thread(target=get) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [[OK] * 6] * 4


def test_another_length_is_corrupt_and_is_replaced(tier: Tier) -> None:
    assert tier.batch_put(filled(1)) == [OK]
    assert fetched(tier, 1, payload_bytes=100) == [CORRUPT]
    assert tier.batch_put(filled(1, payload_bytes=100)) == [OK]
    assert fetched(tier, 1, payload_bytes=100) == [OK]


def test_what_is_there_is_not_sent_again(tier: Tier) -> None:
    assert tier.batch_put(filled(1)) == [OK]
    (other,) = filled(1)
    other.payload[:4] = b"else"
    assert tier.batch_put([other]) == [OK]
    assert fetched(tier, 1) == [OK]


def test_what_another_server_deleted_is_a_miss(weed: s3.Weed, tier: Tier) -> None:
    assert tier.batch_put(filled(1, 2)) == [OK, OK]
    other = open_tier(spec(weed, "test_what_another_server_deleted_is_a_miss"))
    other.delete(names(filled(1)))
    assert fetched(tier, 1, 2) == [ABSENT, OK]
    # The hint was corrected by that.
    assert tier.batch_exists(names(filled(1, 2))) == [False, True]
    other.close()


def test_delete_and_clear(tier: Tier) -> None:
    small = {"slot_bytes": 4096}
    tier.batch_put(filled(*range(40), **small))
    tier.batch_put(filled(*range(3), fingerprint=parts.OTHER_FINGERPRINT, **small))
    tier.delete(names(filled(1, 3, 99)))
    tier.delete([])
    assert fetched(tier, *range(5), **small) == [OK, ABSENT, OK, ABSENT, OK]
    tier.clear(parts.FINGERPRINT)
    assert tier.batch_exists(names(filled(*range(40)))) == [False] * 40
    assert fetched(tier, *range(3), fingerprint=parts.OTHER_FINGERPRINT, **small) == [OK] * 3


def test_what_cannot_be_opened_says_why(weed: s3.Weed, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.credentials(monkeypatch)
    with pytest.raises(TierError, match="s3: nonesuch: NoSuchBucket"):
        open_tier(spec(weed, bucket="nonesuch"))
    nobody = parse(f"s3://{s3.BUCKET}?endpoint=http://127.0.0.1:{free_port()}")
    with pytest.raises(TierError, match=f"s3: {s3.BUCKET}: http://.*: connections are"):
        timed("open of nobody", lambda: open_tier(nobody))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong" + s3.SECRET_KEY)
    with pytest.raises(TierError, match="SignatureDoesNotMatch") as caught:
        open_tier(spec(weed))
    assert s3.SECRET_KEY not in str(caught.value)


def test_names_in_the_bucket() -> None:
    assert path_of(Name(b"\1" * 16, b"\2" * 16, 3)) == f"kvkeep/1/{'01' * 16}/{'02' * 16}/3"


@pytest.mark.slow
def test_stopped_killed_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.credentials(monkeypatch)
    with s3.weed(tmp_path) as weed:
        tier = open_tier(spec(weed))
        assert tier.batch_put(filled(*NUMBERS)) == [OK] * len(NUMBERS)
        weed.pause()
        each_call_is_bounded(tier, "of a stopped server")
        weed.proceed()
        took_s = until(lambda: works(tier), 20, "an answer")
        print(f"s3: SIGCONT: works again after {took_s:.2f} s")
        assert fetched(tier, *NUMBERS) == [OK] * len(NUMBERS)
        tier.delete(names(filled(300, 301)))  # not even begun to be sent: not in doubt
        weed.kill()
        each_call_is_bounded(tier, "of a killed server")
        weed.start()
        took_s = until(lambda: tier.health().ok and works(tier), 30, "an answer")
        print(f"s3: restart: works again after {took_s:.2f} s")
        assert fetched(tier, *NUMBERS) == [OK] * len(NUMBERS)
        tier.close()


def test_stopped_in_the_middle_of_a_get_harms_no_slot(weed: s3.Weed, tier: Tier) -> None:
    assert tier.batch_put(filled(*range(8), slot_bytes=4 << 20)) == [OK] * 8
    slots = [parts.part(number, slot_bytes=4 << 20) for number in range(8)]
    stop = threading.Timer(0.01, weed.pause)
    stop.start()
    statuses = timed("get of a server that stops", lambda: tier.batch_get_into(slots))
    stop.join()
    late = [slot for slot, status in zip(slots, statuses, strict=True) if status is ERROR]
    assert late
    for slot in late:
        slot.room[:] = bytes(len(slot.room))
    weed.proceed()
    assert until(lambda: works(tier), 20, "an answer") < 20
    time.sleep(0.5)
    assert not any(any(slot.room) for slot in late)


def test_a_full_store_takes_nothing_and_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.credentials(monkeypatch)
    with s3.weed(tmp_path, "-master.volumeSizeLimitMB=8") as weed:
        tier = open_tier(spec(weed))
        kept: list[int] = []
        for first in range(0, 80, 4):
            puts = filled(*range(first, first + 4), slot_bytes=4 << 20)
            statuses = timed("put until it is full", lambda p=puts: tier.batch_put(p))  # type: ignore[misc]
            assert set(statuses) <= {OK, NO_ROOM}
            kept += [first + at for at, status in enumerate(statuses) if status is OK]
            if OK not in statuses:
                break
        else:
            pytest.fail("it never was full")
        # Not a moment later it is not even asked.
        begun = time.monotonic()
        assert tier.batch_put(filled(99)) == [NO_ROOM]
        assert time.monotonic() - begun < 0.05
        assert kept
        assert fetched(tier, *kept, slot_bytes=4 << 20) == [OK] * len(kept)
        assert tier.health().ok
        tier.close()


def test_a_tenants_limit_is_kept_and_its_values_are_named(
    weed: s3.Weed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    s3.credentials(monkeypatch)
    url = f"s3://{s3.BUCKET}/tenants?endpoint=http://127.0.0.1:{weed.port}&ledger={tmp_path}/ledger"
    tier, salt, other = open_tier(parse(url)), b"s" * 16, b"o" * 16
    assert isinstance(tier, Sharing)
    tier.set_quotas([Share(True, salt, 0, 3 * VALUE)])
    assert tier.batch_put([replace(one, salt=other) for one in filled(20, 21)]) == [OK] * 2
    for number in range(0, 9, 3):
        some = filled(*range(number, number + 3))
        assert tier.batch_put([replace(one, salt=salt) for one in some]) == [OK] * 3
    assert fetched(tier, *range(6), 20, 21) == [ABSENT] * 6 + [OK] * 2
    assert {one.key for one in tier.of_salt(salt, 9)} == {parts.key(n) for n in (6, 7, 8)}
    assert tier.health().salts == ((salt, 3 * VALUE),)
    tier.delete(tier.of_salt(salt, 9))
    assert fetched(tier, 6, 7, 8, 20, 21) == [ABSENT] * 3 + [OK] * 2
    assert tier.of_salt(salt, 9) == []
    tier.close()
