"""What every test shares: reproducible Hypothesis runs, fixtures that clean up after themselves.

Outputs go under ``build/``. Runs in the pytest process; knows nothing of the packages under test,
so that a broken one fails its own tests and not the collection of all.
"""

import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, configuration, settings

from tests.repository.sampled import left_out

ROOT = Path(__file__).resolve().parent.parent

# Two busy cores decide how long one example takes, so no deadline per example: each test's own
# time-out bounds it. "thorough" is for `make slow`, "quick" for the further interpreters; the seed
# comes from --hypothesis-seed (see .ci/run).
settings.register_profile(
    "default",
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
settings.register_profile("quick", settings.get_profile("default"), max_examples=15)
settings.register_profile("ci", settings.get_profile("default"), print_blob=True)
settings.register_profile("thorough", settings.get_profile("ci"), max_examples=120)
configuration.set_hypothesis_home_dir(ROOT / "build" / "hypothesis")
settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")


def pytest_report_header() -> str:
    """Say which cases of the families marked sampled run, so that a run can be repeated."""
    seed = os.environ.get("KV_SAMPLED", "")
    return f"KV_SAMPLED={seed}: a part of the cases marked sampled; empty for all" if seed else ""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """``KV_SAMPLE=1/3`` leaves out all but the second third of the files, unread.

    In CI each of the other interpreters runs a twelfth.
    """
    part, parts = map(int, os.environ.get("KV_SAMPLE", "0/1").split("/"))
    name = collection_path.name
    if not name.startswith("test_") or collection_path.suffix != ".py":
        return None
    return True if zlib.crc32(name.encode()) % parts != part else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, in words; CI may not skip the Node.js client.

    ``KV_SAMPLED``, a seed, draws from families of tests (``tests/repository/sampled.py``), but from
    none where only what failed is run again.
    """
    out: set[pytest.Item] = set()
    seed = os.environ.get("KV_SAMPLED", "")
    if seed and not config.getoption("lf", False):
        out |= left_out(items, seed)
    if out:
        config.hook.pytest_deselected(items=list(out))
        items[:] = [item for item in items if item not in out]
    no_node = shutil.which("node") is None or shutil.which("npm") is None
    no_gpu = not Path("/dev/nvidia0").exists()
    for item in items:
        if no_gpu and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this machine"))
        if no_node and item.get_closest_marker("node") and os.environ.get("CI") != "true":
            item.add_marker(pytest.mark.skip(reason="Node.js or npm was not found"))


@pytest.fixture(scope="session", autouse=True)
def runtime_folder() -> Iterator[Path]:
    """A runtime folder of the tests' own, which every process that they start inherits.

    The default endpoint, and the lock and side socket of every TCP endpoint, lie in the user's: a
    server that a test kills would leave them there, and a server that runs there already would be
    in a test's way.
    """
    with (
        tempfile.TemporaryDirectory(prefix="kvk-run-") as name,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("XDG_RUNTIME_DIR", name)
        yield Path(name)


@pytest.fixture(scope="session", autouse=True)
def valkey_at_fork() -> Iterator[None]:
    """The Valkey client does nothing in children that are forked from here.

    It would connect anew in each child of a process that ever had a client, closed or not, and wait
    seconds for servers that are gone: every later test of the same process that forks was slow.
    """
    register = os.register_at_fork

    def without_valkey(**hooks: Callable[[], object]) -> None:
        modules = [getattr(hook, "__module__", "") or "" for hook in hooks.values()]
        if not any(name.startswith("glide_sync") for name in modules):
            register(**hooks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "register_at_fork", without_valkey)
        yield


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
