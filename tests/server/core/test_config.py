"""Defaults of the core's settings keep to the wire's limits and the design."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from protocol import limits
from server.core.config import MAX_TIERS, MIB, CoreConfig, TierConfig
from server.core.slots import SlotTable
from server.core.tiers.policy import Policy


def test_defaults() -> None:
    config = CoreConfig(arena_bytes=64 * MIB, extent_bytes=8 * MIB)
    assert config.copy_piece_bytes <= config.copy_window_bytes
    assert 0 < config.heartbeat_s <= 3600
    assert config.max_leased_slots_per_instance >= limits.MAX_SLOTS_PER_REPLY
    with pytest.raises(FrozenInstanceError):
        config.arena_bytes = 1  # type: ignore[misc]


def test_tiers_are_written_through_unless_said_otherwise_and_have_a_bit_each() -> None:
    assert CoreConfig(arena_bytes=64 * MIB, extent_bytes=8 * MIB).tiers == ()
    tier = TierConfig("disk")
    assert (tier.policy, tier.window_bytes) == (Policy.WRITE_THROUGH, 256 * MIB)
    assert 8 * SlotTable().tiers.itemsize == MAX_TIERS
