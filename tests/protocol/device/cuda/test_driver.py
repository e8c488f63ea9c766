import ast
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from protocol.device.cuda import backend, driver
from protocol.device.cuda.driver import Driver, load_driver
from protocol.device.interface import DeviceError
from tests.protocol.device.cuda import pretended
from tests.protocol.device.cuda.calls import attributes_asked, calls_made, parameters_of


def test_each_call_is_one_of_the_bindings_with_so_many_arguments() -> None:
    pretended.must_have_bindings()
    from cuda.bindings import driver as api

    made = calls_made(Path(driver.__file__))
    assert len(made) >= 30
    for name, num_arguments in made:
        function = getattr(api, name)
        assert parameters_of(function.__doc__) == num_arguments, name


def test_flags_are_those_of_the_bindings() -> None:
    pretended.must_have_bindings()
    from cuda.bindings import driver as api

    assert api.CUstream_flags.CU_STREAM_NON_BLOCKING == driver._NON_BLOCKING
    assert api.CUevent_flags.CU_EVENT_DISABLE_TIMING == driver._NO_TIMING
    lazy = api.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    assert lazy == driver._LAZY_PEERS
    assert api.CU_MEMHOSTREGISTER_PORTABLE == api.CU_MEMHOSTALLOC_PORTABLE == driver._PORTABLE
    assert api.CU_MEMHOSTREGISTER_DEVICEMAP == api.CU_MEMHOSTALLOC_DEVICEMAP == driver._MAPPED
    assert api.CU_MEMHOSTREGISTER_READ_ONLY == driver._READ_ONLY
    overlap = api.CUmemcpyFlags.CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE
    assert overlap == driver._OVERLAP
    assert api.CUmemorytype.CU_MEMORYTYPE_HOST == driver.HOST_MEMORY
    assert api.CUmemorytype.CU_MEMORYTYPE_DEVICE == driver.DEVICE_MEMORY
    assert int(api.CUstream(api.CU_STREAM_LEGACY)) == 1


def test_properties_of_devices_are_known_to_the_bindings() -> None:
    pretended.must_have_bindings()
    from cuda.bindings import driver as api

    asked = attributes_asked(Path(backend.__file__))
    assert "READ_ONLY_HOST_REGISTER_SUPPORTED" in asked
    for name in asked:
        assert hasattr(api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), name


def test_sources_of_a_batch_are_read_in_the_streams_order() -> None:
    pretended.must_have_bindings()
    from cuda.bindings import driver as api

    attributes = Driver(api)._stream_order
    order = api.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    assert (attributes.srcAccessOrder, attributes.flags) == (order, 1)


def _few(**calls: object) -> Driver:
    """A driver of bindings before CUDA 12.8, with few calls."""
    facts = {f"CU_POINTER_ATTRIBUTE_{fact}": fact for fact in driver._POINTER_FACTS}
    return Driver(SimpleNamespace(CUpointer_attribute=SimpleNamespace(**facts), **calls))


def test_what_the_driver_or_the_bindings_lack_is_told_apart_from_failures() -> None:
    def missing(*arguments: object) -> None:
        raise RuntimeError('Function "cuStreamCreate" not found')

    for few in (_few(cuStreamCreate=missing), _few()):
        with pytest.raises(DeviceError, match="cuStreamCreate") as caught:
            few.create_stream()
        assert caught.value.code == "cudaErrorCallRequiresNewerDriver"
        assert not caught.value.is_sticky
    with pytest.raises(DeviceError) as caught:
        _few().copy_all([1], [2], [3], 5)
    assert caught.value.code == "cudaErrorCallRequiresNewerDriver"


def test_no_package_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    driver._loaded.cache_clear()
    with pytest.raises(DeviceError, match="cuda-bindings"):
        load_driver()


def test_no_call_goes_unchecked() -> None:
    """Only ``_answer`` touches the bindings' functions; only ``_call`` and a query use it."""
    tree = ast.parse(Path(driver.__file__).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr.startswith("cu")
            and node.attr[2].isupper()
        ):
            raise AssertionError(f"{node.attr} is called past the check")
