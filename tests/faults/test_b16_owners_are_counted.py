"""B16: two engines of one model; one leaves, by its word or by kill -9; the other goes on."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.messages import Done, Unregister
from tests.faults.bystander import engaged, fill, read_all, stats
from tests.faults.childengine import ChildEngine
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.process import ServerProcess, wait_until


def all_operations(engine: Engine, seed: int) -> None:
    """STORE, COMMIT, LOOKUP, RETRIEVE and RELEASE, every byte checked."""
    fill(engine, seed)
    keys = make_keys(seed, 12)
    assert engine.save(keys, list(range(12))) == 12
    assert np.array_equal(read_all(engine, keys), engine.pages[:12])


@pytest.mark.parametrize("action", ["attend", "lease", "retrieve", "reserve"])
def test_one_engine_is_killed_and_the_other_goes_on(server: ServerProcess, action: str) -> None:
    namespace = make_namespace(model=f"b16/{action}")
    with engaged(server, namespace) as stays:
        shared = make_keys(1, 16)
        fill(stays, 1)
        kept = stays.pages[:16].copy()
        if action in ("lease", "retrieve"):
            assert stays.save(shared, list(range(16))) == 16
        with ChildEngine(server, f"b16/{action}", action) as leaves:
            all_operations(stays, 2)
            assert stats(stays)["instances"] == 2
            leaves.kill()
            assert wait_until(lambda: stats(stays)["instances"] == 1)
        all_operations(stays, 3)
        if action in ("lease", "retrieve"):
            assert np.array_equal(read_all(stays, shared), kept)

        def is_clean() -> bool:
            left = stats(stays)
            names = ("leases", "pinned_slots", "stores", "slots_reserved")
            return all(left[name] == 0 for name in names)

        assert wait_until(is_clean), stats(stays)


def test_one_engine_unregisters_and_the_other_goes_on(server: ServerProcess) -> None:
    namespace = make_namespace(model="b16/unregisters")
    with engaged(server, namespace) as stays, engaged(server, namespace) as leaves:
        all_operations(leaves, 4)
        kept = leaves.pages[:12].copy()
        leaves.wire.call(Unregister(session=leaves.session), Done)
        leaves.session = 0
        all_operations(stays, 5)
        assert np.array_equal(read_all(stays, make_keys(4, 12)), kept)
