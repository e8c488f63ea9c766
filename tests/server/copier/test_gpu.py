"""A device's copier as a process on a simulated device: exact bytes, and every way to fail."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from protocol.device.simulated import faults, ledger, settings
from protocol.device.simulated.faults import Fault
from server.copier.wire import Answer, Command, Kind
from tests.server.copier.child import Child, check_it_dies_with_its_parent
from tests.server.copier.gpuchild import (
    EXTENT,
    FILL,
    FIRST_BYTE,
    MODULE,
    GpuChild,
    Pool,
    delays,
    expected,
    exporter,
    pages,
)
from tests.wire.process import wait_until

MIB = 1 << 20
PAGE = 128 * 1024
OURS = "server.copier.gpu"

pytestmark = pytest.mark.usefixtures("gpu_folder")


@pytest.mark.parametrize("seed", [1, 2])
def test_every_byte_arrives_and_answered_pages_may_be_overwritten(seed: int) -> None:
    """Jobs of all sizes at once; the pool's bytes change as soon as the last one is answered."""
    pool = Pool(24 * MIB)
    with GpuChild(32 * MIB, environ=delays(2000, seed)) as child:
        assert child.open(pool.opening(3)) is None
        for round_ in range(3):
            rng = np.random.default_rng(100 * seed + round_)
            sources, targets = rng.permutation(190)[:180], rng.permutation(190)[:180]
            whole = child.extent.copy()
            jobs = np.array_split(np.arange(180), [1, 3, 4, 100])
            for job, chosen in enumerate(jobs):
                parts = pages(PAGE, sources[chosen].tolist(), targets[chosen].tolist())
                expected(whole, pool.array, parts)
                child.copy(job, 3, parts)
            answers = child.answers(len(jobs))
            pool.refill(round_ + 50)
            assert answers == {(Kind.COPY, job): None for job in range(len(jobs))}
            assert np.array_equal(child.extent, whole)


