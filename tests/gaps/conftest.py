"""A server, a model and the connector for the rows of the host contract's §12."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from adapter.conformance.host.weights import TINY, write_model_dir

    return write_model_dir(tmp_path_factory.mktemp("model"), TINY)


@pytest.fixture
def service() -> Iterator[object]:
    from adapter.conformance.schedules.service import serving

    with serving() as one:
        yield one


@pytest.fixture
def bench(model: Path, service: object, monkeypatch: pytest.MonkeyPatch) -> object:
    from adapter.config import CONNECTOR_MODULE, SCHEDULER_CLASS, WORKER_CLASS
    from adapter.conformance.kit.bench import Bench, Target
    from adapter.conformance.schedules.service import Service

    assert isinstance(service, Service)
    # Hits are counted exactly here, and the machine may be busy with other tests.
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "500")
    monkeypatch.setenv("TRTLLM_KVKEEP_HELD_PAGES_PERCENT", "50")
    return Bench(
        Target(CONNECTOR_MODULE, SCHEDULER_CLASS, WORKER_CLASS, service.url), model, service
    )
