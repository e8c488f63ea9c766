"""Effects with real threads, files, descriptors and a real copier; the core is a recorder."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from protocol import side
from protocol.device.simulated import driver, settings
from protocol.errors import ErrorCode
from protocol.extents import RECORD_DTYPE
from protocol.ids import ArenaId, Epoch, ExtentId, PoolId, SessionId
from protocol.layout import CudaIpcMemory, MemfdMemory
from server.core import effects as fx
from server.core.dispatch import Core
from server.core.effects import HOST_COPIER, JobId, PoolHandle, ProcessId
from server.shell import clock, extents
from server.shell.actions import Actions
from server.shell.complaints import Complaints
from server.shell.copiers import CopierLink
from server.shell.devicecopiers import DeviceCopiers
from server.shell.extents import Allocator
from server.shell.peers import SideSocket
from server.shell.porters import Porters
from server.shell.reports import ExtentCreated, Reporter
from server.shell.supervisor import Supervisor, device_name
from tests.server.shell.geometry import make_geometry
from tests.server.shell.reporting import Reports
from tests.wire.client import SideClient, make_pool
from tests.wire.process import wait_until

ARENA = ArenaId(b"a" * 16)
PAGE = 16_384
PAGES = 64


@dataclass
class Recorder:
    """Stands where the core stands and writes down what it is told."""

    told: list[tuple[Any, ...]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.told.append((name, *arguments))


@dataclass
class Shell:
    reports: Reports
    actions: Actions
    core: Recorder
    link: CopierLink
    side_path: str
    arena_dir: Path
    complaints: Complaints
    devices: DeviceCopiers
    links: dict[fx.CopierId, CopierLink]

    def pump(self) -> None:
        while self.reports.queue:
            self.actions.apply(self.reports.queue.popleft(), clock.now_ns())

    def told(self, name: str, *arguments: object) -> tuple[Any, ...]:
        """Waits until the core was told this, and returns all arguments."""

        def find() -> tuple[Any, ...] | None:
            self.pump()
            for entry in self.core.told:
                if entry[0] == name and entry[1 : 1 + len(arguments)] == arguments:
                    return entry
            return None

        assert wait_until(lambda: find() is not None, 20), (name, arguments, self.core.told)
        found = find()
        assert found is not None
        self.core.told.remove(found)
        return found


@pytest.fixture
def shell(short_dir: Path, shm_dir: Path) -> Iterator[Shell]:
    with Reports() as reports:
        names = ("side", "arena", "copier")
        reporters = {name: Reporter(reports.context, name, reports.queue) for name in names}
        allocator = Allocator(str(shm_dir), ARENA, reporters["arena"])
        path = str(short_dir / "s")
        sides = SideSocket(path, "ipc:///e", Epoch(b"e" * 16), ARENA, reporters["side"])
        supervisor = Supervisor(HOST_COPIER, reporters["copier"])
        for thread in (allocator, sides, supervisor):
            thread.start()
        core, link, complaints = Recorder(), CopierLink(stall_limit_s=1.0), Complaints()
        links = {HOST_COPIER: link}
        devices = DeviceCopiers(links, reports.one_more, None)
        porters = Porters((), reports.one_more)
        actions = Actions(cast(Core, core), allocator, sides, links, devices, complaints, porters)
        yield Shell(reports, actions, core, link, path, shm_dir, complaints, devices, links)
        assert supervisor.stop(10)
        assert sides.stop(5)
        assert allocator.stop(5)
        while reports.queue:
            actions.apply(reports.queue.popleft(), clock.now_ns())
        actions.close()
        devices.close_reporters()
        for reporter in reporters.values():
            reporter.close()


@dataclass
class Engine:
    client: SideClient
    process: ProcessId
    pages: np.ndarray[Any, np.dtype[np.uint8]]
    memory: MemfdMemory


def join(shell: Shell, pool: bytes = b"p" * 16) -> Engine:
    client = SideClient(shell.side_path)
    assert isinstance(client.hello(b"i" * 16), side.Welcome)
    process = shell.told("process_joined")[1]
    fd, flat = make_pool(PAGE * PAGES)
    flat[:] = np.random.default_rng(process).integers(0, 256, flat.size, dtype=np.uint8)
    assert isinstance(client.offer(pool, fd, PAGE * PAGES), side.PoolAccepted)
    os.close(fd)
    shell.told("pool_offered", process, pool, PAGE * PAGES)
    memory = MemfdMemory(pool=pool, size_bytes=PAGE * PAGES)
    return Engine(client, process, flat.reshape(PAGES, PAGE), memory)


def opening(handle: int, engine: Engine) -> fx.OpenPool:
    return fx.OpenPool(
        copier=HOST_COPIER,
        handle=PoolHandle(handle),
        process=engine.process,
        pool=PoolId(engine.memory.pool),
        memory=engine.memory,
        fingerprint=make_geometry().fingerprint,
    )


def open_pool(shell: Shell, engine: Engine, handle: int) -> None:
    shell.actions.perform(opening(handle, engine))
    assert shell.told("pool_opened", handle)[2] is None


def copy(
    shell: Shell, job: int, handle: int, pages: list[int], slots: list[int], extent: int = 1
) -> fx.StartCopy:
    geometry = make_geometry(extent)
    effect = fx.StartCopy(
        HOST_COPIER,
        JobId(job),
        PoolHandle(handle),
        ExtentId(extent),
        np.array(pages, dtype=np.int64) * PAGE,
        np.array([geometry.slot_offset_bytes(slot) for slot in slots], dtype=np.int64),
        np.full(len(pages), PAGE, dtype=np.int64),
    )
    shell.actions.perform(effect)
    return effect


def slots_of(shell: Shell, extent: int = 1) -> np.ndarray[Any, np.dtype[np.uint8]]:
    geometry = make_geometry(extent)
    raw = np.fromfile(shell.arena_dir / f"{extent:08d}.extent", dtype=np.uint8)
    return raw[geometry.data_offset_bytes :].reshape(geometry.num_slots, geometry.slot_bytes)


def create_extent(shell: Shell, extent: int = 1) -> None:
    shell.actions.perform(fx.CreateExtent(make_geometry(extent)))
    assert shell.told("extent_created", extent)[2] is None


def test_pages_go_from_a_pool_into_slots_byte_for_byte(shell: Shell) -> None:
    shell.told("copier_ready", HOST_COPIER)
    create_extent(shell)
    one, two = join(shell), join(shell)
    open_pool(shell, one, 1)
    open_pool(shell, two, 2)
    copy(shell, 1, 1, [3, 4, 9], [0, 1, 2])
    copy(shell, 2, 2, [3, 4, 9], [5, 4, 3])
    for job in (1, 2):
        assert shell.told("copy_done", job)[2] is None
    stored = slots_of(shell)
    assert np.array_equal(stored[[0, 1, 2]], one.pages[[3, 4, 9]])
    assert np.array_equal(stored[[5, 4, 3]], two.pages[[3, 4, 9]])
    assert not stored[6:].any()
    shell.actions.perform(fx.ClosePool(HOST_COPIER, PoolHandle(1)))
    shell.told("pool_closed", 1)
    copy(shell, 3, 1, [0], [7])
    assert "not mapped" in shell.told("copy_done", 3)[2]
    one.client.close()
    two.client.close()


def test_a_copier_killed_amid_jobs_is_replaced_and_works_on(shell: Shell) -> None:
    shell.told("copier_ready", HOST_COPIER)
    create_extent(shell)
    engine = join(shell)
    open_pool(shell, engine, 1)
    os.kill(shell.link.pid, signal.SIGSTOP)  # so that jobs are in its queue when it dies
    for job in range(20):
        copy(shell, job, 1, list(range(8)), list(range(8)))
    assert shell.link.num_outstanding == 20
    os.kill(shell.link.pid, signal.SIGKILL)
    shell.told("copier_lost", HOST_COPIER)
    shell.told("copier_ready", HOST_COPIER)
    assert shell.link.num_outstanding <= 1  # the extent, passed on to the next one
    assert not [entry for entry in shell.core.told if entry[0] == "copy_done"]
    open_pool(shell, engine, 1)  # the core asks for its mappings again
    copy(shell, 100, 1, [7, 6, 5], [0, 1, 2])
    assert shell.told("copy_done", 100)[2] is None
    assert np.array_equal(slots_of(shell)[:3], engine.pages[[7, 6, 5]])
    engine.client.close()


def test_a_devices_copier_that_was_told_to_end_is_no_complaint(
    shell: Shell, shm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(settings.FOLDER, str(shm_dir / "devices"))
    copier, uuid = fx.CopierId(1), settings.uuid_of(0)
    for is_killed in (False, True):
        shell.actions.perform(fx.StartCopier(copier, uuid))
        shell.told("copier_ready", copier)
        if is_killed:
            name = f"copier_pid_{device_name(uuid)}"
            os.kill(shell.devices.figures()[name], signal.SIGKILL)
            shell.told("copier_lost", copier)
            shell.told("copier_ready", copier)
        shell.actions.perform(fx.StopCopier(copier))
        shell.told("copier_lost", copier)
        shell.told("copier_ended", copier)
        assert shell.complaints.counts() == ({"copier_lost": 1} if is_killed else {})


def test_a_devices_copier_is_passed_extents_with_the_first_pool_that_it_can_open(
    shell: Shell, shm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of extents for each false handle would keep the loop busy."""
    monkeypatch.setenv(settings.FOLDER, str(shm_dir / "devices"))
    copier, uuid = fx.CopierId(1), settings.uuid_of(0)
    create_extent(shell)
    with driver.ending(shm_dir / "devices"):
        here = driver.current()
        assert here is not None
        here.device(0).bind()
        exported = here.device(0).export(here.device(0).malloc(PAGE * PAGES))
        shell.actions.perform(fx.StartCopier(copier, uuid))
        shell.told("copier_ready", copier)
        link = shell.links[copier]

        def opening(number: int, handle: bytes) -> fx.OpenPool:
            memory = CudaIpcMemory(
                handle=handle, device_uuid=uuid, base_offset_bytes=0, size_bytes=PAGE * PAGES
            )
            name = make_geometry().fingerprint
            return fx.OpenPool(copier, PoolHandle(number), ProcessId(1), None, memory, name)

        shell.actions.perform(opening(1, bytes(64)))
        assert link.num_outstanding == 1
        assert shell.told("pool_opened", 1)[2] is not None
        assert not link.has_extent(ExtentId(1))
        shell.actions.perform(opening(2, exported.handle))
        assert shell.told("pool_opened", 2)[2] is None
        assert link.has_extent(ExtentId(1))
        shell.actions.perform(fx.ClosePool(copier, PoolHandle(2)))
        shell.told("pool_closed", 2)
        assert not link.has_extent(ExtentId(1))
        shell.actions.perform(fx.StopCopier(copier))
        shell.told("copier_ended", copier)


