"""Values as they are named between core, shell and porter: what travels keeps its form."""

from server.core.tiers.parts import (
    MAX_KEYS,
    MAX_NAMES,
    MAX_PARTS,
    MAX_SHARES,
    PART_DTYPE,
    Share,
    Status,
    pack_names,
    pack_quotas,
    pack_shares,
    unpack_names,
    unpack_quotas,
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
    salts = {bytes([number]) * 16: number for number in range(5)}
    packed = pack_shares(shares.items(), salts.items())
    assert unpack_shares(packed) == (dict(list(shares.items())[:MAX_SHARES]), salts)
    assert unpack_shares(packed + b"ragged") == unpack_shares(packed)
    assert unpack_shares(pack_shares((), salts.items())) == ({}, salts)
    assert unpack_shares(pack_shares(())) == ({}, {})


def test_quotas_and_names_come_back_as_they_were() -> None:
    quotas = [Share(True, b"s" * 16, 1 << 40, 0), Share(False, b"n" * 16, 0, 7)]
    assert unpack_quotas(pack_quotas(quotas)) == quotas
    names = [
        (bytes([number % 7]) * 16, number.to_bytes(16, "big"), number) for number in range(500)
    ]
    assert unpack_names(pack_names(names)) == names[:MAX_NAMES]
    assert unpack_names(pack_names(names[:2]) + b"ragged") == names[:2]
