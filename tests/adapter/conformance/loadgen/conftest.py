"""A live server and a registered engine for the load generator's tests. Runs in pytest."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.conformance.loadgen.engine import Engine
from adapter.conformance.loadgen.orders import Join
from adapter.conformance.loadgen.transfers import Reader
from tests.wire.process import ServerProcess

PAGE_BYTES = 64 << 10
NUM_PAGES = 64


@pytest.fixture(scope="session")
def scratch_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvk-", dir="/dev/shm") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def server(scratch_dir: Path) -> Iterator[ServerProcess]:
    with tempfile.TemporaryDirectory(prefix="kvk-") as name:
        arguments = ("--l1-size", "32M", "--extent-size", "4M")
        with ServerProcess(Path(name), scratch_dir / "arena", *arguments) as running:
            yield running


def joining(server: ServerProcess, scratch_dir: Path, model_id: str) -> Join:
    return Join(
        url=server.url,
        model_id=model_id,
        page_bytes=PAGE_BYTES,
        num_pages=NUM_PAGES,
        scratch_dir=str(scratch_dir),
        timeout_s=20.0,
    )


@pytest.fixture
def engine(
    server: ServerProcess, scratch_dir: Path, request: pytest.FixtureRequest
) -> Iterator[Engine]:
    joined = Engine.join(joining(server, scratch_dir, request.node.name[:100]))
    try:
        yield joined
    finally:
        joined.leave()


@pytest.fixture
def reader(engine: Engine) -> Iterator[Reader]:
    made = Reader(engine)
    try:
        yield made
    finally:
        made.close()
