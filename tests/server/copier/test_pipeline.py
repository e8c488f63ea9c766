"""Jobs under way on a simulated device: bays come back only when nothing touches them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.device.interface import Batch, Device, DeviceError, Direction, Stream
from protocol.device.simulated import driver, faults, settings
from protocol.device.simulated.faults import Fault
from server.copier.bounce import Bounce
from server.copier.pieces import cut
from server.copier.pipeline import Job, Passage, Pipeline
from server.copier.wake import Wake
from server.copier.writers import Writers

BAY = 64 * 1024
NUM_BAYS = 4
POOL = 2 << 20


class Setup:
    def __init__(self, device: Device) -> None:
        self.wake = Wake()
        self.bounce = Bounce(device, NUM_BAYS * BAY, BAY)
        self.writers: Writers[Passage] = Writers(2, self.wake)
        self.pipeline = Pipeline(device, self.bounce, self.writers)
        self.memory = device.allocate(POOL)
        current = driver.current()
        assert current is not None
        made = current.allocation_at(self.memory.address)
        assert made is not None
        self.pool = made.array
        self.pool[:] = np.random.default_rng(5).integers(0, 256, POOL, dtype=np.uint8)
        self.extent = np.zeros(POOL, dtype=np.uint8)

    def job(self, number: int, parts: NDArray[np.int64]) -> Job:
        return Job(number, 1, 1, self.memory.address, self.extent, cut(parts, BAY))

    def run(self, limit_s: float = 20) -> list[Job]:
        """Steps until no job is left."""
        ended: list[Job] = []
        deadline_s = time.monotonic() + limit_s
        while self.pipeline.num_jobs and time.monotonic() < deadline_s:
            ended += self.pipeline.step(time.monotonic())
            time.sleep(50e-6)
        assert self.pipeline.num_jobs == 0
        return ended

    def close(self) -> None:
        self.writers.stop()
        for thread in self.writers._threads:
            thread.join(10)
        self.pipeline.close()
        self.memory.close()


@pytest.fixture
def setup(device: Device) -> Setup:
    return Setup(device)


def parts(*triples: tuple[int, int, int]) -> NDArray[np.int64]:
    return np.ascontiguousarray(np.array(triples, dtype=np.int64).reshape(-1, 3).transpose())


@pytest.mark.parametrize("seed", range(4))
def test_jobs_of_all_sizes_share_few_bays(
    monkeypatch: pytest.MonkeyPatch, gpu_folder: Path, seed: int
) -> None:
    monkeypatch.setenv(settings.SEED, str(seed))
    monkeypatch.setenv(settings.DELAY_US, "1000")
    current = driver.current()
    assert current is not None
    device = cast(Device, current.device(0))
    device.bind()
    setup = Setup(device)
    rng = np.random.default_rng(seed)
    expected = setup.extent.copy()
    targets = iter(rng.permutation(POOL // 2048).tolist())
    for number in range(40):
        triples = [
            (int(rng.integers(0, POOL - 2048)), 2048 * next(targets), int(rng.integers(1, 2048)))
            for _ in range(int(rng.integers(1, 24)))
        ]
        for source, target, size in triples:
            expected[target : target + size] = setup.pool[source : source + size]
        setup.pipeline.add(setup.job(number, parts(*triples)))
    ended = setup.run()
    assert sorted(job.number for job in ended) == list(range(40))
    assert all(job.error is None for job in ended)
    assert np.array_equal(setup.extent, expected)
    assert setup.bounce.num_free == NUM_BAYS
    assert setup.pipeline.oldest_s is None
    setup.close()


def test_a_job_longer_than_all_bays_goes_through_them(setup: Setup) -> None:
    setup.pipeline.add(setup.job(1, parts((0, 0, POOL))))
    setup.pipeline.step(0.0)
    assert setup.bounce.num_free == 0  # several pieces at once
    assert setup.pipeline.is_asking
    assert setup.pipeline.oldest_s == 0.0
    [job] = setup.run()
    assert job.error is None
    assert np.array_equal(setup.extent, setup.pool)
    setup.close()


def test_a_job_without_bytes_ends_at_once(setup: Setup) -> None:
    setup.pipeline.add(setup.job(1, parts((0, 0, 0))))
    setup.pipeline.add(setup.job(2, parts()))
    assert [job.number for job in setup.pipeline.step(0.0)] == [1, 2]
    setup.close()


def test_jobs_are_begun_in_order(setup: Setup) -> None:
    """A long one before a short one: the short one gets its bay when the long one has all its."""
    setup.pipeline.add(setup.job(1, parts((0, 0, 16 * BAY))))
    setup.pipeline.add(setup.job(2, parts((0, 20 * BAY, 10))))
    ended = [job.number for job in setup.run()]
    assert sorted(ended) == [1, 2]
    assert np.array_equal(setup.extent[: 16 * BAY], setup.pool[: 16 * BAY])
    setup.close()


def test_a_job_that_cannot_be_queued_fails_after_its_pieces_have_landed(
    setup: Setup, gpu_folder: Path
) -> None:
    faults.plant(gpu_folder, Fault("copy", "cudaErrorInvalidValue", after=2, times=1))
    setup.pipeline.add(setup.job(1, parts((0, 0, 4 * BAY))))
    setup.pipeline.add(setup.job(2, parts((0, 8 * BAY, BAY))))
    ended = {job.number: job for job in setup.run()}
    assert ended[1].error is not None
    assert "cudaErrorInvalidValue" in ended[1].error
    assert ended[1].num_flying == 0
    assert ended[2].error is None
    assert not setup.extent[2 * BAY : 8 * BAY].any()
    assert setup.bounce.num_free == NUM_BAYS
    setup.close()


def test_a_piece_that_cannot_be_written_fails_its_job_and_no_other(setup: Setup) -> None:
    bad = setup.job(1, parts((0, 0, BAY), (BAY, POOL - 10, BAY), (2 * BAY, BAY, BAY)))
    setup.pipeline.add(bad)  # its bounds were not checked
    setup.pipeline.add(setup.job(2, parts((0, 8 * BAY, BAY))))
    ended = {job.number: job for job in setup.run()}
    assert ended[1].error is not None
    assert "ValueError" in ended[1].error
    assert ended[2].error is None
    assert setup.bounce.num_free == NUM_BAYS
    setup.close()


def test_the_bay_of_a_piece_that_failed_is_not_used_before_the_event_behind_it(
    monkeypatch: pytest.MonkeyPatch, device: Device, setup: Setup
) -> None:
    """A device that queued part of a batch before it refused the rest."""
    whole = type(device).copy
    batches: list[Batch] = []

    def partly(self: Device, stream: Stream, batch: Batch, direction: Direction) -> None:
        batches.append(batch)
        whole(self, stream, batch, direction)
        if len(batches) == 1:
            raise DeviceError("cudaErrorInvalidValue", "the second half of a batch")

    monkeypatch.setattr(type(device), "copy", partly)
    monkeypatch.setattr(setup.bounce, "_free", setup.bounce._free[:1])  # so that it is wanted
    setup.pipeline.add(setup.job(1, parts((0, 0, BAY))))
    setup.pipeline.add(setup.job(2, parts((BAY, 8 * BAY, BAY))))
    assert setup.pipeline.step(0.0) == []
    assert len(batches) == 1
    ended = {job.number: job.error for job in setup.run()}
    assert set(ended) == {1, 2}
    assert ended[1] is not None
    assert ended[2] is None
    assert not setup.extent[:BAY].any()
    assert np.array_equal(setup.extent[8 * BAY : 9 * BAY], setup.pool[BAY : 2 * BAY])
    setup.close()


@pytest.mark.parametrize("call", ["run", "copy", "query", "record"])
def test_after_the_devices_failure_every_job_ends_and_nothing_more_is_written(
    setup: Setup, gpu_folder: Path, call: str
) -> None:
    fault = Fault(call, "cudaErrorIllegalAddress", is_sticky=True, after=1)
    faults.plant(gpu_folder, fault)
    for number in range(3):
        setup.pipeline.add(setup.job(number, parts((0, number * 4 * BAY, 4 * BAY))))
    done: list[Job] = []
    with pytest.raises(DeviceError):
        done = run_on(setup)
    abandoned = setup.pipeline.abandon("the device failed", 10)
    assert sorted(job.number for job in done + abandoned) == [0, 1, 2]
    assert all(job.error for job in abandoned)
    assert setup.pipeline.num_jobs == 0
    before = setup.extent.copy()
    time.sleep(0.05)
    assert np.array_equal(setup.extent, before)


def run_on(setup: Setup) -> list[Job]:
    return setup.run()


def test_an_error_of_recording_is_the_devices_failure(setup: Setup, gpu_folder: Path) -> None:
    """The copy before it was queued, so its bay and its job cannot be let go."""
    faults.plant(gpu_folder, Fault("record", "cudaErrorInvalidValue"))
    setup.pipeline.add(setup.job(1, parts((0, 0, BAY))))
    with pytest.raises(DeviceError):
        setup.pipeline.step(0.0)
    [job] = setup.pipeline.abandon("failed", 10)
    assert job.error == "failed"
