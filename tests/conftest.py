"""What every test shares: reproducible Hypothesis runs, fixtures that clean up after themselves.

Outputs go under ``build/``. Runs in the pytest process; knows nothing of the packages under test,
so that a broken one fails its own tests and not the collection of all.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# Two busy cores decide how long one example takes, so no deadline per example: each test's own
# time-out bounds it. "ci" tries more; the seed comes from --hypothesis-seed (see .ci/run).
settings.register_profile(
    "default",
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
settings.register_profile("ci", settings.get_profile("default"), max_examples=120, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")


@pytest.fixture
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture
def build_dir() -> Path:
    """The ignored folder for what a test wants to keep, such as a report."""
    path = ROOT / "build"
    path.mkdir(exist_ok=True)
    return path


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """An empty folder with a path short enough for unix sockets (108 bytes), removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="kvk-") as name:
        yield Path(name)


@pytest.fixture
def shm_dir() -> Iterator[Path]:
    """An empty folder in shared memory, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="kvk-", dir="/dev/shm") as name:
        yield Path(name)
