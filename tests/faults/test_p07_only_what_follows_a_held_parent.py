"""P07: a chunk is held only after its parent; a dead engine's reservations count for nothing."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.messages import StopReason
from tests.faults.bystander import engaged, fill, read_all, stats
from tests.faults.childengine import ChildEngine
from tests.wire.client import make_keys, make_namespace
from tests.wire.process import ServerProcess, wait_until


@pytest.mark.parametrize("committed", [0, 4, 10])
def test_p07_a_dies_with_blocks_0_to_9_reserved_while_b_stores_10_to_12(
    server: ServerProcess, committed: int
) -> None:
    model = f"p07/{committed}"
    keys = make_keys(1, 16)[:13]
    with engaged(server, make_namespace(model=model)) as other:
        fill(other, 6)
        with ChildEngine(server, model, "reserve") as first:
            _, reply = other.store(keys, [10, 11, 12], start=10)
            assert (reply.held, reply.copied) == (0, 0)
            assert reply.stop in (StopReason.BUSY, StopReason.MISSING_PARENT)
            _, from_the_start = other.store(keys, list(range(13)))
            assert (from_the_start.copied, from_the_start.stop) == (0, StopReason.BUSY)
            assert other.lookup(keys).ready == 0
            if committed:
                first.tell(str(committed))
                first.expect("committed")
                assert other.lookup(keys).ready == committed
            first.kill()
        assert wait_until(lambda: stats(other)["slots_reserved"] == 0)
        assert other.lookup(keys).ready == committed
        # What is missing is filled in by whoever computes it next, and only that.
        assert other.save(keys, list(range(13))) == 13
        data = read_all(other, keys)
        made_by_first = np.random.default_rng(5).integers(
            0, 256, (64, other.page_bytes), dtype=np.uint8
        )
        assert np.array_equal(data[:committed], made_by_first[:committed])
        assert np.array_equal(data[committed:], other.pages[committed:13])


def test_p07_every_order_of_two_halves(server: ServerProcess) -> None:
    """Two STOREs of one chain in any order of STORE and COMMIT: never a hole below a hit."""
    orders = ("SsCc", "SCsc", "SscC", "sSCc", "scSC")
    with engaged(server, make_namespace(model="p07/orders")) as engine:
        for number, order in enumerate(orders):
            fill(engine, number)
            keys = make_keys(100 + number, 12)
            opened: dict[str, tuple[int, int]] = {}
            for act in order:
                if act == "S":
                    store, reply = engine.store(keys[:6], list(range(6)))
                    opened["C"] = store, reply.copied
                elif act == "s":
                    store, reply = engine.store(keys, list(range(6, 12)), start=6)
                    opened["c"] = store, reply.copied
                elif opened[act][1]:
                    engine.commit(*opened[act])
                ready = engine.lookup(keys).ready
                assert ready in (0, 6, 12), (order, act)
            ready = engine.lookup(keys).ready
            assert np.array_equal(read_all(engine, keys[:ready]), engine.pages[:ready])
            assert ready == (12 if order == "SCsc" else 6), order
