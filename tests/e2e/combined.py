"""What the combination tests share: one server and one set of references per test module."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adapter.conformance.coverage.combine import combinations
from adapter.conformance.coverage.dimensions import Combination
from adapter.conformance.schedules.service import serving
from adapter.conformance.schedules.sweep import Sweep

SCHEDULES = int(os.environ.get("KV_SCHEDULES", "1"))
"""Played per combination."""

SEED = int(os.environ.get("KV_SCHEDULE_SEED", str(random.SystemRandom().randrange(1 << 30))))


def chosen(is_solo: bool) -> list[Combination]:
    """The combinations of one process, or those of several."""
    return [one for one in combinations() if (one.ranks == "1") is is_solo]


@contextmanager
def sweeping(models: Path) -> Iterator[Sweep]:
    """A server and a sweep over it."""
    with serving() as service, Sweep(service.url, models) as sweep:
        yield sweep
