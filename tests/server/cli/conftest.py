"""A server with something in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.cli.cached import Cached, cached


@pytest.fixture
def holding(short_dir: Path, shm_dir: Path) -> Iterator[Cached]:
    with cached(short_dir, shm_dir) as one:
        yield one
