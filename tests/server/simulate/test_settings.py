from __future__ import annotations

import pytest

from protocol.errors import ConfigError
from server.core.tiers.policy import Policy
from server.simulate import settings
from server.simulate.settings import Size


def said(call: object, *values: object) -> str:
    assert callable(call)
    with pytest.raises(ConfigError) as error:
        call(*values)
    return error.value.message


def test_sizes_are_bytes_shares_or_unlimited() -> None:
    assert settings.size("l1", "2G") == Size(2 << 30)
    assert settings.size("l1", "12.5%") == Size(0, 0.125)
    assert settings.size("l1", "2G").chunks(1 << 20, 7) == 2048
    assert settings.size("l1", "25%").chunks(1 << 20, 73_530) == 18_382
    assert settings.size("l1", "unlimited").chunks(1 << 30, 7) > 1 << 30
    for text in ("", "x", "-1G", "G", "1.2345%", "%"):
        assert "l1=" in said(settings.size, "l1", text)
        assert "25%, or unlimited" in said(settings.size, "l1", text)


def test_tiers_in_order_with_their_kinds_and_rates() -> None:
    lower = settings.tiers(("1G", "store:2G,disk:10%"), "write-through", None, None)
    assert [one.name for one in lower] == ["disk", "store", "disk2"]
    assert [one.is_shared for one in lower] == [False, True, False]
    assert [one.size for one in lower] == [Size(1 << 30), Size(2 << 30), Size(0, 0.1)]
    assert [one.read_gbps for one in lower] == [3.0, 2.5, 3.0]
    assert [one.write_gbps for one in lower] == [2.0, 2.5, 2.0]
    lower = settings.tiers(("1G,store:2G",), "on-evict,after-3-uses", "7", "1,2.5")
    assert [(one.policy, one.uses) for one in lower] == [
        (Policy.ON_EVICT, 0),
        (Policy.AFTER_USES, 3),
    ]
    assert [one.read_gbps for one in lower] == [7.0, 7.0]
    assert [one.write_gbps for one in lower] == [1.0, 2.5]
    assert settings.tiers((), "none", None, None) == ()


def test_wrong_tiers_are_one_line() -> None:
    assert "disk:SIZE" in said(settings.tiers, ("tape:1G",), "none", None, None)
    assert "l2=" in said(settings.tiers, ("",), "none", None, None)
    assert "at most 8 tiers" in said(settings.tiers, ("1G," * 8 + "1G",), "none", None, None)
    assert "one for each tier (2)" in said(settings.tiers, ("1G,1G",), "none,none,none", None, None)
    assert "a number above 0" in said(settings.tiers, ("1G",), "none", "0", None)
    assert "a number above 0" in said(settings.tiers, ("1G",), "none", None, "nan")


@pytest.mark.parametrize("text", ["", "always", "after-N-uses", "after-0-uses", "after-x-uses"])
def test_a_wrong_policy_names_the_right_ones(text: str) -> None:
    assert settings.POLICIES in said(settings.policy, "policy", text)


@pytest.mark.parametrize("name", ["write-through", "on-evict", "none"])
def test_policies_have_the_servers_names(name: str) -> None:
    assert settings.policy("policy", name) == (Policy(name), 0)


def test_the_deadline_is_the_servers() -> None:
    assert settings.deadline(None) == settings.DEADLINE_S == 1.0
    assert settings.deadline("30") == settings.deadline("30s") == 30.0
    for text in ("0", "3601", "soon", "-1"):
        assert "deadline=" in said(settings.deadline, text)


def test_kv_of_a_token() -> None:
    assert settings.bytes_per_token("160K") == 160 << 10
    assert "kv-bytes-per-token" in said(settings.bytes_per_token, "0")
