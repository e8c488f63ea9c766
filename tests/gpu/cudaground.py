"""A GPU as a ground: memory of each kind by the driver's calls, and small kernels of our own.

Calls CUDA directly where ``protocol.device`` has no need to: memory as TensorRT-LLM makes it,
kernels that are late or busy. Not run without a GPU; its test looks whether the bindings know each
name and whether the kernels compile.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.device import backends
from protocol.device.cuda.copies import MAX_PIECE_BYTES, Thresholds
from protocol.device.interface import DeviceBuffer, DeviceError, MemoryKind
from tests.gpu.ground import Way

SIDE = 2048
"""Rows and columns of the matrices that are multiplied: 16 MiB each."""
TILE = 32
_NON_BLOCKING = 1
_ATTACH_GLOBAL = 1
_LEGACY = 0
_KERNEL_LIMIT_S = 30.0

ATTRIBUTES = (
    "READ_ONLY_HOST_REGISTER_SUPPORTED",
    "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM",
    "HOST_REGISTER_SUPPORTED",
    "IPC_EVENT_SUPPORTED",
    "UNIFIED_ADDRESSING",
    "COMPUTE_MODE",
    "MULTI_GPU_BOARD",
    "ASYNC_ENGINE_COUNT",
    "COMPUTE_CAPABILITY_MAJOR",
    "COMPUTE_CAPABILITY_MINOR",
)
"""Names of device attributes, without ``CU_DEVICE_ATTRIBUTE_``."""

SOURCE = r"""
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


def checked(answer: tuple[Any, ...], what: str) -> Any:
    """What a call of the bindings returned behind its status.

    Raises:
        DeviceError: the status is none of success.
    """
    status, *rest = answer
    if int(status) != 0:
        raise DeviceError(getattr(status, "name", str(status)), what)
    return rest[0] if len(rest) == 1 else rest


def attributes() -> dict[str, int | str]:
    """Raw properties of the thread's device that decide how kvkeep works, and of the driver."""
    from cuda.bindings import driver

    device = checked(driver.cuCtxGetDevice(), "the thread's device")
    found: dict[str, int | str] = {
        "driver's CUDA version": int(checked(driver.cuDriverGetVersion(), "cuDriverGetVersion")),
        "bindings know cuMemcpyBatchAsync": str(hasattr(driver, "cuMemcpyBatchAsync")),
    }
    for name in ATTRIBUTES:
        which = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
        if which is None:
            found[name] = "unknown to the bindings"
            continue
        status, *value = driver.cuDeviceGetAttribute(which, device)
        found[name] = int(value[0]) if int(status) == 0 else status.name
    return found


