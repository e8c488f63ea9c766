"""Values as they are named between core, shell and porter: what travels keeps its form."""

from server.core.tiers.parts import (
    MAX_KEYS,
    MAX_PARTS,
    MAX_SHARES,
    PART_DTYPE,
    Status,
    pack_shares,
    unpack_shares,
)


def test_a_part_is_64_bytes_without_gaps() -> None:
    assert PART_DTYPE.itemsize == 64
    offsets = [PART_DTYPE.fields[name][1] for name in PART_DTYPE.names or ()]  # type: ignore[index]
    assert offsets == [0, 16, 32, 40, 48, 52, 56, 60]


def test_a_status_is_a_byte_whose_zero_is_good() -> None:
    assert bytes([Status.OK, Status.ABSENT, Status.CORRUPT, Status.NO_ROOM, Status.ERROR]) == (
        b"\0\1\2\3\4"
    )


def test_the_longest_job_fits_into_a_packet_of_its_socket() -> None:
    # Linux takes packets up to the socket's send buffer, 208 KiB unless it was made smaller.
    assert MAX_PARTS * PART_DTYPE.itemsize <= 1 << 16
    assert MAX_KEYS * 16 <= 1 << 16


def test_shares_come_back_as_they_were_and_are_bounded() -> None:
    shares = {number.to_bytes(16, "big"): number << 40 for number in range(MAX_SHARES + 9)}
    packed = pack_shares(shares.items())
    assert unpack_shares(packed) == dict(list(shares.items())[:MAX_SHARES])
    assert unpack_shares(packed + b"ragged") == unpack_shares(packed)
    assert unpack_shares(b"") == {}
