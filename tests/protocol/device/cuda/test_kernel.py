import logging
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol.device.cuda import kernel as module
from protocol.device.cuda.kernel import PIECES, GatherKernel, pack
from protocol.device.cuda.order import CudaStream
from protocol.device.interface import Batch, DeviceError, batch_of
from tests.protocol.device.cuda import pretended
from tests.protocol.device.cuda.recording import Recorder

STREAM = CudaStream(5, bytes(16), False, None)
SIZES = st.one_of(st.integers(1, 70), st.integers(1, 9000), st.sampled_from([512, 2048, 4096]))


def aligned(num_bytes: int, seed: int) -> NDArray[np.uint8]:
    """Random bytes that begin at a multiple of 16."""
    whole = np.random.default_rng(seed).integers(0, 256, num_bytes + 16, dtype=np.uint8)
    return whole[-whole.ctypes.data % 16 :][:num_bytes]


@st.composite
def pieces(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Offsets (target, source) and sizes; targets apart, in any order."""
    drawn = draw(
        st.lists(
            st.tuples(SIZES, st.integers(0, 17), st.integers(0, 4000)), min_size=1, max_size=40
        )
    )
    align = draw(st.sampled_from([1, 2, 4, 8, 16]))
    placed, end = [], 0
    for size, gap, source in drawn:
        target = -(-(end + gap) // align) * align
        placed.append((target, source // align * align, size))
        end = target + size
    return draw(st.permutations(placed))


@given(pieces(), st.sampled_from([(1, 32), (1, 256), (3, 64), (25, 256)]))
def test_the_kernel_copies_what_numpy_copies(
    placed: list[tuple[int, int, int]], grid: tuple[int, int]
) -> None:
    length = max(target + size for target, _, size in placed) + 64
    target, source = aligned(length, 1), aligned(20000, 2)
    expected = target.copy()
    for to, start, size in placed:
        expected[to : to + size] = source[start : start + size]
    before = source.copy()
    bases = (target.ctypes.data, source.ctypes.data)
    batch = batch_of([(bases[0] + to, bases[1] + start, size) for to, start, size in placed])
    pretending = pretended.functions()
    for first in range(0, len(placed), PIECES):
        parameters, _ = pack(batch, first)
        pretending.pretend_run(parameters.ctypes.data, *grid)
    assert np.array_equal(target, expected), "also where nothing was to be copied"
    assert np.array_equal(source, before)


@given(st.integers(1, 3 * PIECES), st.integers(1, 30))
def test_launches_carry_all_pieces(num: int, size: int) -> None:
    target, source = aligned(num * size, 3), aligned(num * size, 4)
    order = np.random.default_rng(5).permutation(num)
    batch = Batch(
        target.ctypes.data + order * size, source.ctypes.data + order * size, np.full(num, size)
    )
    pretending = pretended.functions()
    carried = 0
    for first in range(0, num, PIECES):
        parameters, num_pieces = pack(batch, first)
        pretending.pretend_run(parameters.ctypes.data, -(-num_pieces * 32 // 256), 256)
        carried += num_pieces
    assert carried == num
    assert np.array_equal(target, source)


def test_the_parameter_is_the_kernels() -> None:
    pretending = pretended.functions()
    assert pretending.pretend_pieces() == PIECES
    assert pretending.pretend_parameter_bytes() == module._PARAMETERS.itemsize <= 4096


def test_each_piece_has_a_warp_of_its_own() -> None:
    recorder = Recorder()
    kernel = GatherKernel(recorder.as_driver(), 90, lambda: None, lambda capability: b"image")
    assert kernel.wait_until_made(10)
    recorder.calls.clear()
    places = np.arange(2 * PIECES + 9) * 100
    kernel.launch(Batch(places, places + (1 << 40), np.full(len(places), 64)), STREAM)
    assert recorder.calls == [("launch", "function", blocks, 256, 5) for blocks in (25, 25, 2)]


def test_it_is_made_in_the_background_once_when_asked_for() -> None:
    recorder = Recorder()
    gate, threads = threading.Event(), []

    def compile_(capability: int) -> bytes:
        threads.append(threading.current_thread())
        assert gate.wait(10)
        return b"image %d" % capability

    bound: list[str] = []
    kernel = GatherKernel(recorder.as_driver(), 103, lambda: bound.append("bound"), compile_)
    assert not kernel.is_ready()
    assert not threads, "asking whether it is there has nothing made"
    kernel.prepare()
    kernel.prepare()
    assert not kernel.is_ready()
    gate.set()
    assert kernel.wait_until_made(10)
    assert kernel.is_ready()
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()
    assert bound == ["bound"]
    assert recorder.calls == [("load", b"image 103", b"copy_pieces")]
    assert kernel.failure is None


def test_without_a_compiler_there_is_none_for_good(caplog: pytest.LogCaptureFixture) -> None:
    def compile_(capability: int) -> bytes:
        raise DeviceError("no compiler", "NVRTC")

    kernel = GatherKernel(Recorder().as_driver(), 90, lambda: None, compile_)
    with caplog.at_level(logging.WARNING):
        assert not kernel.wait_until_made(10)
    assert not kernel.is_ready()
    assert kernel.failure == "NVRTC: no compiler"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
