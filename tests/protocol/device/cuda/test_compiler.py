import itertools
import re
import sys
import threading
import time
from pathlib import Path

import pytest

from protocol.device.cuda import compiler
from protocol.device.cuda.compiler import compile_kernel
from protocol.device.cuda.kernel import _PARAMETERS
from protocol.device.interface import DeviceError
from tests.protocol.device.cuda import pretended
from tests.protocol.device.cuda.calls import calls_made, parameters_of


@pytest.fixture(scope="module", autouse=True)
def nvrtc() -> None:
    pretended.must_have_bindings()
    try:
        compile_kernel(90)
    except DeviceError as error:
        if "NVRTC (" not in str(error):
            raise
        pretended.must_have(f"NVRTC: {error}", is_there=False)


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_compiles_for_a_gpu(capability: int) -> None:
    image = compile_kernel(capability)
    assert image.startswith(b"\x7fELF")
    assert b"copy_pieces" in image


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_compiles_to_virtual_instructions(capability: int) -> None:
    text = compile_kernel(capability, is_virtual=True).decode()
    assert f".target sm_{capability}" in text
    assert ".visible .entry copy_pieces(" in text
    assert "bar.sync" not in text
    assert "shfl" not in text


def test_the_parameter_is_as_long_as_what_is_packed() -> None:
    text = compile_kernel(90, is_virtual=True).decode()
    found = re.search(r"\.param \.align 8 \.b8 copy_pieces_param_0\[(\d+)\]", text)
    assert found is not None
    assert int(found[1]) == _PARAMETERS.itemsize <= 4096


def test_a_gpu_newer_than_the_compiler_gets_virtual_instructions() -> None:
    assert b".visible .entry copy_pieces(" in compile_kernel(9999)


def test_a_gpu_older_than_the_compiler_has_no_kernel() -> None:
    with pytest.raises(DeviceError, match="no GPU of capability 20"):
        compile_kernel(20)


def test_a_refusal_has_the_compilers_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "source", lambda: "int wrong = none_such;")
    with pytest.raises(DeviceError, match=r"none_such.*undefined"):
        compile_kernel(90)


def test_no_package_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    with pytest.raises(DeviceError, match="no compiler"):
        compile_kernel(90)


def test_calls_are_the_bindings_own() -> None:
    from cuda.bindings import nvrtc as api

    made = calls_made(Path(compiler.__file__))
    assert len(made) > 3
    for name, num_arguments in made:
        assert parameters_of(getattr(api, name).__doc__) == num_arguments, name


def test_other_threads_run_meanwhile() -> None:
    ticks: list[float] = []
    end = threading.Event()

    def tick() -> None:
        while not end.wait(0.002):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.monotonic()
    compile_kernel(90)
    stop = time.monotonic()
    end.set()
    thread.join(10)
    seen = [begin, *(each for each in ticks if begin < each < stop), stop]
    longest = max(after - before for before, after in itertools.pairwise(seen))
    assert len(seen) > 5
    assert longest < max(0.7 * (stop - begin), 0.05)
