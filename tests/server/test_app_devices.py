"""Pools of simulated devices through a whole server: exact bytes, and devices that go alone."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from protocol.device.simulated import driver, faults, settings
from protocol.device.simulated.faults import Fault
from protocol.errors import ErrorCode, ReplyError
from protocol.messages import Done, Stats, StatsReply, StopReason, Unregister
from server.shell.supervisor import device_name
from tests.wire.client import Engine, make_keys, make_namespace
from tests.wire.deviceclient import DeviceEngine
from tests.wire.process import ServerProcess, is_alive, wait_until

PAGES = 64
COPIER = "server.copier.gpu"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shm_dir: Path) -> Iterator[Path]:
    path = shm_dir / "devices"
    path.mkdir()
    settings.write_machine(path, settings.Machine(num_devices=2))
    monkeypatch.setenv(settings.FOLDER, str(path))
    monkeypatch.setenv(settings.DELAY_US, "500")
    monkeypatch.setenv(settings.SEED, "7")
    with driver.ending(path):
        yield path


@pytest.fixture
def server(folder: Path, short_dir: Path, shm_dir: Path) -> Iterator[ServerProcess]:
    with ServerProcess(short_dir, shm_dir / "a") as made:
        yield made


def engine(server: ServerProcess, device: int = 0, seed: int = 1) -> DeviceEngine:
    made = DeviceEngine(server.url, server.side_path, device, seed=seed)
    made.pump_while_waiting()
    return made


def figures(one: Engine) -> dict[str, int]:
    return one.wire.call(Stats(), StatsReply).values


def copier_pid(one: Engine, device: int) -> int:
    return figures(one).get(f"copier_pid_{device_name(settings.uuid_of(device))}", 0)


def check_saved(one: Engine, reader: Engine, seed: int, pages: list[int]) -> None:
    """Pages saved by one and overwritten at once are read by another as they were."""
    keys, before = make_keys(seed, len(pages)), one.pages[pages].copy()
    assert one.save(keys, pages) == len(pages)
    one.pages[pages] = 0xAB
    found = reader.lookup(keys, request=seed)
    assert found.ready == len(pages)
    assert np.array_equal(reader.read(found.lease, len(pages)), before)
    assert reader.release(found.lease) == len(pages)


def test_two_engines_on_two_devices_and_one_on_none_share_every_byte(
    server: ServerProcess,
) -> None:
    with (
        engine(server, 0, seed=1) as one,
        engine(server, 1, seed=2) as two,
        Engine(server.url, server.side_path) as host,
    ):
        host.pump_while_waiting()
        host.pages[:] = 3
        for each in (one, two, host):
            each.register()
        rng = np.random.default_rng(5)
        for turn in range(3):
            for number, (saver, reader) in enumerate([(one, two), (two, host), (host, one)]):
                saver.pages[:] = rng.integers(0, 256, saver.pages.shape, dtype=np.uint8)
                check_saved(saver, reader, 10 * turn + number, rng.permutation(PAGES).tolist())
        values = figures(host)
        assert values["device_copiers"] == 2
        assert values[f"copier_device_bytes_{device_name(settings.uuid_of(0))}"] > 0
        assert len({copier_pid(host, 0), copier_pid(host, 1), server.pid}) == 3
        for each in (one, two, host):
            each.wire.call(Unregister(session=each.session), Done)
    assert server.log() == ""


def test_a_copier_killed_amid_a_copy_is_replaced_and_the_other_device_notices_nothing(
    server: ServerProcess, folder: Path
) -> None:
    with engine(server, 0) as one, engine(server, 1, seed=2) as two:
        one.register()
        two.register()
        check_saved(one, two, 1, list(range(8)))
        old, other = copier_pid(one, 0), copier_pid(one, 1)
        faults.plant(folder, Fault(call="run", code="", hang_s=60, device=0, command=COPIER))
        store = one.submit_store(make_keys(2, 4), [0, 1, 2, 3])
        assert wait_until(lambda: figures(two)["copies_in_flight"] >= 1)
        check_saved(two, one, 3, list(range(20)))  # while the first one hangs
        os.kill(old, signal.SIGKILL)
        faults.plant(folder)
        assert one.stored(store).stop is StopReason.COPY_FAILED
        check_saved(two, one, 4, list(range(20, 40)))
        assert wait_until(lambda: copier_pid(two, 0) not in (0, old))
        one.refill(9)
        assert wait_until(lambda: can_store(one))
        check_saved(one, two, 5, list(range(8, 40)))
        assert copier_pid(one, 1) == other
        assert figures(one)["copies_in_flight"] == 0
    # Lines say which, and whose store it cut; nothing else happened.
    kinds = re.findall(r"WARNING kvkeep.server: (\w+)", server.log())
    assert "copier_lost" in kinds
    assert set(kinds) <= {"copier_lost", "copier", "store_cut"}, server.log()


def can_store(one: Engine) -> bool:
    """Whether its copier has its pool again."""
    try:
        store, reply = one.store(make_keys(os.getpid(), 1), [0])
    except ReplyError as error:
        if error.code is not ErrorCode.UNAVAILABLE:
            raise
        return False
    if reply.copied:
        one.commit(store, 0)
    return bool(reply.copied)


def test_a_copier_wedged_in_the_driver_is_killed_and_the_other_device_notices_nothing(
    server: ServerProcess, folder: Path
) -> None:
    with engine(server, 0) as one, engine(server, 1, seed=2) as two:
        one.register()
        two.register()
        old = copier_pid(one, 0)
        faults.plant(
            folder,
            Fault(call="copy", code="", hang_s=60, device=0, command=COPIER, holds_gil=True),
        )
        store = one.submit_store(make_keys(2, 4), [0, 1, 2, 3])
        check_saved(two, one, 3, list(range(20)))
        assert one.stored(store, wait_s=30).stop is StopReason.COPY_FAILED
        faults.plant(folder)
        check_saved(two, one, 4, list(range(20, 40)))
        assert wait_until(lambda: copier_pid(two, 0) not in (0, old))
        assert wait_until(lambda: can_store(one))
        check_saved(one, two, 5, list(range(8, 40)))
        assert not is_alive(old)
    assert "copier_wedged" in server.log()


def test_p06_a_pool_that_reaches_beyond_its_allocation_is_refused_before_a_byte_moves(
    server: ServerProcess, folder: Path
) -> None:
    with engine(server, 0) as good, engine(server, 0, seed=2) as bad:
        good.register()
        pid = copier_pid(good, 0)
        for lie in (
            {"size_bytes": bad.memory.size_bytes + 1},
            {"base_offset_bytes": bad.memory.base_offset_bytes + 1},
            {"base_offset_bytes": 1 << 44},
            {"handle": bytes(64)},
        ):
            told, bad.memory = bad.memory, msgspec.structs.replace(bad.memory, **lie)
            with pytest.raises(ReplyError) as caught:
                bad.register()
            assert caught.value.code is ErrorCode.POOL_INVALID
            assert caught.value.detail["device"] == settings.uuid_of(0).hex()
            assert "\n" not in caught.value.message
            bad.memory = told
            check_saved(good, good, hash(str(lie)) % 1000, [1, 2, 3])
        bad.register()
        check_saved(bad, good, 5000, list(range(PAGES)))
        assert copier_pid(good, 0) == pid


def test_a_device_that_the_server_cannot_use_is_refused_at_once_and_nothing_stays(
    server: ServerProcess,
) -> None:
    assert wait_until(lambda: len(server.children()) == 1)
    with engine(server, 0) as one:
        own = one.memory
        for _ in range(2):
            one.memory = msgspec.structs.replace(own, device_uuid=settings.uuid_of(9))
            with pytest.raises(ReplyError) as caught:
                one.register()
            assert caught.value.code is ErrorCode.POOL_INVALID
            assert caught.value.detail["device"] == settings.uuid_of(9).hex()
            assert device_name(settings.uuid_of(9)) in caught.value.message
        assert wait_until(lambda: figures(one)["device_copiers"] == 0)
        assert wait_until(lambda: len(server.children()) == 1)
        one.memory = own
        one.register()
        check_saved(one, one, 1, list(range(PAGES)))
    assert server.log().count("copier_refused") == 1  # the next one within ten seconds is counted


def test_a_killed_engine_leaves_its_devices_copier_to_others(server: ServerProcess) -> None:
    with engine(server, 0) as one:
        one.register()
        with engine(server, 0, seed=2) as two:
            two.register()
            check_saved(two, one, 1, list(range(PAGES)))
            pid = copier_pid(one, 0)
            two.wire.call(Unregister(session=two.session), Done)
        check_saved(one, one, 2, list(range(PAGES)))
        assert copier_pid(one, 0) == pid


def test_the_end_of_the_server_is_the_end_of_every_copier(
    folder: Path, short_dir: Path, shm_dir: Path
) -> None:
    with ServerProcess(short_dir, shm_dir / "a") as server, engine(server, 1) as one:
        one.register()
        check_saved(one, one, 1, list(range(8)))
        children = server.children()
        assert len(children) == 2
        assert server.terminate() == 0
        assert not any(map(is_alive, children))
        assert server.log() == ""
        assert not list((shm_dir / "a").glob("*"))


def test_a_namespace_of_big_pages_goes_in_many_pieces(server: ServerProcess) -> None:
    space = make_namespace(page_bytes=1 << 20)
    with DeviceEngine(server.url, server.side_path, 0, space, num_pages=24, seed=4) as one:
        one.pump_while_waiting()
        one.register()
        check_saved(one, one, 1, list(range(24)))
