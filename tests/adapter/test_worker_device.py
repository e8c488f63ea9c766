"""The worker's hooks with the pool on a simulated device, against a real server."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.copy import LoadError
from adapter.deviceloads import DeviceLoads
from protocol.device.interface import MemoryKind
from protocol.device.simulated.driver import Driver
from protocol.device.simulated.faults import Fault
from tests.adapter.devicearena import simulated_driver
from tests.adapter.devicehost import WAIT_S, DeviceEngineRig
from tests.adapter.enginerig import SIZE, launched, write_model
from tests.adapter.hostlike import FakeRequest, Output, Report, tokens
from tests.wire.process import ServerProcess, wait_until

PROMPT = tokens(22)
HOOK_S = 1.0
"""Far above what a hook takes on a busy machine, and far below what it would wait for here."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Devices that the server's processes share."""
    return tmp_path_factory.mktemp("cuda")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVKEEP_SIMULATED_CUDA", str(folder))
        with launched() as process:
            yield process


@pytest.fixture(params=["ring", "ipc"])
def driver(
    folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Driver]:
    """Saves go through a ring, or are read by the server's copier of the device."""
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")
    monkeypatch.setenv("TRTLLM_KVKEEP_STAGING", request.param)
    with simulated_driver(folder, monkeypatch) as driver:
        yield driver


def engine(server: ServerProcess, folder: Path, driver: Driver, **more: object) -> DeviceEngineRig:
    made = DeviceEngineRig(server.url, write_model(folder / "m"), driver, **more)  # type: ignore[arg-type]
    made.register()
    return made


def store(rig: DeviceEngineRig, prompt: list[int] = PROMPT) -> int:
    """Has a prompt stored; a busy machine may take more than one attempt.

    Returns:
        Pages that were loaded since the engine began.
    """
    end_s = time.monotonic() + WAIT_S
    while rig.run_saved(prompt).offered < 20:
        assert time.monotonic() < end_s, rig.worker.counters()
    rig.check_nothing_leased()
    return rig.worker.counters()["pages_loaded"]


