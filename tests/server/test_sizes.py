"""Sizes: read as people write them, refused by key and limits."""

import pytest

from protocol.errors import ConfigError
from server import sizes
from server.sizes import GIB, MIB


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("1", 1), ("20G", 20 * GIB), ("1.5GiB", 3 * GIB // 2), (" 2mb ", 2 * MIB)],
)
def test_sizes_are_read(text: str, num_bytes: int) -> None:
    assert sizes.parse_size("x", text) == num_bytes


@pytest.mark.parametrize("text", ["", "G", "-1", "1 G", "1e9", "0x10"])
def test_what_is_no_size_is_refused_by_key(text: str) -> None:
    with pytest.raises(ConfigError, match=r"colour=.*number of bytes"):
        sizes.parse_size("colour", text)


def test_limits_belong_to_the_valid_sizes() -> None:
    assert sizes.size_between("x", "1M", MIB, GIB) == MIB
    assert sizes.size_between("x", "1G", MIB, GIB) == GIB
    for text in ("1023K", "1025M"):
        with pytest.raises(ConfigError, match=r"x='.*': expected 1 MiB to 1 GiB"):
            sizes.size_between("x", text, MIB, GIB)


def test_a_long_value_is_cut_in_the_error() -> None:
    error = sizes.invalid("x", "9" * 5000, "less")
    assert len(error.message) < 160
    assert error.detail["key"] == "x"


@pytest.mark.parametrize("num_bytes", [0, 1023, 1024, 1536, MIB, 3 * GIB // 2])
def test_what_is_formatted_reads_back(num_bytes: int) -> None:
    shown = sizes.format_size(num_bytes).replace(" bytes", "").replace(" ", "")
    assert sizes.parse_size("x", shown) == num_bytes


def test_a_size_that_no_unit_divides_has_its_bytes_behind_it() -> None:
    found = [sizes.exact_size(num_bytes) for num_bytes in (7, 40 * MIB, 40 * MIB + 1)]
    assert found == ["7 bytes", "40 MiB", "40.0 MiB (41943041 bytes)"]
