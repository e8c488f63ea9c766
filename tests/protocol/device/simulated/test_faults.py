import os
import sys
import threading
import time
from pathlib import Path

import pytest

from protocol.device.interface import DeviceError
from protocol.device.simulated.faults import Fault, Faults, plant


def fails(faults: Faults, call: str, device: int = 0) -> bool:
    try:
        faults.meet(call, device)
    except DeviceError:
        return True
    return False


def test_the_nth_call_fails_as_planted(tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    plant(tmp_path, Fault("copy", code="cudaErrorIllegalAddress", after=2, times=1, is_sticky=True))
    assert [fails(faults, "copy") for _ in range(2)] == [False, False]
    assert not fails(faults, "open")
    with pytest.raises(DeviceError, match="cudaErrorIllegalAddress") as raised:
        faults.meet("copy", 0)
    assert raised.value.is_sticky
    assert not fails(faults, "copy")


@pytest.mark.parametrize(
    ("fault", "is_met"),
    [
        (Fault("*"), True),
        (Fault("open", device=1), True),
        (Fault("open", device=0), False),
        (Fault("open", pid=os.getpid()), True),
        (Fault("open", pid=1), False),
        (Fault("open", command=os.path.basename(sys.executable)), True),
        (Fault("open", command="server.copier.gpu"), False),
    ],
)
def test_a_fault_concerns_some_processes_and_devices(
    tmp_path: Path, fault: Fault, is_met: bool
) -> None:
    faults = Faults(tmp_path)
    plant(tmp_path, fault)
    assert fails(faults, "open", 1) is is_met


def test_a_fault_ends_when_taken_away_and_counts_anew_when_planted_again(tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    for _ in range(2):
        plant(tmp_path, Fault("copy", after=1))
        assert [fails(faults, "copy") for _ in range(2)] == [False, True]
        plant(tmp_path)
        assert not fails(faults, "copy")


def test_a_further_fault_leaves_the_count_of_the_first(tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    plant(tmp_path, Fault("copy", after=1))
    assert not fails(faults, "copy")
    plant(tmp_path, Fault("copy", after=1), Fault("open"))
    assert fails(faults, "copy")
    assert fails(faults, "open")


def test_faults_of_this_process_alone(tmp_path: Path) -> None:
    faults, other = Faults(tmp_path), Faults(tmp_path)
    faults.inject(Fault("pin"))
    assert fails(faults, "pin")
    assert not fails(other, "pin")
    faults.inject()
    assert not fails(faults, "pin")


def test_a_hang_ends_with_the_fault_and_lets_other_calls_through(tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    plant(tmp_path, Fault("open", code="", hang_s=60.0))
    hung = threading.Thread(target=faults.meet, args=("open", 0), daemon=True)
    hung.start()
    faults.meet("copy", 0)
    hung.join(0.1)
    assert hung.is_alive()
    plant(tmp_path)
    hung.join(10)
    assert not hung.is_alive()


def test_a_hang_may_hold_every_thread_of_the_process(tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    faults.inject(Fault("open", code="", hang_s=0.3, holds_gil=True))
    gaps, is_over = [0.0], threading.Event()

    def tick() -> None:
        last = time.monotonic()
        while not is_over.wait(0.005):
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    ticker = threading.Thread(target=tick)
    ticker.start()
    time.sleep(0.05)
    faults.meet("open", 0)
    time.sleep(0.05)
    is_over.set()
    ticker.join()
    assert max(gaps) >= 0.25
