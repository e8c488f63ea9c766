"""One number with its verdict. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One number with its verdict.

    Attributes:
        value: measured.
        target: in words; empty for none.
        met: None without a target.
    """

    value: float | int | str | bool | None
    target: str = ""
    met: bool | None = None
