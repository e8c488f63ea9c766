"""How a slab's bytes are divided."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.tiers.disk.files import BLOCK_BYTES
from server.tiers.disk.plan import GIB, MAX_SEGMENTS, MIB, divide


@given(st.integers(16 * MIB, 1 << 50))
def test_nothing_is_given_twice(size_bytes: int) -> None:
    plan = divide(size_bytes)
    assert plan.index_bytes + plan.data_bytes < size_bytes
    assert plan.data_bytes > size_bytes * 9 // 10
    assert plan.index_bytes % BLOCK_BYTES == 0, "lmdb wants whole pages"
    assert plan.data_bytes // plan.segment_bytes <= MAX_SEGMENTS
    assert plan.max_values > 0


def test_a_segment_is_a_gib_or_a_16th() -> None:
    assert divide(160 * MIB).segment_bytes == 10 * MIB
    assert divide(200 * GIB).segment_bytes == GIB
    assert divide(4096 * GIB).segment_bytes == 8 * GIB


def test_values_of_16_kib_fill_the_slab_before_the_index() -> None:
    plan = divide(200 * GIB)
    assert plan.max_values > plan.data_bytes // (16_384 + BLOCK_BYTES)
