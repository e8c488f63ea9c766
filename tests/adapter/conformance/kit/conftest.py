"""A model, a server and short waits for connectors that each break one rule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from adapter.conformance.host.weights import TINY, write_model_dir

    return write_model_dir(tmp_path_factory.mktemp("model"), TINY)


@pytest.fixture(scope="module")
def service() -> Iterator[object]:
    from adapter.conformance.schedules.service import serving

    with serving() as one:
        yield one


@pytest.fixture
def kit(model: Path, service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    from adapter.conformance.kit import (
        bench,
        checks_epochs,
        checks_hooks,
        checks_identity,
        checks_layouts,
        checks_offers,
        checks_ranks,
        checks_saves,
    )
    from tests.adapter.conformance.host import connectors
    from tests.adapter.conformance.kit.breaching import Kit

    # A broken connector leaves something to wait for; a sound one is done long before.
    for module in (
        *(bench, checks_epochs, checks_identity, checks_layouts, checks_offers, checks_ranks),
        checks_saves,
    ):
        monkeypatch.setattr(module, "SETTLE_S", 3.0)
    monkeypatch.setattr(checks_hooks, "_GATE_S", 1.0)
    # Each connector a dictionary of its own, under the name of the server that some ask for.
    monkeypatch.setattr(connectors, "STORES", {})
    return Kit(model, service, tmp_path)
