"""Which cases of a large family run: a part that a seed draws, each case with some seed.

Families are tests marked ``sampled(parts)``: many cases of one kind, each of which is dear. Must
not know: what they test. A pure function, called where pytest collects.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from zlib import crc32

import pytest


def left_out(items: Sequence[pytest.Item], seed: str) -> set[pytest.Item]:
    """Cases that do not run.

    Of ``n`` cases of a family ``n / parts`` run, rounded up. Those marked slow are not counted:
    whoever wants them has asked for them.

    Args:
        items: everything that was collected.
        seed: draws; any words.
    """
    families: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    parts: dict[tuple[str, str], int] = {}
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker is None or item.get_closest_marker("slow"):
            continue
        family = (str(item.path), item.nodeid.partition("[")[0])
        families[family].append(item)
        (parts[family],) = marker.args
    out: set[pytest.Item] = set()
    for family, cases in families.items():
        cases.sort(key=lambda item: crc32(f"{seed}/{item.nodeid}".encode()))
        out.update(cases[-(-len(cases) // parts[family]) :])
    return out
