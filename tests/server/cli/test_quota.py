"""``kvkeep quota``: set, listed and taken back on a live server."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from protocol.keys import ReuseScope
from protocol.messages import QuotasReply
from protocol.quotas import QuotaRow, TenantKind
from server.cli import cli
from server.cli.quota import AGE, _show
from tests.server.cli.cached import Cached


def quota(holding: Cached, *words: str) -> Result:
    name, *rest = words
    return CliRunner().invoke(cli, ["quota", name, "--endpoint", holding.server.url, *rest])


def told(holding: Cached, *words: str) -> dict[str, Any]:
    result = quota(holding, *words, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_namespace_and_a_salt_get_a_quota_and_lose_it(holding: Cached) -> None:
    assert told(holding, "list") == {"arena_bytes": 64 << 20, "quotas": []}
    assert quota(holding, "list").output == "no tenant has a quota\n"
    found = told(holding, "set", "2M", "--namespace", holding.name[:6])
    space = {
        "tenant": f"namespace/{holding.name}",
        "tier": "l1",
        "floor_bytes": 2 << 20,
        "limit_bytes": 0,
        # seven chunks: the prompts begin alike
        "held_bytes": 7 * holding.engine.page_bytes,
        "tier_bytes": {},
    }
    assert found["quotas"] == [space]
    digits = ReuseScope(cache_salt="tenant").tenant().hex()
    found = told(holding, "set", "1M", "--limit", "3M", "--salt", "tenant")
    salt = {
        "tenant": f"salt/{digits}",
        "tier": "l1",
        "floor_bytes": 1 << 20,
        "limit_bytes": 3 << 20,
        "held_bytes": 0,
        "tier_bytes": {},
    }
    assert found["quotas"] == [space, salt]
    shown = quota(holding, "list").output.splitlines()
    assert shown[0].split() == [
        "tenant",
        "in",
        "quota",
        "limit",
        "held",
        *("of", "quota"),
        *("of", "limit"),
    ]
    assert shown[3].split() == [
        f"salt/{digits}",
        "L1",
        "1",
        "MiB",
        "3",
        "MiB",
        "0",
        "bytes",
        *("0.0", "%"),
        *("0.0", "%"),
    ]
    assert told(holding, "unset", "--tenant", f"salt/{digits}")["quotas"] == [space]
    assert told(holding, "unset", "--namespace", holding.name)["quotas"] == []


def test_what_cannot_be_is_refused(holding: Cached) -> None:
    for words, code, expected in (
        (("set", "1G", "--salt", "x"), 1, "others' floors: 64 MiB are left"),
        (
            ("set", "1M", "--salt", "x", "--tier", "tape"),
            1,
            "no lower tier 'tape'; there are: none",
        ),
        (("set", "1M", "--salt", "x", "--salt-file", "-"), 2, "either --salt TEXT"),
        (
            ("set", "2M", "--limit", "1M", "--salt", "x"),
            2,
            "limit='1M': expected a limit above 0 that is no less than the floor, 2M",
        ),
        (("set", "2M", "--limit", "much", "--salt", "x"), 2, "limit='much': expected"),
        (("set", "1M", "--salt", ""), 2, "salt=''"),
        (("unset", "--salt", ""), 2, "salt=''"),
        (("set", "0", "--salt", "x"), 2, "kvkeep quota unset ends it"),
        (("set", "much", "--salt", "x"), 2, "a number of bytes"),
        (("set", "1M"), 2, "--salt TEXT, --salt-file FILE and --tenant NAME"),
        (("set", "1M", "--salt", "x", "--namespace", holding.name), 2, "one of --namespace"),
        (("set", "1M", "--tenant", "someone"), 2, "32 hex digits"),
        (("unset", "--namespace", "ffffffff"), 2, "namespace="),
    ):
        result = quota(holding, *words)
        assert (result.exit_code, expected in result.output) == (code, True), result.output


def test_a_limit_has_its_own_share_and_lower_tiers_are_as_of_a_while_ago(
    capsys: pytest.CaptureFixture[str],
) -> None:
    both = QuotaRow(
        kind=TenantKind.SALT,
        tenant=b"s" * 16,
        floor_bytes=1 << 20,
        limit_bytes=4 << 20,
        held_bytes=2 << 20,
    )
    alone = msgspec.structs.replace(both, floor_bytes=0, held_bytes=4 << 20, tier="valkey")
    _show(QuotasReply(arena_bytes=1 << 30, quotas=(both,)), as_json=False)
    row = capsys.readouterr().out.splitlines()[-1]
    assert " ".join(row.split()[1:]) == "L1 1 MiB 4 MiB 2 MiB 200.0 % 50.0 %"
    _show(QuotasReply(arena_bytes=1 << 30, quotas=(both, alone)), as_json=False)
    *_, row, age = capsys.readouterr().out.splitlines()
    assert " ".join(row.split()[1:]) == "valkey - 4 MiB 4 MiB - 100.0 %"
    assert age == AGE


def test_a_quota_that_is_not_there_cannot_be_taken_back(holding: Cached) -> None:
    digits = ReuseScope(cache_salt="slip").tenant().hex()
    assert quota(holding, "set", "1M", "--salt", "tenant").exit_code == 0
    result = quota(holding, "unset", "--salt", "slip")
    assert result.exit_code == 3
    assert f"kvkeep: salt/{digits} had no quota\n" in result.output
    assert len(told(holding, "list")["quotas"]) == 1
