from pathlib import Path

import pytest

from protocol.device.numa import node_of


def machine(sysfs: Path, name: str, says: str) -> Path:
    folder = sysfs / "bus/pci/devices" / name
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(says)
    return sysfs


@pytest.mark.parametrize("written", ["0000:3b:00.0", "0000:3B:00.0", "00000000:3B:00.0"])
def test_a_device_is_found_however_its_place_is_written(tmp_path: Path, written: str) -> None:
    assert node_of(written, machine(tmp_path, "0000:3b:00.0", "1\n")) == 1


def test_large_domains_keep_their_digits(tmp_path: Path) -> None:
    assert node_of("00010008:01:00.0", machine(tmp_path, "10008:01:00.0", "0\n")) == 0


@pytest.mark.parametrize("says", ["-1\n", "", "near\n", "1024\n"])
def test_a_kernel_that_does_not_know_gives_none(tmp_path: Path, says: str) -> None:
    assert node_of("0000:3b:00.0", machine(tmp_path, "0000:3b:00.0", says)) is None


@pytest.mark.parametrize("place", ["0000:3c:00.0", "", "../../../../etc", "0000:3b:00.0/.."])
def test_other_places_give_none_and_name_no_other_file(tmp_path: Path, place: str) -> None:
    assert node_of(place, machine(tmp_path, "0000:3b:00.0", "1\n")) is None


def test_every_device_of_this_machine_has_an_answer() -> None:
    """Real sysfs: a number where the kernel says one, else none."""
    for device in Path("/sys/bus/pci/devices").glob("*"):
        said = int((device / "numa_node").read_text())
        assert node_of(device.name) == (said if said >= 0 else None)