def test_it_works_however_many_descriptors_its_server_had() -> None:
    """The socket comes with the number that it has there, and select(2) ends at 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = 3000
    assert hard > lowest
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with Child(MODULE, [settings.uuid_of(0).hex()], lowest=lowest) as child:
            assert child.call(Command(Kind.UNMAP_POOL, 5)) == Answer(Kind.UNMAP_POOL, 5, None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_job_of_many_small_parts_goes_in_several_packets() -> None:
    pool = Pool(MIB)
    with GpuChild(2 * MIB) as child:
        assert child.open(pool.opening(1)) is None
        parts = pages(128, list(range(5000)), list(range(5000))[::-1])
        whole = child.extent.copy()
        expected(whole, pool.array, parts)
        child.copy(9, 1, parts)
        assert child.answer() == Answer(Kind.COPY, 9, None)
        assert np.array_equal(child.extent, whole)


def test_an_answered_job_touches_memory_no_more_while_others_go_on() -> None:
    """Each job alone: once it is answered, its pages and slots are used for something else."""
    pool = Pool(4 * MIB)
    with GpuChild(8 * MIB, environ=delays(20_000)) as child:
        assert child.open(pool.opening(1)) is None
        whole = pool.array.copy()
        for job in range(16):
            child.copy(job, 1, pages(PAGE, [2 * job, 2 * job + 1]))
        for _ in range(16):
            job = child.answer().number
            at = FIRST_BYTE + 2 * job * PAGE
            slot = child.extent[at : at + 2 * PAGE]
            begin = 2 * job * PAGE
            assert np.array_equal(slot, whole[begin : begin + 2 * PAGE])
            pool.array[begin : begin + 2 * PAGE] = 0xAB
            slot[:] = 0xCD
        time.sleep(0.1)
        assert (child.extent[FIRST_BYTE : FIRST_BYTE + 32 * PAGE] == 0xCD).all()


# --- pools -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "size"),
    [(0, MIB + 1), (1, MIB), (MIB, 1), (1 << 40, PAGE), (PAGE, 1 << 62), (0, 0), (1 << 63, 1)],
)
def test_p06_a_pool_that_its_allocation_does_not_hold_is_refused(offset: int, size: int) -> None:
    pool = Pool(MIB)
    with GpuChild(MIB) as child:
        error = child.open(pool.opening(1, offset, size))
        assert error is not None
        assert str(MIB) in error
        child.copy(1, 1, pages(PAGE, [0]))
        refused = child.answer().error
        assert refused is not None
        assert "not mapped" in refused
        assert not child.extent.any()
        assert num_mapped(child) == 0
        assert child.open(pool.opening(2, PAGE, MIB - PAGE)) is None  # and it lives
        child.copy(2, 2, pages(PAGE, [0]))
        assert child.answer().error is None
        assert np.array_equal(child.extent[FIRST_BYTE:][:PAGE], pool.array[PAGE : 2 * PAGE])


def test_p06_a_part_outside_its_pool_is_refused_although_the_allocation_holds_it() -> None:
    pool = Pool(MIB)
    with GpuChild(MIB) as child:
        assert child.open(pool.opening(1, PAGE, 2 * PAGE)) is None
        for job, parts in enumerate(
            [
                pages(PAGE, [0, 1, 2]),
                pages(PAGE, [0, -1]),
                pages(PAGE, [0], [-1]),
                pages(PAGE, [0], [1000]),
                np.array([[0], [FIRST_BYTE], [-PAGE]]),
            ]
        ):
            child.copy(job, 1, parts)
            error = child.answer().error
            assert error is not None
            assert "outside" in error
        assert not child.extent.any()


def num_mapped(child: Child) -> int:
    maps = Path(f"/proc/{child.process.pid}/maps").read_text(encoding="utf-8").splitlines()
    return sum("/memory-00-" in line for line in maps)


def test_pools_of_one_allocation_are_opened_once_and_closed_with_the_last() -> None:
    pool = Pool(MIB)
    with GpuChild(MIB) as child:
        for number in (1, 2):
            assert child.open(pool.opening(number, (number - 1) * PAGE, PAGE)) is None
            assert num_mapped(child) == 1
        assert child.call(Command(Kind.UNMAP_POOL, 1)) == Answer(Kind.UNMAP_POOL, 1, None)
        assert num_mapped(child) == 1
        child.copy(1, 2, pages(PAGE, [0]))
        assert child.answer().error is None
        assert np.array_equal(child.extent[FIRST_BYTE:][:PAGE], pool.array[PAGE : 2 * PAGE])
        for _ in range(2):  # the second one finds nothing, which is fine
            assert child.call(Command(Kind.UNMAP_POOL, 2)) == Answer(Kind.UNMAP_POOL, 2, None)
            assert num_mapped(child) == 0


def test_unmapping_is_answered_after_the_copies_under_way() -> None:
    pool = Pool(4 * MIB)
    with GpuChild(8 * MIB, environ=delays(50_000)) as child:
        assert child.open(pool.opening(1)) is None
        whole = child.extent.copy()
        for job in range(4):
            parts = pages(PAGE, range(job * 8, job * 8 + 8))
            expected(whole, pool.array, parts)
            child.copy(job, 1, parts)
        child.send(Command(Kind.UNMAP_EXTENT, EXTENT))
        child.send(Command(Kind.UNMAP_POOL, 1))
        kinds = [child.answer().kind for _ in range(6)]
        assert kinds[:4] == [Kind.COPY] * 4
        assert set(kinds[4:]) == {Kind.UNMAP_EXTENT, Kind.UNMAP_POOL}
        assert np.array_equal(child.extent, whole)
        assert num_mapped(child) == 0


def test_pools_on_host_memory_are_not_for_it() -> None:
    with GpuChild(MIB) as child:
        error = child.call(Command(Kind.MAP_POOL, 1, size_bytes=4096)).error
        assert error is not None
        assert "not for a device" in error


# --- ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize("uuid", [settings.uuid_of(7).hex(), "00" * 15])
def test_a_device_that_is_not_there_is_said_in_one_line(uuid: str) -> None:
    with Child(MODULE, [uuid]) as child:
        assert child.ready.kind == Kind.READY
        assert child.ready.error
        assert "\n" not in child.ready.error
        assert child.process.wait(10) == 1
        assert "no device" in child.errors()


def test_it_says_what_it_takes_of_the_device_and_gives_it_back(gpu_folder: Path) -> None:
    machine = settings.Machine()
    with GpuChild(MIB) as child:
        assert child.device_bytes == machine.context_bytes
        assert ledger.census(gpu_folder, 0).num_contexts == 1
    assert child.process.returncode == 0
    assert ledger.census(gpu_folder, 0).num_contexts == 0


def test_it_dies_with_its_parent_even_if_its_socket_lives_on() -> None:
    check_it_dies_with_its_parent(OURS, settings.uuid_of(0).hex())


def test_it_takes_in_no_more_jobs_than_it_may() -> None:
    pool = Pool(4 * MIB)
    script = (
        "import sys\nfrom server.copier import gpu\n"
        "class Copier(gpu.Copier):\n"
        "    def _end(self, job):\n"
        "        assert self._pipeline.num_jobs <= gpu.MAX_JOBS\n"
        "        super()._end(job)\n"
        "gpu.MAX_JOBS, gpu.Copier = 4, Copier\ngpu.main(sys.argv[1:])"
    )
    with GpuChild(8 * MIB, ("-c", script), delays(2000)) as child:
        assert child.open(pool.opening(1)) is None
        whole = child.extent.copy()
        for job in range(32):
            parts = pages(PAGE, [job])
            expected(whole, pool.array, parts)
            child.copy(job, 1, parts)
        assert child.answers(32) == {(Kind.COPY, job): None for job in range(32)}
        assert np.array_equal(child.extent, whole)


def test_it_ends_with_its_socket_amid_copies() -> None:
    pool = Pool(16 * MIB)
    with GpuChild(20 * MIB, environ=delays(100_000)) as child:
        assert child.open(pool.opening(1)) is None
        child.copy(1, 1, pages(PAGE, range(100)))
        time.sleep(0.05)
        child.channel.close()
        assert child.process.wait(10) == 0
        assert child.errors() == ""


def test_killed_amid_a_copy_another_one_does_it(gpu_folder: Path) -> None:
    pool = Pool(16 * MIB)
    parts = pages(PAGE, range(100))
    with GpuChild(20 * MIB, environ=delays(50_000)) as child:
        assert child.open(pool.opening(1)) is None
        child.copy(1, 1, parts)
        time.sleep(0.05)
        child.process.kill()
        with pytest.raises(EOFError, match="-9"):
            child.answer()
        # What it had of the device comes back with its end, and the pool is as it was.
        census = ledger.census(gpu_folder, 0)
        assert (census.num_contexts, census.memory_bytes) == (1, 16 * MIB)
        assert num_open(pool) == 1
    with GpuChild(20 * MIB) as child:
        assert child.open(pool.opening(1)) is None
        whole = child.extent.copy()
        expected(whole, pool.array, parts)
        child.copy(1, 1, parts)
        assert child.answer().error is None
        assert np.array_equal(child.extent, whole)


def num_open(pool: Pool) -> int:
    """Processes that have its memory open, this one included."""
    name = f"memory-00-{pool.allocation.holding.token.hex()}"
    return sum(
        any(Path(os.path.realpath(fd)).name == name for fd in path.iterdir())
        for path in Path("/proc").glob("[0-9]*/fd")
        if path.parent.name in (str(os.getpid()), *children())
    )


def children() -> list[str]:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return path.read_text(encoding="ascii").split()


def test_an_engine_killed_amid_copies_leaves_the_copier_alive(gpu_folder: Path) -> None:
    other = Pool(MIB)
    with exporter(MIB) as (engine, opening), GpuChild(4 * MIB, environ=delays(50_000)) as child:
        assert child.open(opening) is None
        assert child.open(other.opening(2)) is None
        child.copy(1, 1, pages(PAGE, range(8)))
        child.copy(2, 2, pages(PAGE, range(8), range(8, 16)))
        engine.kill()
        engine.wait()
        assert child.answers(2) == {(Kind.COPY, 1): None, (Kind.COPY, 2): None}
        assert (child.extent[FIRST_BYTE:][:MIB] == FILL).all()  # it lives as long as it is open
        assert np.array_equal(child.extent[FIRST_BYTE + MIB :][:MIB], other.array)
        assert child.call(Command(Kind.UNMAP_POOL, 1)).error is None
        assert ledger.census(gpu_folder, 0).freed_bytes == 0
        again = child.call(Command(Kind.OPEN_POOL, 3, size_bytes=MIB, handle=opening.handle))
        assert again.error is not None


@pytest.mark.parametrize("call", ["copy", "run", "query"])
def test_after_a_sticky_error_all_jobs_are_answered_and_it_ends(
    gpu_folder: Path, call: str
) -> None:
    pool = Pool(8 * MIB)
    with GpuChild(10 * MIB, environ=delays(2000)) as child:
        assert child.open(pool.opening(1)) is None
        error = Fault(call, "cudaErrorIllegalAddress", is_sticky=True, command=OURS, after=2)
        faults.plant(gpu_folder, error)
        for job in range(4):
            child.copy(job, 1, pages(PAGE, range(job * 16, job * 16 + 16)))
        answers = child.answers(4)
        assert set(answers) == {(Kind.COPY, job) for job in range(4)}
        told = [text for text in answers.values() if text is not None]
        assert told
        assert all("cudaErrorIllegalAddress" in text for text in told)
        for (_, job), text in answers.items():
            if text is None:
                begin = job * 16 * PAGE
                copied = child.extent[FIRST_BYTE + begin :][: 16 * PAGE]
                assert np.array_equal(copied, pool.array[begin : begin + 16 * PAGE])
        with pytest.raises(EOFError):
            child.answer()
        assert child.process.wait(10) == 1
        assert "cudaErrorIllegalAddress" in child.errors()


def test_a_sticky_error_while_opening_ends_it_too(gpu_folder: Path) -> None:
    pool = Pool(MIB)
    with GpuChild(MIB) as child:
        faults.plant(gpu_folder, Fault("open", "cudaErrorECCUncorrectable", True, command=OURS))
        error = child.open(pool.opening(1))
        assert error is not None
        assert "cudaErrorECCUncorrectable" in error
        assert child.process.wait(10) == 1


def test_an_error_that_passes_fails_one_job(gpu_folder: Path) -> None:
    pool = Pool(MIB)
    with GpuChild(2 * MIB) as child:
        assert child.open(pool.opening(1)) is None
        faults.plant(gpu_folder, Fault("copy", "cudaErrorInvalidValue", command=OURS, times=1))
        child.copy(1, 1, pages(PAGE, [0]))
        error = child.answer().error
        assert error is not None
        assert "cudaErrorInvalidValue" in error
        child.copy(2, 1, pages(PAGE, [1]))
        assert child.answer() == Answer(Kind.COPY, 2, None)
        assert np.array_equal(child.extent[FIRST_BYTE + PAGE :][:PAGE], pool.array[PAGE:][:PAGE])


def test_a_hang_answers_nothing_and_dies_of_sigkill(gpu_folder: Path) -> None:
    """The server's stall limit does that; see its supervisor."""
    pool = Pool(MIB)
    with GpuChild(2 * MIB) as child:
        assert child.open(pool.opening(1)) is None
        faults.plant(gpu_folder, Fault("run", "", hang_s=60, command=OURS))
        child.copy(1, 1, pages(PAGE, [0]))
        child.channel.settimeout(0.5)
        with pytest.raises(TimeoutError):
            child.answer()
        child.process.send_signal(signal.SIGKILL)
        assert child.process.wait(10) == -signal.SIGKILL
        assert not child.extent.any()


