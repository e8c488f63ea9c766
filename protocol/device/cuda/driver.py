"""The calls of the CUDA driver that kvkeep makes, each of them checked.

One layer of bindings for all: the driver's (``cuda.bindings.driver``), which an engine has with
TensorRT-LLM and which knows what the runtime's cannot say (where memory came from, how long it is).
The driver's primary context is the one that the runtime uses, torch's and cupy's with it. Source:
CUDA driver API, "Primary Context Management"; CUDA runtime API, "Interactions with the CUDA Driver
API".

The bindings let other threads of Python run during a call (tested), so that page-locking a GiB
holds up no hook.

Must not know: pages, batches, who waits for what. Any thread; what a call asks of the thread's
context says ``device``.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from protocol.device.cuda import codes
from protocol.device.interface import HANDLE_BYTES, UUID_BYTES, DeviceError

_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: does not wait for the legacy stream, nor that for it."""
_NO_TIMING = 2
"""CU_EVENT_DISABLE_TIMING: recording and waiting cost least."""
_LAZY_PEERS = 1
"""CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag there is."""
_PORTABLE = 1
"""CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTALLOC_PORTABLE: page-locked for all contexts."""
_MAPPED = 2
"""CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTALLOC_DEVICEMAP: kernels may read it."""
_READ_ONLY = 8
"""CU_MEMHOSTREGISTER_READ_ONLY; required for memory that is mapped read-only."""
_OVERLAP = 1
"""CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE: by the copy engines, beside the kernels."""
_NAME_BYTES = 128
_BUS_ID_BYTES = 32

_POINTER_FACTS = (
    "MEMORY_TYPE",
    "IS_MANAGED",
    "DEVICE_ORDINAL",
    "RANGE_START_ADDR",
    "RANGE_SIZE",
    "IS_LEGACY_CUDA_IPC_CAPABLE",
)


@dataclass(frozen=True)
class PointerFacts:
    """What the driver says of an address.

    Attributes:
        type: CUmemorytype: 1 host, 2 device, 0 when the driver does not know the address.
        is_managed: it moves between host and device.
        ordinal: of the device, as this process counts.
        base: first byte of its allocation or mapped range; 0 when not known.
        num_bytes: length of that.
        is_exportable: a handle can be made of it (``cuIpcGetMemHandle``).
    """

    type: int
    is_managed: bool
    ordinal: int
    base: int
    num_bytes: int
    is_exportable: bool


HOST_MEMORY = 1
DEVICE_MEMORY = 2


