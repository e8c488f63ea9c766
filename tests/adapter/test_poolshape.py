"""A V1 tensor becomes a description and pages; memory is shared, private, or out of reach."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adapter.pages import SharedPool
from adapter.poolshape import PoolShape, is_host_mapped, is_managed, memory_of, read_tensor
from adapter.refusals import UncachedError
from protocol import limits
from tests.adapter.gpu import simulated
from tests.adapter.test_identity import FakeTensor


def test_pool_shape_reads_a_tensor() -> None:
    array = np.zeros((10, 2, 2, 64), dtype=np.float32)
    shape = PoolShape.of(FakeTensor(array, SimpleNamespace(type="cuda")))
    assert shape.page_bytes == 2 * 2 * 64 * 4
    assert shape.num_bytes == array.nbytes
    assert (shape.dtype, shape.device, shape.address) == ("float32", "cuda", array.ctypes.data)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((4, 4), np.int8),
        np.zeros((4, 2, 2, 8), np.int8)[:, :, :, ::2],
        np.zeros((4, 2, 3, 8), np.int8),
        np.zeros((0, 2, 2, 8), np.int8),
        np.zeros((4, 2, 2, 8), np.int8)[::2],
        np.zeros((4, 2, 2, 8), np.int8)[:, ::-1],
        np.zeros((4, 2, 8, 2), np.int8).swapaxes(2, 3),
        np.zeros((2, limits.MAX_LAYERS + 1, 1, 1), np.int8),
        np.zeros((1, 4, 2, 2, 8), np.int8),
    ],
)
def test_pool_shape_refuses_other_layouts(array: Any) -> None:
    with pytest.raises(UncachedError):
        PoolShape.of(FakeTensor(array))


@pytest.mark.parametrize(("shape", "strides"), [((0, 2), (32, 16)), ((4, 0), (16, 16))])
def test_a_pool_without_pages_or_layers_is_refused(
    shape: tuple[int, int], strides: tuple[int, int]
) -> None:
    """With the strides that torch gives it."""
    empty: Any = SimpleNamespace(shape=(*shape, 2, 8), stride=lambda: (*strides, 8, 1))
    with pytest.raises(UncachedError, match="four dimensions"):
        PoolShape.of(empty)


def test_a_latents_page_is_half_as_large_and_named_otherwise() -> None:
    latent = PoolShape.of(FakeTensor(np.zeros((4, 2, 1, 8), np.float16)))
    assert latent.page_bytes == 2 * 8 * 2
    both = PoolShape.of(FakeTensor(np.zeros((4, 2, 2, 8), np.float16)))
    assert both.page_bytes == 2 * 2 * 8 * 2
    assert latent.as_cache().layout != both.as_cache().layout


def test_a_shared_pool_is_exported_where_it_lies() -> None:
    pool = SharedPool.create(4096 + 6 * 2 * 2 * 8)
    pool.view[:] = np.arange(pool.num_bytes, dtype=np.uint8)
    array = pool.view[4096:].reshape(6, 2, 2, 8)
    shape, memory = read_tensor(FakeTensor(array))
    (group,) = shape.groups
    assert (group.layers, group.num_pages, group.page_bytes) == ((0, 1), 6, 32)
    assert (shape.kv_factor, shape.block_elements, shape.dtype) == (2, 8, "uint8")
    assert memory.export is not None
    assert (memory.export.fd, memory.export.num_bytes) == (pool.fd, pool.num_bytes)
    ((region,),) = memory.export.regions
    assert (region.offset_bytes, region.size_bytes, region.stride_bytes) == (4096, 32, 32)
    (part,) = memory.groups[0].parts
    assert np.shares_memory(part.flat, array)
    assert memory.why_private == ""


def test_each_layer_has_its_part_of_a_page() -> None:
    array = np.zeros((6, 3, 2, 8), np.float16)
    _, memory = read_tensor(FakeTensor(array))
    pieces = [memory.layers[layer][0] for layer in range(3)]
    assert [(piece.start_byte, piece.num_bytes) for piece in pieces] == [
        (0, 32),
        (32, 32),
        (64, 32),
    ]
    assert memory.is_layered


def test_private_host_memory_is_reached_but_not_exported() -> None:
    array = np.zeros((6, 2, 2, 8), np.uint8)
    _, memory = read_tensor(FakeTensor(array))
    assert memory.export is None
    assert "shared_pool" in memory.why_private
    memory.groups[0].parts[0].host[32] = 7
    assert array[1, 0, 0, 0] == 7


def test_device_memory_has_its_device_and_no_bytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with simulated(monkeypatch, tmp_path) as gpu:
        address = gpu.malloc(3 * 4096)
        content = gpu.content(address + 4096, 6 * 64).view(np.uint8).reshape(6, 2, 2, 16)
        shape, memory = read_tensor(FakeTensor(content))
        assert shape.groups[0].page_bytes == 64
        (part,) = memory.groups[0].parts
        assert (part.flat, part.address, part.span_bytes) == (None, address + 4096, 6 * 64)
        assert (part.size_bytes, part.stride_bytes) == (64, 64)
        assert memory.device is not None
        assert memory.device.uuid == gpu.device.uuid
        assert (memory.export, memory.why_private) == (None, "")
        assert memory.is_layered


def test_a_shared_pool_is_host_memory_where_there_are_devices_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with simulated(monkeypatch, tmp_path):
        pool = SharedPool.create(6 * 64)
        _, memory = read_tensor(FakeTensor(pool.view.reshape(6, 2, 2, 16)))
        assert memory.device is None
        assert memory.export is not None


def test_device_memory_is_out_of_reach() -> None:
    array = np.zeros((6, 2, 2, 8), np.uint8)
    with pytest.raises(UncachedError, match="cannot reach cuda memory"):
        read_tensor(FakeTensor(array, SimpleNamespace(type="cuda")))


def test_host_mapped_means_all_of_it_and_writable() -> None:
    with mmap.mmap(-1, 8 * mmap.PAGESIZE) as mapping:
        address = np.frombuffer(mapping, np.uint8).ctypes.data
        assert is_host_mapped(address, 8 * mmap.PAGESIZE)
        assert is_host_mapped(address + 5, 10)
        # A reserved range without access, as CUDA keeps for device memory.
        libc = ctypes.CDLL(None, use_errno=True)
        third = ctypes.c_void_p(address + 2 * mmap.PAGESIZE)
        assert libc.mprotect(third, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        assert is_host_mapped(address, 2 * mmap.PAGESIZE)
        assert not is_host_mapped(address, 2 * mmap.PAGESIZE + 1)
        assert not is_host_mapped(address + 2 * mmap.PAGESIZE, 1)
        with pytest.raises(UncachedError, match="cannot reach device memory"):
            memory_of(address, 8 * mmap.PAGESIZE, "", mapping)
        assert libc.mprotect(third, ctypes.c_size_t(mmap.PAGESIZE), 3) == 0
    assert not is_host_mapped(4096, 10)


def test_a_drivers_mapping_is_no_host_memory(tmp_path: Path) -> None:
    listing = tmp_path / "maps"
    listing.write_text(
        "1000-3000 rw-p 00000000 00:00 0 \n3000-5000 rw-s 00000000 00:05 42 /dev/nvidia-uvm\n"
    )
    assert is_host_mapped(0x1000, 0x2000, str(listing))
    assert not is_host_mapped(0x1000, 0x2001, str(listing))
    assert not is_host_mapped(0x3000, 16, str(listing))
    assert not is_host_mapped(0x5000, 1, str(listing))


class Driver:
    """Answers as the CUDA driver does: status 0 and a value through a pointer."""

    def __init__(
        self, managed: int, ordinal: int = 0, concurrent: int = 1, status: int = 0
    ) -> None:
        self.pointer, self.device, self.status = {8: managed, 9: ordinal}, concurrent, status

    def cuPointerGetAttribute(self, result: Any, attribute: int, address: Any) -> int:  # noqa: N802
        result._obj.value = self.pointer[attribute]
        return self.status

    def cuDeviceGetAttribute(self, result: Any, attribute: int, ordinal: Any) -> int:  # noqa: N802
        assert attribute == 89
        result._obj.value = self.device
        return 0


@pytest.mark.parametrize(
    ("driver", "answer"),
    [
        (Driver(1), True),
        (Driver(0), False),
        (Driver(1, concurrent=0), False),
        (Driver(1, ordinal=-2), False),
        (Driver(1, status=1), False),
    ],
)
def test_managed_memory_is_what_the_driver_says(driver: Driver, answer: bool) -> None:
    assert is_managed(4096, lambda name: driver) is answer


def test_without_a_driver_nothing_is_managed() -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    assert not is_managed(4096, missing)
    assert not is_managed(4096, lambda name: object())


@pytest.mark.torch
def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (
        torch.bfloat16,
        torch.float16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int8,
    ):
        pool = torch.zeros(6, 3, 2, 8, dtype=dtype)
        shape, memory = read_tensor(pool)
        assert shape.dtype == str(dtype).removeprefix("torch.")
        assert shape.groups[0].page_bytes == 3 * 2 * 8 * pool.element_size()
        part = pool[2:5]
        shape, memory = read_tensor(part)
        assert shape.groups[0].num_pages == 3
        assert memory.groups[0].parts[0].address == part.data_ptr()
        for other in (
            pool[::2],
            pool[:, 1:],
            pool.transpose(1, 2),
            pool[:1].expand(6, 3, 2, 8),
            pool[..., :4],
            pool[0],
            pool[:0],
        ):
            with pytest.raises(UncachedError):
                read_tensor(other)
