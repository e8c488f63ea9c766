"""P05: nothing that one process does waits for an event of another: it asks, or it looks.

On host memory that shows as: a load ends although the server, its copier and every other engine
stand still; a save of one engine ends although another, which has one under way, stands still.
"""

from __future__ import annotations

import os
import re
import signal
import time

import numpy as np
import pytest

from tests.faults.bystander import engaged, fill, read_all, read_slots, retrieve
from tests.faults.inflight import NUM_CHUNKS, InFlight, content
from tests.wire.client import make_keys, make_namespace
from tests.wire.process import ROOT, ServerProcess

SECOND_S = 1.0


def test_a_load_ends_while_everyone_else_stands_still(own_server: ServerProcess) -> None:
    with engaged(own_server, make_namespace(model="p05/load")) as engine:
        fill(engine, 1)
        keys = make_keys(1, 64)
        assert engine.save(keys, list(range(64))) == 64
        with InFlight(own_server, "p05/load", "load_nothing", 1) as other:
            found = engine.lookup(keys)
            slots = retrieve(engine, found.lease, 64)
            stopped = [own_server.pid, *own_server.children(), other.pid]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            try:
                begun_s = time.monotonic()
                assert np.array_equal(read_slots(engine, slots), engine.pages)
                assert time.monotonic() - begun_s < SECOND_S
            finally:
                for pid in stopped:
                    os.kill(pid, signal.SIGCONT)
        assert engine.release(found.lease) == 64


@pytest.mark.parametrize("direction", ["save", "load_nothing"])
def test_others_go_on_beside_an_engine_that_stands_still(
    own_server: ServerProcess, direction: str
) -> None:
    model = f"p05/{direction}"
    with engaged(own_server, make_namespace(model=model)) as engine:
        fill(engine, 2)
        with InFlight(own_server, model, direction, 1) as other:
            other.signal(signal.SIGSTOP)
            begun_s = time.monotonic()
            keys = make_keys(2, 64)
            assert engine.save(keys, list(range(64))) == 64
            assert np.array_equal(read_all(engine, keys), engine.pages)
            assert time.monotonic() - begun_s < 5 * SECOND_S
            other.signal(signal.SIGCONT)
            if direction == "save":  # its own copy was made meanwhile, too
                assert other.tell("settle") == f"copied {NUM_CHUNKS}"
                assert other.tell("commit") == str(NUM_CHUNKS)
                data = read_all(engine, make_keys(1, NUM_CHUNKS))
                assert np.array_equal(data, content(1, engine.page_bytes))


def test_no_source_names_an_event_of_another_process() -> None:
    """CUDA's events between processes would bring all of P05 back."""
    banned = re.compile(r"cudaIpc(Get|Open)EventHandle|from_ipc_handle|interprocess=True")
    sources = [
        path for name in ("server", "protocol", "adapter") for path in (ROOT / name).rglob("*.py")
    ]
    assert len(sources) > 100
    found = [str(path) for path in sources if banned.search(path.read_text(encoding="utf-8"))]
    assert found == []
    assert banned.search("torch.cuda.Event.from_ipc_handle(device, handle)")