class Driver:
    """The driver's calls. Raise ``DeviceError`` for whatever the driver answers but success.

    Handles (contexts, streams, events) are the bindings' own objects and opaque here.

    Args:
        api: the module ``cuda.bindings.driver``.
    """

    def __init__(self, api: Any) -> None:
        self._api = api
        self._stream_order = self._attributes_of_a_copy()
        self._asked = tuple(
            getattr(api.CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{fact}")
            for fact in _POINTER_FACTS
        )

    def _call(self, name: str, *arguments: Any) -> Any:
        """Makes a call.

        Returns:
            what it gives besides its status: nothing, one thing, or a tuple of several.
        """
        status, *values = self._answer(name, *arguments)
        if status:
            raise self._error(int(status), name, getattr(status, "name", str(status)))
        if not values:
            return None
        return values[0] if len(values) == 1 else tuple(values)

    def _answer(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._api, name)(*arguments)
        except (RuntimeError, AttributeError) as error:
            # How the bindings say that the driver, or a release of theirs, has no such call.
            code = codes.NAMES[codes.NEEDS_NEWER_DRIVER]
            raise DeviceError(code, f"{name} ({error})") from error
        except (KeyError, ValueError) as error:  # a status that the bindings have no name for
            raise DeviceError("cudaErrorUnknown", f"{name} ({error!r})", True) from error

    def _error(self, code: int, name: str, driver_name: str) -> DeviceError:
        return DeviceError(codes.name_of(code, driver_name), name, code in codes.STICKY)

    # --- devices ---

    def begin(self) -> None:
        """Begins CUDA in this process; makes no context. Again is nothing."""
        self._call("cuInit", 0)

    def count(self) -> int:
        """Devices that this process sees."""
        return int(self._call("cuDeviceGetCount"))

    def device(self, ordinal: int) -> Any:
        """A device's handle."""
        return self._call("cuDeviceGet", ordinal)

    def uuid(self, device: Any) -> bytes:
        """16 bytes. Of a MIG instance its own, not its GPU's."""
        # Bindings of CUDA 12 have two; the later one is the only one left since.
        name = (
            "cuDeviceGetUuid_v2" if hasattr(self._api, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        )
        return bytes(self._call(name, device).bytes[:UUID_BYTES])

    def name(self, device: Any) -> str:
        """For people."""
        text: bytes = self._call("cuDeviceGetName", _NAME_BYTES, device)
        return text.split(b"\0", 1)[0].decode(errors="replace")

    def pci_bus_id(self, device: Any) -> str:
        """Where it is on the machine's buses, ``domain:bus:device.function``."""
        text: bytes = self._call("cuDeviceGetPCIBusId", _BUS_ID_BYTES, device)
        return text.split(b"\0", 1)[0].decode(errors="replace")

    def attribute(self, device: Any, name: str) -> int:
        """A property, by its name without ``CU_DEVICE_ATTRIBUTE_``."""
        which = getattr(self._api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._call("cuDeviceGetAttribute", which, device))

    def retain_context(self, device: Any) -> Any:
        """The device's primary context; made if nobody has it yet."""
        return self._call("cuDevicePrimaryCtxRetain", device)

    def set_context(self, context: Any) -> None:
        """Makes a context the calling thread's."""
        self._call("cuCtxSetCurrent", context)

    def enter(self, context: Any) -> None:
        """As ``set_context``, until ``leave``."""
        self._call("cuCtxPushCurrent", context)

    def leave(self) -> None:
        """Makes the context before ``enter`` the calling thread's again, or none."""
        self._call("cuCtxPopCurrent")

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the thread's device."""
        free, total = self._call("cuMemGetInfo")
        return int(free), int(total)

    # --- order ---

    def create_stream(self) -> Any:
        """A stream that does not wait for the legacy stream."""
        return self._call("cuStreamCreate", _NON_BLOCKING)

    def stream(self, handle: int) -> Any:
        """Somebody else's stream, by its number."""
        return self._api.CUstream(handle)

    def create_event(self) -> Any:
        """An event without times."""
        return self._call("cuEventCreate", _NO_TIMING)

    def record(self, event: Any, stream: Any) -> None:
        """Sets an event to the present end of a stream."""
        self._call("cuEventRecord", event, stream)

    def is_done(self, event: Any) -> bool:
        """Whether what an event was set to is over."""
        (status,) = self._answer("cuEventQuery", event)
        if status == codes.NOT_READY:
            return False
        if status:
            raise self._error(int(status), "cuEventQuery", getattr(status, "name", str(status)))
        return True

    def wait(self, stream: Any, event: Any) -> None:
        """Lets a stream's later work wait for what an event is set to now."""
        self._call("cuStreamWaitEvent", stream, event, 0)

    # --- memory ---

    def pointer(self, address: int) -> PointerFacts:
        """What the driver knows of an address; needs no context."""
        values = self._call("cuPointerGetAttributes", len(self._asked), list(self._asked), address)
        kind, is_managed, ordinal, base, num_bytes, is_exportable = (int(value) for value in values)
        return PointerFacts(kind, bool(is_managed), ordinal, base, num_bytes, bool(is_exportable))

    def range_of(self, address: int) -> tuple[int, int]:
        """First byte and length of the allocation that a device address lies in."""
        base, num_bytes = self._call("cuMemGetAddressRange", address)
        return int(base), int(num_bytes)

    def export(self, base: int) -> bytes:
        """The handle of an allocation, 64 bytes."""
        handle = self._call("cuIpcGetMemHandle", base)
        return ctypes.string_at(int(handle.getPtr()), HANDLE_BYTES)

    def open(self, handle: bytes) -> int:
        """Maps another process's allocation; its address here."""
        place = self._api.CUipcMemHandle()
        ctypes.memmove(int(place.getPtr()), handle, HANDLE_BYTES)
        return int(self._call("cuIpcOpenMemHandle", place, _LAZY_PEERS))

    def close(self, address: int) -> None:
        """Gives it back. May wait for the device."""
        self._call("cuIpcCloseMemHandle", address)

    def allocate(self, num_bytes: int) -> int:
        """Device memory, one allocation."""
        return int(self._call("cuMemAlloc", num_bytes))

    def free(self, address: int) -> None:
        """Ends it. Waits for the device."""
        self._call("cuMemFree", address)

    def lock(self, address: int, num_bytes: int, is_read_only: bool) -> None:
        """Page-locks host memory."""
        flags = _PORTABLE | _MAPPED | (_READ_ONLY if is_read_only else 0)
        self._call("cuMemHostRegister", address, num_bytes, flags)

    def unlock(self, address: int) -> None:
        """Ends that."""
        self._call("cuMemHostUnregister", address)

    def allocate_host(self, num_bytes: int) -> int:
        """Page-locked host memory."""
        return int(self._call("cuMemHostAlloc", num_bytes, _PORTABLE | _MAPPED))

    def free_host(self, address: int) -> None:
        """Ends it."""
        self._call("cuMemFreeHost", address)

    # --- copies ---

    def copy(self, target: int, source: int, num_bytes: int, stream: Any) -> None:
        """Queues one copy; the driver finds out from the addresses which way."""
        self._call("cuMemcpyAsync", target, source, num_bytes, stream)

    def copy_all(
        self, targets: Sequence[int], sources: Sequence[int], sizes: Sequence[int], stream: Any
    ) -> None:
        """Queues many copies by one call. Not for the legacy stream. Since CUDA 12.8."""
        if self._stream_order is None:
            code = codes.NAMES[codes.NEEDS_NEWER_DRIVER]
            raise DeviceError(code, "cuMemcpyBatchAsync (bindings before CUDA 12.8)")
        pointer = self._api.CUdeviceptr
        self._call(
            "cuMemcpyBatchAsync",
            [pointer(target) for target in targets],
            [pointer(source) for source in sources],
            sizes,
            len(sizes),
            [self._stream_order],
            [0],
            1,
            stream,
        )

    def _attributes_of_a_copy(self) -> Any:
        """For all copies of a batch: sources are read when the stream gets there, not before."""
        if not hasattr(self._api, "CUmemcpyAttributes"):
            return None
        attributes = self._api.CUmemcpyAttributes()
        order = self._api.CUmemcpySrcAccessOrder
        attributes.srcAccessOrder = order.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        attributes.flags = _OVERLAP
        return attributes

    # --- kernels ---

    def load(self, image: bytes, kernel: bytes) -> Any:
        """A kernel of a compiled image, in the thread's context. May wait for the device."""
        return self._call("cuModuleGetFunction", self._call("cuModuleLoadData", image), kernel)

    def launch(
        self, kernel: Any, num_blocks: int, num_threads: int, parameters: int, stream: Any
    ) -> None:
        """Queues a kernel.

        Args:
            kernel: as loaded.
            num_blocks: along x.
            num_threads: of a block, along x.
            parameters: address of an array with the address of each; read during the call.
            stream: any.
        """
        self._call(
            "cuLaunchKernel", kernel, num_blocks, 1, 1, num_threads, 1, 1, 0, stream, parameters, 0
        )


_loading = threading.Lock()


def load_driver() -> Driver:
    """The driver of this process, begun.

    Raises:
        DeviceError: there are no bindings, no driver or no device; the text says which.
    """
    with _loading:
        return _loaded()


@functools.cache
def _loaded() -> Driver:
    try:
        api = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        what = "CUDA: the package cuda-bindings cannot be imported (pip install cuda-bindings)"
        raise DeviceError("cudaErrorInitializationError", f"{what}: {error}") from error
    driver = Driver(api)
    try:
        driver.begin()
    except DeviceError as error:
        if error.code == codes.NAMES[codes.NEEDS_NEWER_DRIVER]:
            # Every driver has this call, so the bindings found none; they say it in many words.
            what = "CUDA: the NVIDIA driver's library libcuda.so.1 is not found"
            raise DeviceError("no driver", what) from error
        what = "CUDA: no NVIDIA driver that works, cuInit"
        raise DeviceError(error.code, what, error.is_sticky) from error
    return driver