def compile_source(capability: int) -> bytes:
    """The kernels as the GPU's own instructions.

    Args:
        capability: compute capability, e.g. 90 for 9.0.

    Raises:
        DeviceError: the compiler refuses; its words are in the text.
    """
    from cuda.bindings import nvrtc

    program = checked(
        nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"ground.cu", 0, [], []), "nvrtcCreateProgram"
    )
    options = [f"--gpu-architecture=sm_{capability}".encode()]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status) != 0:
        log = b" " * int(checked(nvrtc.nvrtcGetProgramLogSize(program), "log"))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise DeviceError(status.name, f"compiling: {log.decode(errors='replace')}")
    image = b" " * int(checked(nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize"))
    checked(nvrtc.nvrtcGetCUBIN(program, image), "nvrtcGetCUBIN")
    return image


class Kernels:
    """The kernels above, loaded into the context of the thread that makes this."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._driver = driver
        device = checked(driver.cuCtxGetDevice(), "the thread's device")
        image = compile_source(10 * self._number(device, "MAJOR") + self._number(device, "MINOR"))
        self._module = checked(driver.cuModuleLoadData(image), "loading kernels")
        self._functions = {
            name: checked(driver.cuModuleGetFunction(self._module, name.encode()), name)
            for name in ("hold", "tick", "multiply")
        }

    def _number(self, device: Any, which: str) -> int:
        name = f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{which}"
        attribute = getattr(self._driver.CUdevice_attribute, name)
        return int(checked(self._driver.cuDeviceGetAttribute(attribute, device), name))

    def launch(
        self, name: str, stream: int, grid: int, block: int, values: Sequence[Any], types: Any
    ) -> None:
        """Queues one; ``grid`` and ``block`` are the sides of squares."""
        shape = (grid, grid, 1, block, block, 1)
        arguments = (tuple(values), tuple(types)) if values else 0
        answer = self._driver.cuLaunchKernel(
            self._functions[name], *shape, 0, self._driver.CUstream(stream), arguments, 0
        )
        checked(answer, f"launching {name}")


class EngineStream:
    """A stream of the engine, with the attributes that a ``torch.cuda.Stream`` has."""

    def __init__(self, device: Any, cuda_stream: int | None = None) -> None:
        """``cuda_stream``: number of one that is there; None makes one."""
        from cuda.bindings import driver

        self._device = device
        if cuda_stream is None:
            self._stream = checked(driver.cuStreamCreate(_NON_BLOCKING), "making a stream")
            cuda_stream = int(self._stream)
        self.cuda_stream = cuda_stream

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
    def make(cls, num_bytes: int, piece_bytes: int = 32 << 20) -> VirtualMemory:
        """Reserves and maps it, one handle for each piece. Source: host contract §7, V2."""
        from cuda.bindings import driver

        wanted = driver.CUmemAllocationProp()
        wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.location.id = int(checked(driver.cuCtxGetDevice(), "the thread's device"))
        span = -(-num_bytes // piece_bytes) * piece_bytes
        address = int(checked(driver.cuMemAddressReserve(span, 0, 0, 0), "reserving a span"))
        made = cls(address, span)
        access = driver.CUmemAccessDesc()
        access.location.type = wanted.location.type
        access.location.id = wanted.location.id
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        for at in range(address, address + span, piece_bytes):
            handle = checked(driver.cuMemCreate(piece_bytes, wanted, 0), "making a piece")
            checked(driver.cuMemMap(at, piece_bytes, 0, handle, 0), "mapping a piece")
            made.pieces.append((at, piece_bytes, handle))
        checked(driver.cuMemSetAccess(address, span, [access], 1), "opening the span")
        return made

    def close(self) -> None:
        """Unmaps and frees it."""
        from cuda.bindings import driver

        for at, num_bytes, handle in self.pieces:
            checked(driver.cuMemUnmap(at, num_bytes), "unmapping a piece")
            checked(driver.cuMemRelease(handle), "freeing a piece")
        self.pieces = []
        checked(driver.cuMemAddressFree(self.address, self.num_bytes), "freeing a span")


@dataclass
class ManagedMemory:
    """Memory that moves between host and device, as ``use_uvm`` makes it."""

    address: int

    @classmethod
    def make(cls, num_bytes: int) -> ManagedMemory:
        """Allocates it."""
        from cuda.bindings import driver

        answer = driver.cuMemAllocManaged(num_bytes, _ATTACH_GLOBAL)
        return cls(int(checked(answer, "managed memory")))

    def close(self) -> None:
        """Frees it."""
        from cuda.bindings import driver

        checked(driver.cuMemFree(self.address), "freeing managed memory")


class CudaGround:
    """See ``ground.Ground``; the first GPU that is visible."""

    name = "cuda"
    tensor_device = "cuda"

    def __init__(self) -> None:
        self.device: Any = backends.visible_devices()[0]
        self.device.bind()
        self._kernels = Kernels()
        self._matrices: list[DeviceBuffer] = []

    def attributes(self) -> dict[str, int | str]:
        return attributes()

    def main_stream(self) -> Any:
        return EngineStream(self.device, _LEGACY)

    def stream(self) -> Any:
        return EngineStream(self.device)

    def synchronize(self) -> None:
        from cuda.bindings import driver

        checked(driver.cuCtxSynchronize(), "waiting for everything")

    def by(self, way: Way | None) -> None:
        if way is Way.KERNEL and not self.device.kernel.wait_until_made(_KERNEL_LIMIT_S):
            raise DeviceError("no kernel", str(self.device.kernel.failure))
        chosen = {
            None: Thresholds(),
            Way.ENGINE: Thresholds(kernel_bytes=0),
            Way.KERNEL: Thresholds(kernel_pieces=1, kernel_bytes=MAX_PIECE_BYTES),
        }
        self.device.copies.thresholds = chosen[way]

    def allocate(self, kind: MemoryKind, num_bytes: int) -> Any:
        if kind is MemoryKind.VIRTUAL:
            return VirtualMemory.make(num_bytes)
        if kind is MemoryKind.MANAGED:
            return ManagedMemory.make(num_bytes)
        return self.device.allocate(num_bytes)

    def delay(self, stream: Any, delay_s: float) -> None:
        values, types = (int(delay_s * 1e9),), (ctypes.c_uint64,)
        self._kernels.launch("hold", stream.cuda_stream, 1, 1, values, types)

    def tick(self, stream: Any) -> None:
        self._kernels.launch("tick", stream.cuda_stream, 1, 1, (), ())

    def multiply(self, stream: Any) -> None:
        if not self._matrices:
            self._matrices = [self.device.allocate(SIDE * SIDE * 4) for _ in range(3)]
        values = (*(matrix.address for matrix in self._matrices), SIDE)
        types = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int)
        self._kernels.launch("multiply", stream.cuda_stream, SIDE // TILE, TILE, values, types)
