"""What works and is worth knowing: a line each, and none for a server at rest."""

from __future__ import annotations

import msgspec
import pytest

from protocol.quotas import QuotaRow, TenantKind
from server.remarks import MAX_TENANTS, REMOVED, is_at_limit, pinned_bytes, remarks
from tests.server.cli.told import SPACE, STATS, TIER, reply

replace = msgspec.structs.replace
MIB = 1 << 20
QUOTA = QuotaRow(
    kind=TenantKind.SALT,
    tenant=bytes.fromhex("5a" * 16),
    floor_bytes=MIB,
    limit_bytes=8 * MIB,
    held_bytes=8 * MIB,
)


def test_a_server_at_rest_has_nothing_to_say() -> None:
    roomy = (replace(QUOTA, held_bytes=MIB), replace(QUOTA, limit_bytes=0))
    assert remarks(reply(), STATS, roomy) == []


def test_what_a_tier_warns_of_is_said_with_its_name() -> None:
    told = reply(tiers=(TIER, replace(TIER, name="far", warning="its file system is full")))
    assert remarks(told, STATS) == ["tier far: its file system is full"]


def test_an_arena_whose_folder_was_removed_is_lost_to_the_next_server() -> None:
    assert remarks(reply(), {**STATS, "complaint_arena_removed": 1}) == [REMOVED]
    assert remarks(reply(), {**STATS, "complaint_arena_removed": 0}) == []


@pytest.mark.parametrize(("pinned", "is_said"), [(7, False), (8, True), (30, True)])
def test_an_arena_nearly_full_of_what_operators_keep(pinned: int, is_said: bool) -> None:
    """Ten chunks of a MiB; one that several pins keep is counted by each."""
    told = reply(namespaces=(replace(SPACE, pinned_chunks=pinned),))
    lines = remarks(told, {**STATS, "arena_bytes": 10 * MIB})
    assert len(lines) == is_said
    assert all("of L1's 10 MiB pinned" in line and "kvkeep unpin" in line for line in lines)
    assert pinned_bytes(told.namespaces) == min(pinned, 10) * MIB


def test_a_namespace_without_chunks_has_nothing_pinned() -> None:
    assert pinned_bytes((replace(SPACE, chunks=0, bytes=0, pinned_chunks=0),)) == 0


def test_a_tenant_at_its_limit_is_named_as_far_as_labels_name_it() -> None:
    below = replace(QUOTA, tier="disk", held_bytes=MIB * 77 // 10)
    assert remarks(reply(), STATS, (QUOTA, below)) == [
        "salt/5a5a5a5a5a5a is at its limit of 8 MiB in L1: what it stores replaces its own",
        "salt/5a5a5a5a5a5a is at its limit of 8 MiB in disk: what it stores replaces its own",
    ]
    assert not is_at_limit(replace(QUOTA, held_bytes=MIB * 75 // 10))


def test_a_tier_in_trouble_is_not_said_to_replace_anything() -> None:
    below = replace(QUOTA, tier="far")
    for far in (
        replace(TIER, name="far", warning="it is full"),
        replace(TIER, name="far", state="down"),
    ):
        lines = remarks(reply(tiers=(TIER, far)), STATS, (below, QUOTA))
        assert lines[-2:] == [
            "salt/5a5a5a5a5a5a is at its limit of 8 MiB in far",
            "salt/5a5a5a5a5a5a is at its limit of 8 MiB in L1: what it stores replaces its own",
        ]


def test_many_at_their_limit_are_counted() -> None:
    lines = remarks(reply(), STATS, (QUOTA,) * (MAX_TENANTS + 5))
    assert len(lines) == MAX_TENANTS + 1
    assert lines[-1] == "and 5 more quotas are at their limits"
    one_more = remarks(reply(), STATS, (QUOTA,) * (MAX_TENANTS + 1))
    assert one_more[-1] == "and 1 more quota is at its limit"