def test_a_wedged_copier_is_killed_after_its_limit(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    shell.told("copier_ready", HOST_COPIER)
    create_extent(shell)
    engine = join(shell)
    open_pool(shell, engine, 1)

    def is_settled() -> bool:
        shell.pump()
        return shell.link.num_outstanding == 0

    assert wait_until(is_settled)
    os.kill(shell.link.pid, signal.SIGSTOP)
    begun = time.monotonic()
    copy(shell, 1, 1, [0], [0])
    assert shell.actions.deadline_ns() is not None

    def is_killed() -> bool:
        shell.actions.check(clock.now_ns())
        return "copier_wedged" in shell.complaints.counts()

    assert wait_until(is_killed)
    assert time.monotonic() - begun >= 0.9
    assert "copier_wedged: copier host (pid " in caplog.text
    shell.told("copier_lost", HOST_COPIER)
    shell.told("copier_ready", HOST_COPIER)
    engine.client.close()


def test_extents_are_given_taken_and_removed(shell: Shell) -> None:
    create_extent(shell)
    engine = join(shell)
    geometry = make_geometry()
    shell.actions.perform(fx.GiveExtent(engine.process, SessionId(7), geometry))
    given, fds = engine.client.receive()
    assert isinstance(given, side.ExtentGiven)
    assert (given.session, given.extent, given.num_slots) == (7, 1, geometry.num_slots)
    assert (given.data_offset_bytes, given.file_bytes) == (
        geometry.data_offset_bytes,
        geometry.file_bytes,
    )
    assert os.fstat(fds[0]).st_size == geometry.file_bytes
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(fds[0], b"x", 0)
    shell.actions.perform(fx.TakeExtent(engine.process, SessionId(7), ExtentId(1)))
    shell.actions.perform(fx.RemoveExtent(ExtentId(1)))
    assert engine.client.receive() == (side.ExtentTaken(session=7, extent=1), [])

    def is_gone() -> bool:
        shell.pump()  # a copier that is up already says first that it has unmapped it
        return not list(shell.arena_dir.iterdir())

    assert wait_until(is_gone)
    os.close(fds[0])
    engine.client.close()


def test_an_extent_without_room_is_an_error_and_no_more(shell: Shell) -> None:
    huge = make_geometry(1, 1 << 50)
    shell.actions.perform(fx.CreateExtent(huge))
    assert shell.told("extent_created", 1)[2] is not None
    create_extent(shell, 2)
    assert [path.name for path in shell.arena_dir.iterdir()] == ["00000002.extent"]


def test_an_extent_far_from_its_gpu_is_told(shell: Shell) -> None:
    cpus = frozenset(os.sched_getaffinity(0))
    nodes = {0: cpus, 1: frozenset({max(cpus) + 1000})}
    for extent, wanted in ((1, 0), (2, 1)):
        made = make_geometry(extent)
        file = extents.create(str(shell.arena_dir), made, ARENA, wanted, nodes)
        file.numa_node = 0
        report = ExtentCreated(made.extent, file, None)
        shell.actions.apply(report, clock.now_ns())
    assert shell.complaints.figures()["complaint_extent_far"] == 1
    assert shell.actions.figures() == {"arena_bytes_node_0": 2 * make_geometry().file_bytes}


def test_records_go_into_their_file(shell: Shell) -> None:
    create_extent(shell)
    slots = np.array([2, 4], dtype=np.uint32)
    rows = np.zeros(2, dtype=RECORD_DTYPE)
    rows["generation"] = [8, 9]
    rows["checksum"] = [3, 5]
    shell.actions.perform(fx.WriteRecords(ExtentId(1), slots, rows))
    raw = (shell.arena_dir / "00000001.extent").read_bytes()
    geometry = make_geometry()
    offset = geometry.generation_offset_bytes(4)
    assert int.from_bytes(raw[offset : offset + 8], "little") == 9
    shell.actions.perform(fx.VoidRecords(ExtentId(1), slots[:1]))
    raw = (shell.arena_dir / "00000001.extent").read_bytes()
    checks = np.frombuffer(raw, RECORD_DTYPE, 5, 4096)["checksum"].tolist()
    assert checks == [0, 0, 0, 0, 5]


def test_pools_that_are_gone_are_errors(shell: Shell) -> None:
    shell.told("copier_ready", HOST_COPIER)
    engine = join(shell)
    pool = PoolId(engine.memory.pool)
    shell.actions.perform(fx.DropPoolOffer(engine.process, pool))
    shell.actions.perform(fx.DropPoolOffer(engine.process, pool))
    shell.actions.perform(opening(1, engine))
    assert "gone" in shell.told("pool_opened", 1)[2]
    # And in the place of the dropped one, another may be passed.
    fd, _ = make_pool(4096)
    assert wait_until(lambda: isinstance(engine.client.offer(pool, fd, 4096), side.PoolAccepted))
    os.close(fd)
    engine.client.close()


def test_a_dropped_process_is_told_why(shell: Shell) -> None:
    engine = join(shell)
    shell.actions.perform(fx.DropProcess(engine.process, ErrorCode.LIMIT_EXCEEDED, "too many"))
    answer, _ = engine.client.receive()
    assert answer == side.SideError(code=403, message="too many")
    shell.told("process_quiet", engine.process)
    engine.client.close()
