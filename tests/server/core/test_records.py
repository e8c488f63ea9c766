"""Records of a COMMIT: chained parents, consecutive generations, valid checksums."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protocol.extents import STATE_HELD, checksums
from protocol.ids import Fingerprint, InstanceId
from server.core import records


@given(st.integers(1, 70), st.booleans(), st.integers(1, 2**40))
def test_records_say_who_follows_whom(count: int, is_root: bool, generation: int) -> None:
    # Keys that end in zero bytes: a string type would strip them.
    keys = [number.to_bytes(2, "big") + bytes(14) for number in range(1, count + 1)]
    rows = records.build(
        keys=b"".join(keys),
        parent=b"" if is_root else b"p" * 16,
        fingerprint=Fingerprint(b"f" * 8 + b"g" * 8),
        shard=3,
        chunk_blocks=2,
        payload_bytes=8192,
        owner=InstanceId(b"o" * 16),
        stamp_us=77,
        first_generation=generation,
    )
    parents = [bytes(16) if is_root else b"p" * 16, *keys[:-1]]
    assert [bytes(row["key"]) for row in rows] == keys
    assert [bytes(row["parent"]) for row in rows] == parents
    assert rows["generation"].tolist() == list(range(generation, generation + count))
    assert (checksums(rows) == rows["checksum"]).all()
    first = rows[0]
    assert bytes(first["namespace"]) == b"f" * 8
    assert (int(first["shard"]), int(first["chunk_blocks"])) == (3, 2)
    assert (int(first["payload_bytes"]), int(first["stamp"])) == (8192, 77_000)  # nanoseconds
    assert bytes(first["owner"]) == b"o" * 16
    assert np.unique(rows["state"]).tolist() == [STATE_HELD]
