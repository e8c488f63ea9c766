"""P06 on a device: a wrong pool, or a device that fails, harms nobody but those who must be.

The copier asks the device how long an allocation is before its first copy, so a wrong size is a
refusal and no out-of-bounds copy. What a device does to its copier all the same (a sticky error,
a driver that does not come back) ends with another copier; other devices' and host memory's engines
notice nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from protocol.device.simulated import driver, faults, ledger, settings
from protocol.device.simulated.faults import Fault
from protocol.errors import ErrorCode, ReplyError
from protocol.layout import Region
from protocol.messages import Done, Unregister
from protocol.namespace import Namespace
from tests.faults.bystander import Bystander, fill, is_saved, read_all, stats, submit_store
from tests.faults.deviceengine import DeviceEngine, on_device
from tests.faults.held import HeldChild
from tests.faults.test_p06_a_wrong_pool_harms_its_own import PAGE, POOL, REFUSED, WRONG
from tests.wire.client import make_keys, make_namespace
from tests.wire.process import ServerProcess, wait_until

OURS = "server.copier.gpu"
SIZES = ("--l1-size", "64M", "--extent-size", "1M")


@pytest.fixture
def gpu_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(settings.FOLDER, str(tmp_path / "gpus"))
    with driver.ending(tmp_path / "gpus"):
        yield tmp_path / "gpus"


@pytest.fixture
def server(gpu_folder: Path, short_dir: Path, shm_dir: Path) -> Iterator[ServerProcess]:
    with ServerProcess(short_dir, shm_dir / "a", *SIZES) as process:
        yield process


@pytest.fixture
def bystander(server: ServerProcess) -> Iterator[Bystander]:
    made = Bystander(server)
    yield made
    made.close()


def own(name: str) -> Namespace:
    return make_namespace(model=f"p06/{name}/{os.urandom(4).hex()}")


def check_engine(engine: DeviceEngine, seed: int) -> None:
    """What it saves now is read back to the byte."""
    fill(engine, seed)
    keys = make_keys(seed, 32)
    assert wait_until(lambda: is_saved(engine, keys), 30, 0.05)
    assert np.array_equal(read_all(engine, keys, seed), engine.pages[:32])


def test_the_device_says_how_long_an_allocation_is(
    server: ServerProcess, bystander: Bystander
) -> None:
    wrong: list[dict[str, Any]] = [
        {"size_bytes": POOL + 1},
        {"base_offset_bytes": 1},
        {"base_offset_bytes": POOL, "size_bytes": POOL},
        {"size_bytes": 1 << 43},
        {"handle": os.urandom(64)},
    ]
    with on_device(server, own("beside")) as beside:
        check_engine(beside, 1)
        copiers = server.children()
        assert len(copiers) == 2
        for number, changes in enumerate(wrong):
            with on_device(server, own("wrong"), register=False) as engine:
                engine.memory = msgspec.structs.replace(engine.memory, **changes)
                with pytest.raises(ReplyError) as caught:
                    engine.register()
                assert caught.value.code == ErrorCode.POOL_INVALID, changes
            check_engine(beside, 10 + number)
        bystander.check()
        assert server.children() == copiers


@pytest.mark.parametrize(("name", "region", "num_pages"), REFUSED, ids=[r[0] for r in REFUSED])
def test_pages_that_cannot_be_are_refused(
    server: ServerProcess, name: str, region: Region, num_pages: int
) -> None:
    with on_device(server, own("refused"), register=False) as engine:
        engine.regions, engine.num_pages = (region,), num_pages
        with pytest.raises(ReplyError) as caught:
            engine.register()
        assert caught.value.code in (ErrorCode.POOL_INVALID, ErrorCode.PAGE_SIZE_MISMATCH)


@pytest.mark.parametrize(("name", "region", "num_pages"), WRONG, ids=[w[0] for w in WRONG])
def test_what_is_merely_wrong_spoils_its_own_chunks_alone(
    server: ServerProcess, bystander: Bystander, name: str, region: Region, num_pages: int
) -> None:
    with on_device(server, own("wrong"), register=False) as engine:
        fill(engine, 3)
        engine.regions, engine.num_pages = (region,), num_pages
        engine.register()
        keys = make_keys(1, 16)
        assert engine.save(keys, list(range(16))) == 16
        flat = engine.allocation.array
        starts = [region.offset_bytes + page * region.stride_bytes for page in range(16)]
        expected = np.stack([flat[start : start + PAGE] for start in starts])
        assert np.array_equal(read_all(engine, keys), expected)
        bystander.check()


def test_a_device_that_is_not_there_is_refused_in_one_line(
    server: ServerProcess, bystander: Bystander
) -> None:
    with on_device(server, own("absent"), register=False) as engine:
        engine.memory = msgspec.structs.replace(engine.memory, device_uuid=settings.uuid_of(9))
        with pytest.raises(ReplyError) as caught:
            engine.register()
        assert caught.value.code == ErrorCode.POOL_INVALID
        assert "\n" not in str(caught.value)
        bystander.check()


@pytest.mark.parametrize("call", ["run", "query", "copy"])
def test_a_sticky_error_costs_one_devices_copier_and_nobody_else(
    server: ServerProcess, bystander: Bystander, gpu_folder: Path, call: str
) -> None:
    with on_device(server, own("hit"), 0) as hit, on_device(server, own("other"), 1) as other:
        check_engine(hit, 1)
        check_engine(other, 2)
        before = server.children()
        assert len(before) == 3
        fault = Fault(
            call, "cudaErrorIllegalAddress", is_sticky=True, device=0, command=OURS, times=1
        )
        faults.plant(gpu_folder, fault)
        stored = submit_store(hit, make_keys(3, 64), list(range(64)), 77)
        reply = hit.wire.reply(stored, 20)
        assert reply is not None
        assert wait_until(lambda: len(set(before) - set(server.children())) == 1, 20)
        faults.plant(gpu_folder)
        check_engine(other, 4)
        bystander.check()
        check_engine(hit, 5)  # by the next copier
        assert len(set(before) & set(server.children())) == 2
    assert "Traceback" not in server.log()


@pytest.mark.parametrize(
    "holds_gil",
    [pytest.param(False, marks=pytest.mark.slow), True],
    ids=["GIL released", "GIL held"],
)
def test_a_driver_that_does_not_come_back_is_replaced(
    server: ServerProcess, bystander: Bystander, gpu_folder: Path, holds_gil: bool
) -> None:
    """Closing a pool hangs, as it does with a mapping whose owner died badly."""
    with on_device(server, own("other"), 1) as other, on_device(server, own("beside"), 0) as beside:
        check_engine(other, 1)
        check_engine(beside, 2)
        before = server.children()
        leaving = DeviceEngine(server.url, server.side_path, own("leaves"))
        leaving.register()
        check_engine(leaving, 3)
        fault = Fault("close", "", hang_s=90, holds_gil=holds_gil, device=0, command=OURS)
        faults.plant(gpu_folder, fault)
        begun_s = time.monotonic()
        left = leaving.wire.submit(Unregister(session=leaving.session), 60)
        check_engine(other, 4)
        bystander.check()
        assert time.monotonic() - begun_s < 8  # before the copier was given up
        assert isinstance(leaving.wire.reply(left, 60).body, Done)
        faults.plant(gpu_folder)
        leaving.close()
        check_engine(other, 5)
        check_engine(beside, 6)
        assert len(set(before) & set(server.children())) == 2
    assert "Traceback" not in server.log()


def test_a_copy_that_does_not_end_is_given_up(
    server: ServerProcess, bystander: Bystander, gpu_folder: Path
) -> None:
    with on_device(server, own("hung"), 0) as hung, on_device(server, own("other"), 1) as other:
        check_engine(hung, 1)
        check_engine(other, 2)
        faults.plant(gpu_folder, Fault("run", "", hang_s=90, device=0, command=OURS))
        begun_s = time.monotonic()
        stored = submit_store(hung, make_keys(3, 64), list(range(64)), 77, timeout_s=60)
        check_engine(other, 4)
        bystander.check()
        assert time.monotonic() - begun_s < 8  # before the copier was given up
        hung.wire.reply(stored, 60)
        assert time.monotonic() - begun_s < 20
        assert hung.lookup(make_keys(3, 64)).ready == 0
        faults.plant(gpu_folder)
        check_engine(hung, 5)
    assert "Traceback" not in server.log()


def test_an_engine_killed_amid_a_copy_leaves_nothing_on_the_device(
    gpu_folder: Path, short_dir: Path, shm_dir: Path
) -> None:
    slow = {settings.DELAY_US: "200000"}
    with (
        ServerProcess(short_dir, shm_dir / "a", *SIZES, environ=slow) as server,
        on_device(server, own("beside"), 0) as beside,
    ):
        check_engine(beside, 1)
        before, copiers = ledger.census(gpu_folder, 0), server.children()
        model = f"p06/killed/{os.urandom(4).hex()}"
        arguments = [server.url, server.side_path, model]
        with HeldChild("tests.faults.deviceengine", arguments) as engine:
            assert engine.hear() == "ready"
            engine.kill()
            check_engine(beside, 2)
            assert wait_until(lambda: ledger.census(gpu_folder, 0) == before, 20)
        assert server.children() == copiers
        assert stats(beside)["slots_reserved"] == 0