def test_a_pool_that_hangs_while_others_go_on_ends_it_after_all(gpu_folder: Path) -> None:
    """Others' answers hide it from the server, so it looks itself."""
    good, bad = Pool(MIB), Pool(MIB)
    script = (
        "import sys\nfrom server.copier import gpu\n"
        "gpu.DRIVER_LIMIT_S = 1.0\ngpu.main(sys.argv[1:])"
    )
    with GpuChild(2 * MIB, ("-c", script)) as child:
        assert child.open(good.opening(1)) is None
        faults.plant(gpu_folder, Fault("open", "", hang_s=60, pid=child.process.pid))
        child.send(bad.opening(2))
        begun_s = time.monotonic()
        num_copied = 0
        while time.monotonic() < begun_s + 10:
            try:
                child.copy(num_copied, 1, pages(PAGE, [num_copied % 8]))
                assert child.answer() == Answer(Kind.COPY, num_copied, None)
            except (EOFError, BrokenPipeError, ConnectionResetError):
                break
            num_copied += 1
            time.sleep(0.01)
        assert num_copied > 10
        assert wait_until(lambda: child.process.poll() == 1)
        assert "did not answer" in child.errors()


def test_it_imports_nothing_of_the_server_and_keeps_no_descriptor() -> None:
    pool = Pool(MIB)
    with GpuChild(MIB) as child:
        maps = Path(f"/proc/{child.process.pid}/maps").read_text(encoding="utf-8")
        assert not [word for word in ("torch", "msgspec", "zmq") if word in maps]
        # Its stdio, socket, wake and context, and the mapping of its extent.
        assert wait_until(lambda: num_fds(child) <= 7)
        before = num_fds(child)
        for number in range(20):
            assert child.open(pool.opening(number)) is None
            assert child.open(pool.opening(number + 100, MIB, MIB)) is not None
            assert child.call(Command(Kind.UNMAP_POOL, number)).error is None
        assert num_fds(child) == before


def num_fds(child: Child) -> int:
    return len(os.listdir(f"/proc/{child.process.pid}/fd"))
