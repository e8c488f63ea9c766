"""What is there of a tenant, and how much."""

from __future__ import annotations

from server.core.tiers.parts import Share
from server.tiers.disk.catalog import Catalog
from server.tiers.disk.plan import NAME_BYTES
from server.tiers.disk.segments import Segment
from server.tiers.disk.shares import whose

SLOT = 8192
SALT, OTHER = b"s" * 16, b"t" * 16


def stored(catalog: Catalog, number: int, salt: bytes) -> bytes:
    name = bytes([number % 2]) * 16 + number.to_bytes(NAME_BYTES - 16, "big")
    place = catalog.take(SLOT, whose(name, salt))
    assert place is not None
    catalog.publish(name, place, 0)
    return name


def test_values_of_a_salt_are_found_in_every_namespace_and_segment() -> None:
    catalog = Catalog(1, 1000, lambda name, entry: None)
    for number in (1, 2):
        catalog.add(Segment(number, SLOT, 10, -1, True, ""))
    salts = [SALT, OTHER, b"", SALT]
    names = [
        (salts[number % 4], stored(catalog, number, salts[number % 4])) for number in range(20)
    ]
    mine = {name for salt, name in names if salt == SALT}
    assert set(catalog.of_salt(SALT, 100)) == mine
    assert len(catalog.of_salt(SALT, 7)) == 7
    assert catalog.of_salt(b"u" * 16, 100) == []
    for name in mine:
        catalog.forget(name)
    assert catalog.of_salt(SALT, 100) == []
    assert catalog.held() == (((bytes(16), 5 * SLOT), (b"\1" * 16, 5 * SLOT)), ())
    catalog.set_quotas([Share(True, OTHER, 0, SLOT)])
    assert catalog.held()[1] == ((OTHER, 5 * SLOT),)
    assert catalog.excess() == [(True, OTHER)]