@pytest.mark.parametrize("mode", ["sync", "layerwise"])
def test_what_was_saved_from_a_device_is_loaded_into_it(
    server: ServerProcess,
    tmp_path: Path,
    driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_LOAD_MODE", mode)
    rig = engine(server, tmp_path, driver, first_page=3)  # not where its allocation begins
    store(rig)
    for seed in range(3):  # what they share, and what they do not
        other = PROMPT[:12] + tokens(10, seed)
        assert rig.run_saved(other).offered == 12
        num_pages = store(rig, other)
    assert rig.run_saved(PROMPT).offered == 20
    assert max(rig.hook_s[name] for name in ("load", "wait_for_layer", "get_finished")) < HOOK_S
    assert wait_until(lambda: rig.worker.counters()["pages_loaded"] == num_pages + 5, WAIT_S)
    counters = rig.worker.counters()
    assert ("layerwise_batches" in counters) == (mode == "layerwise")
    is_staged = mode == "layerwise" and os.environ["TRTLLM_KVKEEP_STAGING"] == "ring"
    assert ("chunks_staged_by_layer" in counters) == is_staged
    rig.check_nothing_leased()
    rig.close()


@pytest.mark.parametrize("kind", [MemoryKind.VIRTUAL, MemoryKind.MANAGED])
@pytest.mark.parametrize("driver", ["ring"], indirect=True)
def test_memory_that_no_handle_names_is_saved_through_the_ring_and_loaded_as_it_is(
    server: ServerProcess,
    tmp_path: Path,
    driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
    kind: MemoryKind,
) -> None:
    monkeypatch.delenv("TRTLLM_KVKEEP_STAGING")
    rig = engine(server, tmp_path, driver, kind=kind)
    store(rig)
    assert rig.run_saved(PROMPT).offered == 20
    rig.close()


def test_a_request_waits_outside_the_batch_while_the_device_loads(
    server: ServerProcess, tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_CONFORMANCE_EPOCH", "E4")
    rig = engine(server, tmp_path, driver)
    num_pages = store(rig)
    go = threading.Event()
    rig.main.enqueue(lambda: go.wait(WAIT_S))  # a long forward before it
    request, offered, pages = rig.begin(PROMPT)
    assert rig.parked == [request.request_id]
    begin_s = time.monotonic()
    super(DeviceEngineRig, rig).iterate(Output())
    assert time.monotonic() - begin_s < HOOK_S
    assert rig.loading == {request.request_id}
    go.set()
    assert wait_until(lambda: rig.worker.counters()["pages_loaded"] == num_pages + 5, WAIT_S)
    rig.iterate(Output())
    assert rig.loading == set()
    rig.expect(PROMPT, pages, offered // SIZE)
    rig.check_nothing_leased()
    rig.close()


def test_an_idle_engine_gives_its_lease_back(
    server: ServerProcess, tmp_path: Path, driver: Driver
) -> None:
    rig = engine(server, tmp_path, driver)
    store(rig)
    go = threading.Event()
    rig.main.enqueue(lambda: go.wait(WAIT_S))
    request, offered, pages = rig.begin(PROMPT)
    report = Report(request.request_id, PROMPT, pages, 0, len(PROMPT) - offered)
    super(DeviceEngineRig, rig).iterate(Output([report]))
    assert rig.stats()["leases"] == 1
    go.set()  # and no hook is called any more
    rig.check_nothing_leased()
    rig.expect(PROMPT, pages, 5)
    rig.close()


def test_a_load_that_is_queued_outlives_its_server(tmp_path: Path, driver: Driver) -> None:
    with launched() as own:
        rig = engine(own, tmp_path, driver)
        num_pages = store(rig)
        go = threading.Event()
        rig.main.enqueue(lambda: go.wait(WAIT_S))
        request, offered, pages = rig.begin(PROMPT)
        assert offered == 20
        report = Report(request.request_id, PROMPT, pages, 0, len(PROMPT) - offered)
        super(DeviceEngineRig, rig).iterate(Output([report]))
        own.kill()
        link = rig.worker.link
        assert link is not None
        assert wait_until(lambda: link.joined is None, WAIT_S)
        super(DeviceEngineRig, rig).iterate(Output())
        go.set()
        rig.expect(PROMPT, pages, 5)
        assert wait_until(lambda: rig.worker.counters()["pages_loaded"] == num_pages + 5, WAIT_S)
        rig.close()


def test_a_load_that_a_device_fails_is_raised_and_nothing_of_it_is_saved(
    server: ServerProcess, tmp_path: Path, driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    rig = engine(server, tmp_path, driver)
    store(rig)
    longer = PROMPT[:20] + tokens(20, 9)
    request, offered, pages = rig.begin(longer)
    assert offered == 20
    driver.faults.inject(Fault("copy", "cudaErrorUnknown"))
    report = Report(request.request_id, longer, pages, 0, len(longer) - offered)
    with pytest.raises(LoadError, match="cudaErrorUnknown"):
        rig.iterate(Output([report]))
    driver.faults.inject()
    assert "uncached" in caplog.text
    assert rig.query(FakeRequest(99, PROMPT)) == 0
    assert rig.worker.counters()["loads_failed"] == 1
    rig.close()


def test_what_was_computed_on_a_slot_that_was_reused_reaches_nobody_else(
    server: ServerProcess, tmp_path: Path, driver: Driver
) -> None:
    rig = engine(server, tmp_path, driver)
    store(rig)
    longer = PROMPT[:20] + tokens(20, 9)
    request, offered, pages = rig.begin(longer)
    go = threading.Event()
    rig.main.enqueue(lambda: go.wait(WAIT_S))
    report = Report(request.request_id, longer, pages, 0, len(longer) - offered)
    rig.worker.bind_connector_meta(rig.scheduler.build_connector_meta(Output([report])))
    rig.worker.start_load_kv(rig.main)
    rig.launch(rig.worker, lambda: rig.fill(longer, pages, 5))
    rig.worker.wait_for_save(rig.main)
    loads = rig.worker._loads
    assert isinstance(loads, DeviceLoads)
    (load,) = loads._flights._flying[0]._loads
    load._rows[0].generations[:] += 1  # as if the slots were others by now
    go.set()
    rig.sample()
    request.tokens.append(1)
    assert rig.scheduler.request_finished(request, pages)
    with pytest.raises(LoadError, match="was reused while a lease stood on it"):
        rig.worker.get_finished([request.request_id], [])
    rig.close()
    other = engine(server, tmp_path, driver)
    assert other.run_saved(longer).offered == 20  # and not what was computed behind them
    other.close()


def test_the_end_waits_a_bounded_time_for_the_device(
    server: ServerProcess, tmp_path: Path, driver: Driver
) -> None:
    rig = engine(server, tmp_path, driver)
    store(rig)
    go = threading.Event()
    rig.main.enqueue(lambda: go.wait(WAIT_S))
    request, offered, pages = rig.begin(PROMPT)
    report = Report(request.request_id, PROMPT, pages, 0, len(PROMPT) - offered)
    super(DeviceEngineRig, rig).iterate(Output([report]))
    begin_s = time.monotonic()
    rig.worker.shutdown()
    assert time.monotonic() - begin_s < 6
    go.set()
    rig.expect(PROMPT, pages, 5)  # its extents were there to the end
    rig.close()
