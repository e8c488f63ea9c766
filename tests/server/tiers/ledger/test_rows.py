"""Rows and names go through files unchanged, and say whose a value is."""

import struct

import pytest

from server.tiers.interface import Name
from server.tiers.ledger.rows import (
    Row,
    pack_name,
    pack_row,
    tenants_of,
    unpack_name,
    unpack_row,
)

NAME = Name(b"f" * 16, b"k" * 16, 7)


@pytest.mark.parametrize("salt", [b"", b"s" * 16])
def test_a_row_is_packed_and_unpacked(salt: bytes) -> None:
    row = Row(1 << 33, 5, 0, salt)
    assert unpack_row(pack_row(row)) == row
    assert row.is_open
    assert not row._replace(ended=6).is_open
    with pytest.raises(struct.error):
        unpack_row(pack_row(row)[:-1])


def test_a_name_is_packed_and_unpacked() -> None:
    assert unpack_name(pack_name(NAME)) == NAME
    assert len(pack_name(NAME)) == 36


def test_a_value_is_its_namespaces_and_its_salts() -> None:
    packed = pack_name(NAME)
    assert tenants_of(packed, b"") == ((False, b"f" * 16),)
    assert tenants_of(packed, b"s" * 16) == ((False, b"f" * 16), (True, b"s" * 16))
