import fcntl
import gc
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from adapter.pages import F_GET_SEALS, POOL_SEALS, SharedPool, find_pool


def test_a_pool_is_zeroed_writable_and_of_the_size_asked() -> None:
    pool = SharedPool.create(100_001)
    assert pool.num_bytes == pool.view.nbytes == os.fstat(pool.fd).st_size == 100_001
    assert not pool.view.any()
    pool.view[100_000] = 7
    assert os.pread(pool.fd, 1, 100_000) == b"\x07"
    assert pool.address == pool.view.ctypes.data


def test_a_pool_is_sealed() -> None:
    pool = SharedPool.create(mmap.PAGESIZE)
    assert fcntl.fcntl(pool.fd, F_GET_SEALS) == POOL_SEALS
    for size in (0, mmap.PAGESIZE * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(pool.fd, size)
    with pytest.raises(PermissionError):
        os.pwrite(pool.fd, b"x", 0)
    with pytest.raises(PermissionError):
        mmap.mmap(pool.fd, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def test_another_process_reads_live_bytes_through_the_descriptor() -> None:
    pool = SharedPool.create(mmap.PAGESIZE)
    pool.view[:5] = np.frombuffer(b"hello", np.uint8)
    code = (
        "import mmap, sys\n"
        f"m = mmap.mmap({pool.fd}, {mmap.PAGESIZE}, mmap.MAP_SHARED, mmap.PROT_READ)\n"
        "sys.stdout.buffer.write(m[:5])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], pass_fds=[pool.fd], stdout=-1, check=True)
    assert done.stdout == b"hello"


def test_a_pool_is_recognised_by_address() -> None:
    pool, other = SharedPool.create(8192), SharedPool.create(8192)
    inside = find_pool(pool.address + 4096, 4096)
    assert inside is not None
    assert (inside.address, inside.fd) == (pool.address, pool.fd)
    found = find_pool(other.address, 1)
    assert found is not None
    assert found.fd == other.fd
    assert find_pool(pool.address, 8193) is None
    assert find_pool(pool.address - 1, 2) is None
    assert find_pool(pool.address, 0) is None
    assert find_pool(np.zeros(10).ctypes.data, 10) is None


def test_a_pool_ends_with_its_last_view_and_is_then_not_found() -> None:
    pool = SharedPool.create(4096)
    address, fd, view = pool.address, pool.fd, pool.view
    pool.close()
    pool.close()
    with pytest.raises(ValueError, match="closed"):
        _ = pool.view
    assert find_pool(address, 4096) is not None
    view[0] = 1
    del view
    gc.collect()
    assert find_pool(address, 4096) is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_no_descriptor_leaks() -> None:
    def open_descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_descriptors()
    for _ in range(50):
        SharedPool.create(4096).close()
    gc.collect()
    assert open_descriptors() == before


def test_a_found_handle_keeps_the_pool() -> None:
    pool = SharedPool.create(4096)
    found = find_pool(pool.address, 4096)
    pool.close()
    del pool
    gc.collect()
    assert found is not None
    assert found.view.nbytes == 4096


def test_populating_backs_every_page() -> None:
    size = 64 * mmap.PAGESIZE
    lazy, ready = SharedPool.create(size), SharedPool.create(size, populate=True)
    assert os.fstat(lazy.fd).st_blocks == 0
    assert os.fstat(ready.fd).st_blocks * 512 >= size
    assert not ready.view.any()


@pytest.mark.parametrize("size", [0, -1])
def test_a_pool_without_bytes_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="positive"):
        SharedPool.create(size)


@pytest.mark.torch
class TestTensor:
    def test_a_tensor_owns_its_pool(self) -> None:
        torch = pytest.importorskip("torch")
        from adapter.pages import shared_pool

        tensor = shared_pool((3, 2, 2, 8), torch.float32)
        address, size = tensor.data_ptr(), tensor.numel() * 4
        assert tensor.shape == (3, 2, 2, 8)
        assert not tensor.any()
        pool = find_pool(address, size)
        assert pool is not None
        assert (pool.address, pool.num_bytes) == (address, size)
        tensor[2, 1, 1, 7] = 1.5
        assert np.frombuffer(os.pread(pool.fd, 4, size - 4), np.float32)[0] == 1.5
        last = tensor[2]
        del tensor, pool
        gc.collect()
        assert find_pool(address, size) is not None
        del last
        gc.collect()
        assert find_pool(address, size) is None

    @pytest.mark.parametrize("name", ["uint8", "int8", "float16", "bfloat16", "float8_e4m3fn"])
    def test_any_element_type(self, name: str) -> None:
        torch = pytest.importorskip("torch")
        from adapter.pages import shared_pool

        tensor = shared_pool([4, 6], getattr(torch, name))
        assert tensor.dtype == getattr(torch, name)
        assert tensor.shape == (4, 6)

    def test_torch_is_not_imported_before_it_is_needed(self, root: Path) -> None:
        code = "import sys, adapter.pages, adapter.trtllm_api; print('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], cwd=root, stdout=-1, check=True)
        assert done.stdout.strip() == b"False"
