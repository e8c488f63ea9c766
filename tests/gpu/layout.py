"""A cache of the second manager as the host describes it: plain data. Source: host contract §7."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Region:
    """Part i is ``size`` bytes at ``base + stride * i``."""

    base: int
    size: int
    stride: int
    num_slots: int
    buffers: list[tuple[int, str, int]] = field(default_factory=list)


@dataclass
class Group:
    """Layers with one page table."""

    layer_group_id: int
    layer_ids: list[int]
    window_size: int | None
    regions: list[Region]


@dataclass
class Layout:
    """The whole cache."""

    tokens_per_block: int
    groups: list[Any]
    dtype: str
