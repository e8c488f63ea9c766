"""Sizes as people write them, and the error for a setting that is wrong.

Purpose: shared by the settings and by what they are made of. Must not know: any setting. Runs in:
the main process, at start.
"""

from __future__ import annotations

import re

from protocol.errors import ConfigError, ErrorCode

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,15})(\.[0-9]{1,3})?([KMGT]?)(?:iB|B)?", re.IGNORECASE)
_MAX_SHOWN_CHARS = 120


def parse_size(key: str, text: str) -> int:
    """Reads a size such as ``20G``, ``512M``, ``1.5GiB`` or ``1073741824``.

    Args:
        key: setting, for the error.
        text: number with an optional unit of 1024s.

    Returns:
        Bytes.

    Raises:
        ConfigError: INVALID_CONFIG.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise invalid(key, text, "a number of bytes, or one with K, M, G or T (1024s): 20G")
    whole, fraction, unit = match.groups()
    thousandths = int(whole) * 1000 + int((fraction or ".")[1:].ljust(3, "0"))
    return thousandths * _UNITS[unit.upper()] // 1000


def size_between(key: str, text: str, min_bytes: int, max_bytes: int) -> int:
    """Reads a size within limits.

    Args:
        key: setting, for the error.
        text: as ``parse_size`` takes it.
        min_bytes: least.
        max_bytes: most.

    Returns:
        Bytes.

    Raises:
        ConfigError: INVALID_CONFIG.
    """
    num_bytes = parse_size(key, text)
    if not min_bytes <= num_bytes <= max_bytes:
        raise invalid(key, text, f"{format_size(min_bytes)} to {format_size(max_bytes)}")
    return num_bytes


def format_size(num_bytes: int) -> str:
    """A size for people, exact where a unit divides it."""
    for unit in "TGMK":
        if num_bytes >= _UNITS[unit]:
            value = num_bytes / _UNITS[unit]
            return f"{value:.0f} {unit}iB" if value.is_integer() else f"{value:.1f} {unit}iB"
    return f"{num_bytes} bytes"


def exact_size(num_bytes: int) -> str:
    """A size for people who type it again: one that no unit divides has its bytes behind it."""
    text = format_size(num_bytes)
    return f"{text} ({num_bytes} bytes)" if "." in text else text


def invalid(key: str, value: str, valid: str) -> ConfigError:
    """The error for a setting: names it, what it is and what is valid.

    Args:
        key: setting.
        value: as given; a long one is cut.
        valid: what is expected.
    """
    shown = value
    if len(value) > _MAX_SHOWN_CHARS:
        shown = value[: _MAX_SHOWN_CHARS - 3] + "..."
    return ConfigError(
        ErrorCode.INVALID_CONFIG, f"{key}={shown!r}: expected {valid}", key=key, value=shown
    )
