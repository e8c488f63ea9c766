"""Loads in the background and by layer, through the hooks and against a real server."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from adapter.copy import LoadError
from adapter.metadata import ConnectorMetadata
from tests.adapter.enginerig import SIZE, EngineRig, Stream, launched, write_model
from tests.adapter.hostlike import FakeRequest, Output, Report, tokens
from tests.adapter.test_device import FakeCuda
from tests.wire.process import ServerProcess, wait_until

PROMPT = tokens(22)
NOT_A_LOAD_S = 1.0
"""The forwards before stand still until the test lets them go: a hook that waited for them would
not come back before the loader gives up, after a minute. A busy machine may delay it for less."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with launched() as process:
        yield process


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")


@pytest.fixture
def parking(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EngineRig]:
    """An engine of the epoch whose host waits for running loads."""
    monkeypatch.setenv("TRTLLM_CONFORMANCE_EPOCH", "E4")
    rig = EngineRig(server.url, write_model(tmp_path / "m")).register()
    rig.run_saved(PROMPT)
    yield rig
    rig.close()


@pytest.fixture
def layered(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EngineRig]:
    monkeypatch.setenv("TRTLLM_KVKEEP_LOAD_MODE", "layerwise")
    rig = EngineRig(server.url, write_model(tmp_path / "m")).register()
    rig.run_saved(PROMPT)
    yield rig
    rig.close()


class HeldStream(Stream):
    """A stream whose forwards do not end before they are let."""

    def __init__(self) -> None:
        self.is_done = False

    def query(self) -> bool:
        return self.is_done


