"""Loads into device memory in the background and by layer; an interpreter that ends meanwhile."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapter.copy import LoadError
from protocol.device.simulated.faults import Fault
from protocol.device.simulated.streams import SimulatedStream
from tests.adapter.arena import UNTOUCHED
from tests.adapter.devicearena import simulated_driver
from tests.adapter.devicerig import LAYER, PAGE, WAIT_S, DeviceRig, order, seeds

HOOK_S = 1.0
"""Far above what a hook takes on a busy machine, and far below what it would wait for here."""
NUM_LAYERS = 4


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceRig]:
    with simulated_driver(tmp_path, monkeypatch) as driver:
        made = DeviceRig(driver)
        yield made
        made.close()


@pytest.fixture
def layered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceRig]:
    with simulated_driver(tmp_path, monkeypatch) as driver:
        made = DeviceRig(driver, by_layer=True)
        made.prove_hooks()
        yield made
        made.close()


# --- in the background ---


def test_a_parked_request_arrives_once_its_pages_are_filled(rig: DeviceRig) -> None:
    hold = rig.hold()
    rig.main.enqueue(lambda: rig.pool[5].fill(7))  # the page's last owner
    given = order("a", (1, 1), 5, request_id=7)
    begin_s = time.monotonic()
    for _ in range(2):  # the metadata comes again
        rig.begin(given)
    assert rig.loads.take_arrived([7, 8]) == [8]  # nothing was ordered for 8
    assert time.monotonic() - begin_s < HOOK_S
    assert (rig.loads.num_waiting, rig.arena.users(), rig.leases.given) == (1, 1, [])
    hold.let_go()
    rig.settle()
    assert rig.is_filled(5, (1, 1))
    assert rig.leases.given == [b"a"]
    assert rig.loads.take_arrived([]) == [7]
    assert rig.loads.take_arrived([]) == []
    assert rig.journal.counters() == {"bytes_loaded": PAGE, "pages_loaded": 1}


def test_a_background_load_holds_up_no_forward(rig: DeviceRig) -> None:
    rig.begin(order("a", (1, 1), 5, request_id=7))
    (own,) = rig.loads._own
    hold = rig.hold(own)  # type: ignore[arg-type]
    rig.begin(order("b", (2, 2), 6, request_id=8), order("c", (2, 3), 0))
    rig.launch()
    rig.main.synchronize(WAIT_S)
    assert rig.is_filled(0, (2, 3))
    rig.until(lambda: b"c" in rig.leases.given)
    assert rig.loads.take_arrived([8]) == []
    hold.let_go()
    rig.settle()
    assert rig.loads.take_arrived([]) == [8]
    assert rig.is_filled(6, (2, 2))


def test_a_stream_of_our_own_ends_with_the_loads(rig: DeviceRig) -> None:
    rig.begin(order("a", (1, 1), 5, request_id=7))
    (own,) = rig.loads._own
    assert isinstance(own, SimulatedStream)
    thread = own._thread
    rig.settle()
    del own, rig.loads
    gc.collect()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert rig.is_filled(5, (1, 1))


def test_a_background_load_that_fails_is_raised_and_its_request_never_runs(rig: DeviceRig) -> None:
    hold = rig.hold()
    rig.begin(order("a", (1, 1), 5, request_id=7))
    rig.arena.files[1].set_generation(1, 99)
    assert rig.loads.take_arrived([7]) == []
    hold.let_go()
    rig.settle()
    for _ in range(2):
        with pytest.raises(LoadError, match="reused"):
            rig.loads.take_arrived([])
    with pytest.raises(LoadError, match="reused"):
        rig.begin()
    assert rig.leases.given == [b"a"]
    assert rig.loads.num_waiting == 0


@pytest.mark.parametrize("call", ["wait", "copy", "record"])
def test_a_background_load_that_cannot_begin_raises_at_once_and_later(
    rig: DeviceRig, call: str
) -> None:
    rig.plant(Fault(call, "cudaErrorUnknown", times=1))
    with pytest.raises(LoadError, match="cudaErrorUnknown"):
        rig.begin(order("a", (1, 1), 5, request_id=7))
    rig.settle()
    assert rig.leases.given == [b"a"]
    assert rig.loads.num_waiting == rig.arena.users() == 0
    if call == "copy":  # the request was taken in
        with pytest.raises(LoadError, match="cudaErrorUnknown"):
            rig.loads.take_arrived([7])


# --- by layer ---


@seeds(5)
def test_each_layer_of_the_forward_finds_its_bytes_and_no_hook_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    with simulated_driver(tmp_path, monkeypatch, seed=seed) as driver:
        rig = DeviceRig(driver, by_layer=True)
        rig.prove_hooks()
        seen: list[bytes] = []
        for turn in range(5):
            pages = (turn % 3, 3 + turn % 3)
            rig.main.enqueue(lambda: rig.pool[:6].fill(7))
            hold = rig.hold()
            begin_s = time.monotonic()
            rig.begin(
                order(f"a{turn}", (1, turn % 4), pages[0]),
                order(f"b{turn}", (2, turn % 4), pages[1]),
                may_fire=True,
            )

            def look(layer: int, pages: tuple[int, int] = pages) -> None:
                seen.extend(rig.pool[p, layer * LAYER :][:LAYER].tobytes() for p in pages)

            rig.launch(range(NUM_LAYERS), look)
            rig.end()
            assert time.monotonic() - begin_s < HOOK_S
            hold.let_go()
            rig.main.synchronize(WAIT_S)
            wanted = [rig.arena.page(1 + n, turn % 4, 0).reshape(NUM_LAYERS, LAYER) for n in (0, 1)]
            assert seen == [wanted[n][at].tobytes() for at in range(NUM_LAYERS) for n in (0, 1)]
            seen.clear()
        rig.settle()
        assert rig.journal.counters()["layerwise_batches"] == 5
        assert len(rig.leases.given) == 10
        assert rig.arena.users() == 0
        rig.close()


def test_the_first_layer_may_be_computed_before_the_last_one_is_there(
    layered: DeviceRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []
    copy, num_queued = layered.device.copy, 0

    def slow(stream: Any, batch: Any, way: Any) -> None:
        nonlocal num_queued
        num_queued += 1
        if num_queued == NUM_LAYERS:
            layered.hold(stream)
        copy(stream, batch, way)

    monkeypatch.setattr(layered.device, "copy", slow)
    layered.begin(order("a", (1, 1), 5), may_fire=True)
    layered.launch(range(NUM_LAYERS), done.append)
    layered.until(lambda: done == [0, 1, 2])
    assert not layered.is_filled(5, (1, 1))
    layered.holds[-1].let_go()
    layered.main.synchronize(WAIT_S)
    assert done == [0, 1, 2, 3]
    layered.end()


def test_without_proven_hooks_a_load_is_queued_before_the_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated_driver(tmp_path, monkeypatch) as driver:
        rig = DeviceRig(driver, by_layer=True)
        for may_fire in (True, False):
            rig.begin(order(f"a{may_fire}", (1, 1), 5), may_fire=may_fire)
            rig.launch(range(NUM_LAYERS if may_fire else 0))
            rig.end()
        rig.main.synchronize(WAIT_S)
        assert rig.is_filled(5, (1, 1))
        assert "layerwise_batches" not in rig.journal.counters()
        rig.close()


def test_a_forward_that_did_not_ask_is_never_served(layered: DeviceRig) -> None:
    layered.begin(order("a", (1, 0), 1), may_fire=True)
    layered.launch(range(NUM_LAYERS - 1))
    for hook in (layered.loads.check_hooks, layered.loads.launched):
        with pytest.raises(LoadError, match="without asking"):
            hook()
    layered.settle()
    layered.begin(order("b", (1, 1), 2), may_fire=True)
    layered.launch()  # as if it had hooks: none is needed
    layered.end()
    layered.main.synchronize(WAIT_S)
    assert layered.is_filled(2, (1, 1))


@pytest.mark.parametrize("writer", ["main", "forward"])
def test_a_forward_that_broke_off_leaves_no_load_to_write_later(
    layered: DeviceRig, writer: str
) -> None:
    hold = layered.hold()
    layered.begin(order("a", (1, 0), 1), may_fire=True)
    begin_s = time.monotonic()
    assert layered.loads.take_arrived([]) == []
    assert time.monotonic() - begin_s < HOOK_S
    stream = getattr(layered, writer)
    stream.enqueue(lambda: layered.pool[1].fill(3))
    hold.let_go()
    for each in (layered.main, layered.forward):
        each.synchronize(WAIT_S)
    layered.settle()
    assert (layered.pool[1] == 3).all()


def test_layers_that_could_not_be_queued_fail_all_and_what_was_stays_held(
    layered: DeviceRig,
) -> None:
    hold = layered.hold()
    layered.plant(Fault("copy", "cudaErrorUnknown", after=2))
    with pytest.raises(LoadError, match="cudaErrorUnknown"):
        layered.begin(order("a", (1, 0), 1), may_fire=True)
    assert (layered.arena.users(), layered.leases.given) == (1, [])
    hold.let_go()
    layered.settle()
    assert (layered.arena.users(), layered.leases.given) == (0, [b"a"])
    assert (layered.pool[1, 2 * LAYER :] == UNTOUCHED).all()
    with pytest.raises(LoadError, match="cudaErrorUnknown"):
        layered.loads.take_arrived([])


def test_a_stream_that_takes_no_order_fails_the_load(layered: DeviceRig) -> None:
    layered.begin(order("a", (1, 0), 1), may_fire=True)
    layered.plant(Fault("wait", "cudaErrorUnknown"))
    with pytest.raises(LoadError, match="cudaErrorUnknown"):
        layered.loads.wait_for_layer(0, layered.forward)
    layered.loads.wait_for_layer(99, layered.forward)  # nothing of it is in the pool


# --- the interpreter ends ---

ENDING = """
import os, sys, pytest, pathlib, numpy
from tests.adapter.devicearena import simulated_driver
from tests.adapter.devicerig import DeviceRig, order
patch = pytest.MonkeyPatch()
with simulated_driver(pathlib.Path(sys.argv[1]), patch, delay_us=20000) as driver:
    rig = DeviceRig(driver)
    for turn in range(50):
        rig.begin(order(f"s{turn}", (1, turn % 4), turn % 20))
        rig.launch()
        rig.end()
    rig.begin(order("a", (1, 0), 20, request_id=7))
    print(rig.loads.num_flying > 0, flush=True)
    how = sys.argv[2]
    if how == "exit":
        raise SystemExit(0)
    if how == "forget":
        del rig
        raise SystemExit(0)
    os._exit(0)
"""


@pytest.mark.parametrize("how", ["exit", "forget", "at once"])
def test_an_interpreter_may_end_while_copies_run(tmp_path: Path, how: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDING, str(tmp_path), how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "True"), ended.stderr


def test_pages_of_other_requests_are_never_touched(rig: DeviceRig) -> None:
    rng = np.random.default_rng(5)
    wanted = rig.pool.copy()
    for turn in range(60):
        page, place = int(rng.integers(0, 24)), (int(rng.integers(1, 3)), int(rng.integers(0, 4)))
        rig.begin(order(f"l{turn}", place, page, request_id=turn % 2 and turn + 1))
        if turn % 2:
            rig.settle()  # the host lets nobody else have the pages of a parked request
        wanted[page] = rig.arena.page(*place, 0)
        rig.launch()
        rig.loads.launched()
    rig.main.synchronize(WAIT_S)
    rig.settle()
    assert np.array_equal(rig.pool, wanted)
    assert len(rig.leases.given) == len(set(rig.leases.given)) == 60
