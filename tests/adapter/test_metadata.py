"""Metadata travels between ranks: it must survive pickling and stay small."""

from __future__ import annotations

import pickle

import numpy as np

from adapter.metadata import ConnectorMetadata, LoadOrder, SaveNames


def test_round_trip_and_size() -> None:
    names = SaveNames(1, 2, 3, b"p" * 16, b"k" * 16 * 4096, np.arange(4096, dtype=np.int32))
    pages = np.full((4096, 1), 5, dtype=np.int32)
    load = LoadOrder(1, 2, b"l" * 16, b"e" * 16, b"s" * 16 * 4096, 1, pages)
    metadata = ConnectorMetadata(
        7, alive=np.arange(64, dtype=np.int64), names=(names,), loads=(load,), failure="x"
    )
    data = pickle.dumps(metadata)
    assert len(data) < 4096 * (16 + 4 + 16 + 4) + 4096
    copy = pickle.loads(data)  # noqa: S301 - what the host does between ranks
    assert copy.iteration == 7
    assert copy.failure == "x"
    assert copy.names[0].keys == names.keys
    assert np.array_equal(copy.loads[0].pages, pages)
    assert np.array_equal(copy.alive, metadata.alive)


def test_an_empty_iteration_is_tiny() -> None:
    assert len(pickle.dumps(ConnectorMetadata(1))) < 1024
