import threading

import numpy as np
import pytest

from protocol.device.cuda.locked import Locked
from protocol.device.cuda.memory import CudaOpened, Openings, lock
from protocol.device.interface import DeviceError
from tests.protocol.device.cuda.recording import Recorder

HANDLES = [bytes([number]) * 64 for number in range(3)]


def opened_once() -> CudaOpened:
    recorder = Recorder()
    return Openings(recorder.as_driver(), recorder.within, 0).open(HANDLES[0])


def test_one_mapping_serves_all_users() -> None:
    recorder = Recorder()
    openings = Openings(recorder.as_driver(), recorder.within, 0)
    users = [openings.open(HANDLES[0]) for _ in range(5)]
    assert recorder.names() == ["open", "range_of"]
    for user in users:
        assert "close" not in recorder.names()
        user.close()
        user.close()
    assert recorder.names() == [
        "open",
        "range_of",
        *["enter", "leave"] * 4,
        "enter",
        "close",
        "leave",
    ]
    openings.open(HANDLES[0])
    assert recorder.names().count("open") == 2


def test_the_length_is_the_drivers_from_the_opened_address_on() -> None:
    opened = opened_once()
    assert (opened.base, opened.num_bytes) == (1 << 40, (1 << 20) - 4096)


def test_what_has_no_known_length_does_not_stay_open() -> None:
    recorder = Recorder()
    recorder.failures["range_of"] = DeviceError("cudaErrorInvalidValue", "range")
    openings = Openings(recorder.as_driver(), recorder.within, 0)
    for _ in range(2):
        with pytest.raises(DeviceError, match="range"):
            openings.open(HANDLES[0])
    assert recorder.names() == ["open", "range_of", "close"] * 2


def test_a_close_that_hangs_holds_up_no_other_opening() -> None:
    recorder, gate = Recorder(), threading.Event()
    openings = Openings(recorder.as_driver(), recorder.within, 0)
    dead = openings.open(HANDLES[0])
    recorder.hooks["close"] = lambda: gate.wait(20)
    closer = threading.Thread(target=dead.close)
    closer.start()
    try:
        opened: list[CudaOpened] = []
        opener = threading.Thread(
            target=lambda: opened.extend(openings.open(handle) for handle in HANDLES)
        )
        opener.start()
        opener.join(10)
        assert len(opened) == 3
        assert closer.is_alive()
    finally:
        gate.set()
        closer.join(10)


def test_many_threads_open_and_close_without_losing_count() -> None:
    recorder = Recorder()
    openings = Openings(recorder.as_driver(), recorder.within, 0)

    def use() -> None:
        for turn in range(200):
            openings.open(HANDLES[turn % 3]).close()

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert recorder.names().count("open") == recorder.names().count("close")
    assert openings._by_handle == {}


def test_read_only_is_tried_first_where_promised() -> None:
    recorder = Recorder()
    assert lock(
        recorder.as_driver(), recorder.within, Locked(), 4096, 4096, has_read_only=True
    ).is_read_only
    assert not lock(
        recorder.as_driver(), recorder.within, Locked(), 8192, 4096, has_read_only=False
    ).is_read_only
    assert recorder.calls == [("lock", True), ("lock", False)]


@pytest.mark.parametrize(
    ("code", "falls_back"),
    [
        ("cudaErrorNotSupported", True),
        ("cudaErrorInvalidValue", True),
        ("cudaErrorNotPermitted", True),
        ("cudaErrorMemoryAllocation", False),
        ("cudaErrorHostMemoryAlreadyRegistered", False),
    ],
)
def test_only_a_refusal_of_read_only_is_tried_again(code: str, falls_back: bool) -> None:
    recorder = Recorder()
    recorder.failures["lock read-only"] = DeviceError(code, "lock")
    if falls_back:
        assert not lock(
            recorder.as_driver(), recorder.within, Locked(), 4096, 4096, has_read_only=True
        ).is_read_only
    else:
        with pytest.raises(DeviceError, match=code):
            lock(recorder.as_driver(), recorder.within, Locked(), 4096, 4096, has_read_only=True)
    assert len(recorder.calls) == 1 + falls_back


def test_giving_back_raises_nothing_and_happens_once(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    pinned = lock(recorder.as_driver(), recorder.within, Locked(), 4096, 8192, has_read_only=True)
    recorder.failures["unlock"] = DeviceError("cudaErrorIllegalAddress", "unlock", True)
    pinned.close()
    pinned.close()
    assert recorder.names() == ["lock", "enter", "unlock", "leave"]
    assert "8192 bytes was not given back" in caplog.text


def test_other_processes_memory_that_stays_open_is_told() -> None:
    recorder = Recorder()
    opened = Openings(recorder.as_driver(), recorder.within, 0).open(HANDLES[0])
    recorder.failures["close"] = DeviceError("cudaErrorUnknown", "close")
    with pytest.raises(DeviceError, match="cudaErrorUnknown"):
        opened.close()
    opened.close()
    assert recorder.names()[-3:] == ["enter", "close", "leave"]


def test_an_array_of_opened_memory_lies_where_it_is() -> None:
    pytest.importorskip("cupy")
    opened = opened_once()
    array = opened.as_array()
    assert array.data.ptr == opened.base
    assert (array.shape, array.dtype) == ((opened.num_bytes,), np.uint8)
    assert array[4096:8192].data.ptr == opened.base + 4096
    assert hasattr(array, "__dlpack__")
    opened.close()
    with pytest.raises(DeviceError, match="given back"):
        opened.as_array()


def test_without_cupy_there_is_no_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    opened = opened_once()
    with pytest.raises(DeviceError, match="cupy is not installed"):
        opened.as_array()


def test_what_is_locked_is_known_while_it_is() -> None:
    recorder, locked = Recorder(), Locked()
    driver = recorder.as_driver()
    pinned = lock(driver, recorder.within, locked, 4096, 8192, has_read_only=True)
    recorder.failures["lock"] = DeviceError("cudaErrorMemoryAllocation", "lock")
    with pytest.raises(DeviceError):
        lock(driver, recorder.within, locked, 1 << 20, 8192, has_read_only=True)
    assert locked.begins.tolist() == [4096]
    recorder.failures["unlock"] = DeviceError("cudaErrorUnknown", "unlock", True)
    pinned.close()
    pinned.close()
    assert locked.begins.tolist() == []
