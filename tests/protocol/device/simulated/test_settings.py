from pathlib import Path

import pytest

from protocol.device.simulated import settings
from protocol.device.simulated.settings import Machine, from_environment, index_of, uuid_of


def test_nothing_without_a_folder() -> None:
    assert from_environment({}) is None
    assert from_environment({settings.FOLDER: ""}) is None


def test_defaults(tmp_path: Path) -> None:
    found = from_environment({settings.FOLDER: str(tmp_path)})
    assert found is not None
    assert (found.folder, found.seed) == (tmp_path, 0)
    assert found.delay_us == settings.DEFAULT_DELAY_US
    assert found.visible == (0, 1)
    assert found.machine == Machine()


def test_what_is_shared_comes_back_as_written(tmp_path: Path) -> None:
    machine = Machine(4, 1 << 30, 1 << 20, 0.25, False, ((0, 1), (1, 0)))
    settings.write_machine(tmp_path, machine)
    values = {settings.FOLDER: str(tmp_path), settings.SEED: "7", settings.DELAY_US: "0"}
    found = from_environment(values)
    assert found is not None
    assert found.machine == machine
    assert (found.seed, found.delay_us, found.visible) == (7, 0, (0, 1, 2, 3))


@pytest.mark.parametrize(
    ("value", "visible"),
    [
        ("", ()),
        ("1", (1,)),
        ("1,0", (1, 0)),
        ("0,9,1", (0,)),
        ("-1", ()),
        ("GPU-" + uuid_of(1).hex(), (1,)),
        (f"GPU-{uuid_of(1).hex()[:8]}-{uuid_of(1).hex()[8:]}", (1,)),
        ("GPU-" + "ab" * 16, ()),
        ("GPU-nonsense", ()),
    ],
)
def test_visible_devices_are_read_as_the_driver_does(
    tmp_path: Path, value: str, visible: tuple[int, ...]
) -> None:
    found = from_environment({settings.FOLDER: str(tmp_path), settings.VISIBLE: value})
    assert found is not None
    assert found.visible == visible


def test_nodes_of_the_machine_are_shared(tmp_path: Path) -> None:
    assert settings.read_machine(tmp_path).numa_nodes == ()
    settings.write_machine(tmp_path, settings.Machine(numa_nodes=(0, 1)))
    assert settings.read_machine(tmp_path).numa_nodes == (0, 1)


def test_names_of_devices() -> None:
    assert uuid_of(3) == b"SIMULATED-GPU-03"
    assert all(len(uuid_of(n)) == 16 and index_of(uuid_of(n)) == n for n in range(16))
    assert index_of(bytes(16)) is None
    assert index_of(b"SIMULATED-GPU-xx") is None
    assert index_of(b"SIMULATED-GPU-123") is None
