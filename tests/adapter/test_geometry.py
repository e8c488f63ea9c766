"""The geometry of a rank follows from the namespace, its own pages and its rank."""

from __future__ import annotations

import pytest

from adapter.geometry import Geometry, GroupGeometry
from protocol.namespace import LayerGroup, Namespace
from tests.adapter.hostlike import geometry


def namespace(num_ranks: int) -> Namespace:
    return Namespace(
        model_id="test",
        config_digest=b"c",
        weights_digest=b"w",
        host_version="1",
        kv_dtype="float16",
        attention_backend="none",
        kv_layout="none",
        tokens_per_block=32,
        chunk_blocks=4,
        num_ranks=num_ranks,
        groups=(
            LayerGroup(layers=(0, 2), page_bytes=4096),
            LayerGroup(layers=(1,), page_bytes=8192, window_tokens=128),
            LayerGroup(layers=(3,), page_bytes=512, replicated=True),
        ),
    )


def test_each_rank_has_its_column_of_each_group() -> None:
    made = Geometry.of(namespace(2), 1, (10, 20, 30))
    assert made.groups == (
        GroupGeometry(10, 4096),
        GroupGeometry(20, 8192, 128),
        GroupGeometry(30, 512),
    )
    assert made.shards == (1, 3, 4)  # the replicated one is everybody's
    assert Geometry.of(namespace(2), 0, (10, 20, 30)).shards == (0, 2, 4)
    assert made.pools == ()
    assert Geometry.of(namespace(2), 1, (10, 20, 30), (0, 0, 2)).pools == (0, 0, 2)
    assert (made.rank, made.num_ranks, made.num_groups) == (1, 2, 3)


def test_chunks_are_counted_in_tokens() -> None:
    assert Geometry.of(namespace(1), 0, (1, 1, 1)).chunk_tokens == 128
    assert geometry(4, 3).chunk_tokens == 12


def test_pages_of_every_group_are_told() -> None:
    with pytest.raises(ValueError, match="zip"):
        Geometry.of(namespace(1), 0, (10, 20))
