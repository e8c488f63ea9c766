from __future__ import annotations

from typing import get_type_hints

import pytest

from protocol import extents, ids, layout, messages


@pytest.mark.parametrize(
    "name",
    ["InstanceId", "Epoch", "ArenaId", "Token", "LeaseId", "PoolId", "ChunkKey", "Fingerprint"],
)
def test_byte_ids_stand_on_bytes(name: str) -> None:
    assert getattr(ids, name).__supertype__ is bytes


def test_every_number_is_its_own_type_over_int() -> None:
    numbers = ["SessionId", "RequestKey", "StoreId", "ExtentId", "ShardIndex", "Generation"]
    kinds = {name: getattr(ids, name) for name in numbers}
    assert {kind.__supertype__ for kind in kinds.values()} == {int}
    assert len(set(map(id, kinds.values()))) == len(numbers)


def test_ids_have_the_length_that_records_and_slots_give_them() -> None:
    record = extents.RECORD_DTYPE
    for name in ("key", "parent", "owner"):
        assert record[name].itemsize == ids.ID_BYTES
    assert extents.HEADER_DTYPE["arena"].itemsize == ids.ID_BYTES
    assert layout.SLOT_DTYPE.itemsize == 16


def test_reply_types_carry_the_ids() -> None:
    hints = get_type_hints(layout.SlotRef)
    assert hints["extent"] is ids.ExtentId
    assert get_type_hints(messages.HelloReply)["epoch"] is bytes
