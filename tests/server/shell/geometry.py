"""Extent geometries for tests. Knows ``protocol.extents`` only. Runs in the pytest process."""

from __future__ import annotations

from protocol.extents import ExtentGeometry, cut
from protocol.ids import ExtentId, Fingerprint


def make_geometry(
    extent: int = 1, file_bytes: int = 1 << 20, payload_bytes: int = 16_384
) -> ExtentGeometry:
    """An extent of one shard."""
    return cut(ExtentId(extent), Fingerprint(b"f" * 16), 0, 1, payload_bytes, file_bytes)
