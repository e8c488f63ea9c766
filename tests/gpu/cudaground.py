"""A GPU as a ground: memory of each kind by the driver's calls, small kernels compiled when needed.

Calls CUDA directly where ``protocol.device`` has no need to: memory as TensorRT-LLM makes it,
kernels that are late or busy. Not run without a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from protocol.device import backends
from protocol.device.interface import DeviceError, MemoryKind

SIDE = 2048
"""Rows and columns of the matrices that are multiplied: 16 MiB each."""

_SOURCE = r"""
extern "C" __global__ void hold(unsigned long long nanoseconds) {
    unsigned long long begun, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begun < nanoseconds);
}

extern "C" __global__ void tick() {}

extern "C" __global__ void multiply(const float* a, const float* b, float* c, int side) {
    __shared__ float left[32][32], right[32][32];
    const int row = blockIdx.y * 32 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
    float sum = 0;
    for (int step = 0; step < side; step += 32) {
        left[threadIdx.y][threadIdx.x] = a[row * side + step + threadIdx.x];
        right[threadIdx.y][threadIdx.x] = b[(step + threadIdx.y) * side + column];
        __syncthreads();
        for (int at = 0; at < 32; ++at) sum += left[threadIdx.y][at] * right[at][threadIdx.x];
        __syncthreads();
    }
    c[row * side + column] = sum;
}
"""


def _checked(answer: tuple[Any, ...], what: str) -> Any:
    """What a call of ``cuda.bindings.driver`` returned behind its code.

    Raises:
        DeviceError: the code is none of success.
    """
    code, *rest = answer
    if int(code) != 0:
        raise DeviceError(getattr(code, "name", str(code)), what)
    return rest[0] if len(rest) == 1 else rest


class EngineStream:
    """A stream of the engine, with the attributes that a ``torch.cuda.Stream`` has."""

    def __init__(self, device: Any) -> None:
        import cupy

        self._device = device
        self.cupy = cupy.cuda.Stream(non_blocking=True)
        self.cuda_stream = int(self.cupy.ptr)

    def record_event(self) -> Any:
        """The present end of the stream; has ``query``."""
        return self._device.record(self._device.borrow_stream(self))


@dataclass
class VirtualMemory:
    """A reserved span mapped from physical pieces, as the second cache manager makes its pools."""

    address: int
    num_bytes: int
    pieces: list[tuple[int, int, Any]] = field(default_factory=list)

    @classmethod
    def make(cls, ordinal: int, num_bytes: int, piece_bytes: int = 32 << 20) -> VirtualMemory:
        """Reserves and maps it, one handle for each piece. Source: host contract §7, V2."""
        from cuda.bindings import driver

        wanted = driver.CUmemAllocationProp()
        wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.location.id = ordinal
        span = -(-num_bytes // piece_bytes) * piece_bytes
        address = int(_checked(driver.cuMemAddressReserve(span, 0, 0, 0), "reserving a span"))
        made = cls(address, span)
        access = driver.CUmemAccessDesc()
        access.location = wanted.location
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        for at in range(address, address + span, piece_bytes):
            handle = _checked(driver.cuMemCreate(piece_bytes, wanted, 0), "making a piece")
            _checked(driver.cuMemMap(at, piece_bytes, 0, handle, 0), "mapping a piece")
            made.pieces.append((at, piece_bytes, handle))
        _checked(driver.cuMemSetAccess(address, span, [access], 1), "opening the span")
        return made

    def close(self) -> None:
        """Unmaps and frees it."""
        from cuda.bindings import driver

        for at, num_bytes, handle in self.pieces:
            _checked(driver.cuMemUnmap(at, num_bytes), "unmapping a piece")
            _checked(driver.cuMemRelease(handle), "freeing a piece")
        self.pieces = []
        _checked(driver.cuMemAddressFree(self.address, self.num_bytes), "freeing a span")


@dataclass
class ManagedMemory:
    """Memory that moves between host and device, as ``use_uvm`` makes it."""

    address: int

    def close(self) -> None:
        """Frees it."""
        import cupy

        cupy.cuda.runtime.free(self.address)


class CudaGround:
    """See ``ground.Ground``; the first GPU that is visible."""

    name = "cuda"
    tensor_device = "cuda"

    def __init__(self) -> None:
        import cupy

        self.device: Any = backends.visible_devices()[0]
        self.device.bind()
        self._cupy = cupy
        self._module = cupy.RawModule(code=_SOURCE)
        self._matrices: tuple[Any, Any, Any] | None = None

    def stream(self) -> Any:
        return EngineStream(self.device)

    def allocate(self, kind: MemoryKind, num_bytes: int) -> Any:
        if kind is MemoryKind.VIRTUAL:
            return VirtualMemory.make(self._cupy.cuda.runtime.getDevice(), num_bytes)
        if kind is MemoryKind.MANAGED:
            return ManagedMemory(int(self._cupy.cuda.runtime.mallocManaged(num_bytes)))
        return self.device.allocate(num_bytes)

    def delay(self, stream: Any, delay_s: float) -> None:
        nanoseconds = self._cupy.uint64(int(delay_s * 1e9))
        with stream.cupy:
            self._module.get_function("hold")((1,), (1,), (nanoseconds,))

    def tick(self, stream: Any) -> None:
        with stream.cupy:
            self._module.get_function("tick")((1,), (1,), ())

    def multiply(self, stream: Any) -> None:
        with stream.cupy:
            if self._matrices is None:
                sides = [self._cupy.ones((SIDE, SIDE), dtype="float32") for _ in range(3)]
                self._matrices = (sides[0], sides[1], sides[2])
            grid = (SIDE // 32, SIDE // 32)
            arguments = (*self._matrices, self._cupy.int32(SIDE))
            self._module.get_function("multiply")(grid, (32, 32), arguments)