class AskedStream(Stream):
    """A stream whose marks note on which device each of our threads asks them."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.devices: dict[str, set[int]] = {}

    def query(self) -> bool:
        name = threading.current_thread().name
        self.devices.setdefault(name, set()).add(self.cuda.current_device())
        return True


def reported(request: FakeRequest, pages: list[int], offered: int, cursor: int = 0) -> Output:
    return Output([Report(request.request_id, PROMPT, pages, cursor, len(PROMPT) - offered)])


# --- in the background ---


def test_a_request_waits_outside_the_batch_for_its_pages(parking: EngineRig) -> None:
    outcome = parking.run_saved(PROMPT)
    assert outcome.offered == 20
    assert parking.loading == set()
    assert parking.worker.counters()["pages_loaded"] == 5
    parking.check_nothing_leased()


def test_the_hook_does_not_wait_for_the_forwards_before(parking: EngineRig) -> None:
    stream = parking.stream = HeldStream()
    request, offered, pages = parking.begin(PROMPT)
    assert parking.parked == [request.request_id]
    begin_s = time.monotonic()
    parking.iterate(Output())
    assert time.monotonic() - begin_s < NOT_A_LOAD_S
    for _ in range(3):
        parking.iterate(Output())
        assert parking.loading == {request.request_id}
        parking.check(PROMPT, pages, 0)  # recycled pages are left alone until then
    stream.is_done = True
    deadline_s = time.monotonic() + 5
    while parking.loading:
        assert time.monotonic() < deadline_s
        parking.iterate(Output())
    parking.check(PROMPT, pages, offered // SIZE)
    parking.iterate(reported(request, pages, offered, offered))


def test_marks_are_asked_on_the_engines_device_though_its_pool_is_in_host_memory(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # host contract rule 13
    monkeypatch.setenv("TRTLLM_CONFORMANCE_EPOCH", "E4")
    cuda = FakeCuda(True)
    cuda.set_device(3)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    rig = EngineRig(server.url, write_model(tmp_path / "m")).register()
    stream = rig.stream = AskedStream(cuda)
    rig.run_saved(PROMPT)
    assert rig.run_saved(PROMPT).offered == 20
    assert stream.devices == {"kvkeep-saver": {3}, "kvkeep-loader": {3}}
    rig.close()


def test_the_same_iteration_twice_loads_once(parking: EngineRig) -> None:
    # Host contract §5: under attention DP ``start_load_kv`` may run twice in one iteration.
    request, offered, pages = parking.begin(PROMPT)
    metadata = parking.scheduler.build_connector_meta(Output())
    for _ in range(2):
        parking.worker.bind_connector_meta(metadata)
        parking.worker.start_load_kv(parking.stream)
    parking.parked.clear()
    loaded: list[int] = []
    started = [request.request_id]
    while not loaded:
        loaded += parking.worker.get_finished([], started)[1]
        started = []
    assert loaded == [request.request_id]
    parking.check(PROMPT, pages, offered // SIZE)
    parking.pages[pages[0]] = 7
    parking.worker.start_load_kv(parking.stream)
    assert parking.worker.get_finished([], []) == ([], [])
    assert (parking.pages[pages[0]] == 7).all()
    assert parking.worker.counters()["pages_loaded"] == 5


def test_an_id_without_an_order_has_arrived_at_once(parking: EngineRig) -> None:
    parking.worker.bind_connector_meta(ConnectorMetadata(1))
    parking.worker.start_load_kv(parking.stream)
    assert parking.worker.get_finished([], [77]) == ([], [77])
    assert parking.worker.get_finished([], []) == ([], [])


def test_a_failed_load_is_raised_and_the_request_never_runs(
    parking: EngineRig, caplog: pytest.LogCaptureFixture
) -> None:
    request, _, pages = parking.begin(PROMPT)
    metadata = parking.scheduler.build_connector_meta(Output())
    (load,) = metadata.loads
    slots = bytearray(load.slots)
    slots[-1] ^= 0xFF  # a generation that the last slot does not carry
    broken = replace(metadata, loads=(replace(load, slots=bytes(slots)),))
    parking.worker.bind_connector_meta(broken)
    parking.worker.start_load_kv(parking.stream)
    started = [request.request_id]

    def collect_until_it_fails() -> None:
        assert parking.worker.get_finished([], started) == ([], [])
        for _ in range(1000):
            time.sleep(0.002)  # a pace: the failure ends the loop
            assert parking.worker.get_finished([], []) == ([], [])

    with pytest.raises(LoadError, match="generation"):
        collect_until_it_fails()
    with pytest.raises(LoadError, match="generation"):
        parking.worker.start_load_kv(parking.stream)
    with pytest.raises(LoadError, match="generation"):
        parking.worker.get_finished([], [])
    assert "uncached" in caplog.text
    assert parking.query(FakeRequest(99, PROMPT)) == 0
    assert pages
    parking.check_nothing_leased()


def test_a_promise_whose_pages_were_not_understood_fails_loudly(parking: EngineRig) -> None:
    # The host parks the request all the same, and takes its tokens for computed when it is back.
    request = FakeRequest(parking.next_id, list(PROMPT))
    assert parking.query(request) == 20
    running = parking.scheduler._running
    assert running is not None
    joined, offers = running.link.joined, running.link.offers
    assert joined is not None
    parking.scheduler.update_state_after_alloc_by_layer_group(request, [[1], [2]])
    with pytest.raises(LoadError, match="pages"):
        parking.iterate(Output())
    watch = offers.watch(joined.epoch, 0)
    assert offers.is_over(watch, 0, 1), "or the engine would not leave its server for minutes"
    parking.check_nothing_leased()


@pytest.mark.parametrize("pages", [[], [[]]])
def test_a_promise_without_pages_fails_loudly(parking: EngineRig, pages: list[list[int]]) -> None:
    request = FakeRequest(parking.next_id, list(PROMPT))
    assert parking.query(request) == 20
    parking.scheduler.update_state_after_alloc_by_layer_group(request, pages)
    with pytest.raises(LoadError, match="pages"):
        parking.iterate(Output())


def test_a_promise_outlives_the_end_of_caching(parking: EngineRig) -> None:
    # All queries of an iteration come before its allocations (host contract §5); the first of them
    # may end caching, and the second request waits for its load nevertheless.
    other = FakeRequest(700, tokens(22, seed=3))
    assert parking.query(other) == 0
    parking.next_id = 701
    request = FakeRequest(701, list(PROMPT))
    assert parking.query(request) == 20
    parking.scheduler.update_state_after_alloc(other, [40])  # too few pages
    assert parking.scheduler._engine.running is None
    pages = parking.hand_out(6)
    parking.wipe(pages)
    parking.scheduler.update_state_after_alloc(request, pages)
    assert parking.await_load(request)
    parking.check(PROMPT, pages, 5)
    later = FakeRequest(702, list(PROMPT))
    assert parking.query(later) == 0
    parking.scheduler.update_state_after_alloc(later, parking.hand_out(6))
    assert parking.scheduler._table is not None
    assert parking.scheduler._table.find(702) is None
    parking.check_nothing_leased()


def test_shutdown_stops_what_still_waits(parking: EngineRig) -> None:
    parking.stream = HeldStream()
    _, _, pages = parking.begin(PROMPT)
    parking.iterate(Output())
    begin_s = time.monotonic()
    parking.worker.shutdown()
    assert time.monotonic() - begin_s < 5
    parking.check(PROMPT, pages, 0)


def test_a_mode_that_is_not_safe_here_is_not_taken(
    server: ServerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("TRTLLM_CONFORMANCE_EPOCH", "E2")
    monkeypatch.setenv("TRTLLM_KVKEEP_LOAD_MODE", "async")
    rig = EngineRig(server.url, write_model(tmp_path / "m")).register()
    assert "synchronous" in caplog.text
    rig.run_saved(PROMPT)
    _, offered, _ = rig.begin(PROMPT)
    assert offered == 20
    assert rig.parked == []
    rig.close()


# --- by layer ---


def batches(rig: EngineRig) -> int:
    return rig.worker.counters().get("layerwise_batches", 0)


def test_after_hooks_were_seen_a_load_goes_on_beside_the_forward(layered: EngineRig) -> None:
    # The prompt that was saved first has shown the hooks already.
    for expected in (1, 2):
        assert layered.run_saved(PROMPT).offered == 20
        assert batches(layered) == expected
    assert wait_until(lambda: layered.worker.counters()["pages_loaded"] == 10, 5)
    layered.check_nothing_leased()


def test_each_hook_waits_for_the_forwards_before_and_then_for_its_layer(
    layered: EngineRig,
) -> None:
    stream = HeldStream()
    request, offered, pages = layered.begin(PROMPT)
    layered.worker.bind_connector_meta(
        layered.scheduler.build_connector_meta(reported(request, pages, offered))
    )
    begin_s = time.monotonic()
    layered.worker.start_load_kv(stream)
    assert time.monotonic() - begin_s < NOT_A_LOAD_S
    time.sleep(0.02)  # long enough to go wrong
    layered.check(PROMPT, pages, 0)
    stream.is_done = True
    for layer in range(layered.num_layers):
        layered.worker.wait_for_layer_load(layer, stream)
    layered.check(PROMPT, pages, offered // SIZE)
    layered.worker.wait_for_save(layered.stream)


def test_an_engine_without_hooks_loads_whole(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_LOAD_MODE", "layerwise")
    rig = EngineRig(server.url, write_model(tmp_path / "m")).register()
    rig.fires_hooks = False
    rig.run_saved(PROMPT)
    for _ in range(2):
        assert rig.run_saved(PROMPT).offered == 20
    assert batches(rig) == 0
    rig.close()


@pytest.mark.parametrize("where", ["callable", "wait_for_save"])
def test_a_forward_that_did_not_ask_is_an_error(
    layered: EngineRig, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    after_forward = layered.worker.register_forward_pass_callable()
    assert after_forward is not None
    after_forward()  # in warm-up nothing is loaded
    request, offered, pages = layered.begin(PROMPT)
    layered.worker.bind_connector_meta(
        layered.scheduler.build_connector_meta(reported(request, pages, offered))
    )
    layered.worker.start_load_kv(layered.stream)
    layered.worker.wait_for_layer_load(0, layered.stream)
    with pytest.raises(LoadError, match="without asking"):
        after_forward() if where == "callable" else layered.worker.wait_for_save(layered.stream)
    assert "uncached" in caplog.text
    assert layered.query(FakeRequest(99, PROMPT)) == 0
