"""The driver's error numbers: how they are called, and which of them end all work of a process.

A driver call answers with a ``CUresult``. Its numbers are those of the runtime's ``cudaError_t``,
whose names people know and NVIDIA's documentation of this seam uses, so errors carry these.
Sources: CUDA runtime API, "Data types used by CUDA Runtime", ``cudaError_t``; CUDA driver API,
``CUresult``. The tests compare both tables with the bindings'.

Must not know: calls. Any thread.
"""

from __future__ import annotations

NAMES: dict[int, str] = {
    1: "cudaErrorInvalidValue",
    2: "cudaErrorMemoryAllocation",
    3: "cudaErrorInitializationError",
    4: "cudaErrorCudartUnloading",
    34: "cudaErrorStubLibrary",
    35: "cudaErrorInsufficientDriver",
    36: "cudaErrorCallRequiresNewerDriver",
    46: "cudaErrorDevicesUnavailable",
    100: "cudaErrorNoDevice",
    101: "cudaErrorInvalidDevice",
    200: "cudaErrorInvalidKernelImage",
    201: "cudaErrorDeviceUninitialized",
    208: "cudaErrorAlreadyMapped",
    209: "cudaErrorNoKernelImageForDevice",
    211: "cudaErrorNotMapped",
    214: "cudaErrorECCUncorrectable",
    217: "cudaErrorPeerAccessUnsupported",
    218: "cudaErrorInvalidPtx",
    220: "cudaErrorNvlinkUncorrectable",
    222: "cudaErrorUnsupportedPtxVersion",
    226: "cudaErrorContained",
    304: "cudaErrorOperatingSystem",
    400: "cudaErrorInvalidResourceHandle",
    500: "cudaErrorSymbolNotFound",
    600: "cudaErrorNotReady",
    700: "cudaErrorIllegalAddress",
    701: "cudaErrorLaunchOutOfResources",
    702: "cudaErrorLaunchTimeout",
    709: "cudaErrorContextIsDestroyed",
    710: "cudaErrorAssert",
    711: "cudaErrorTooManyPeers",
    712: "cudaErrorHostMemoryAlreadyRegistered",
    713: "cudaErrorHostMemoryNotRegistered",
    714: "cudaErrorHardwareStackError",
    715: "cudaErrorIllegalInstruction",
    716: "cudaErrorMisalignedAddress",
    717: "cudaErrorInvalidAddressSpace",
    718: "cudaErrorInvalidPc",
    719: "cudaErrorLaunchFailure",
    721: "cudaErrorTensorMemoryLeak",
    800: "cudaErrorNotPermitted",
    801: "cudaErrorNotSupported",
    802: "cudaErrorSystemNotReady",
    803: "cudaErrorSystemDriverMismatch",
    805: "cudaErrorMpsConnectionFailed",
    810: "cudaErrorMpsClientTerminated",
    901: "cudaErrorStreamCaptureInvalidated",
    906: "cudaErrorStreamCaptureImplicit",
    911: "cudaErrorExternalDevice",
    999: "cudaErrorUnknown",
}
"""Of what the calls made here may answer with."""

NOT_READY = 600
NEEDS_NEWER_DRIVER = 36

# "This leaves the process in an inconsistent state and any further CUDA work will return the same
# error. To continue using CUDA, the process must be terminated and relaunched."
_SAID_TO_END_THE_PROCESS = {226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911}
# Not said of these. Memory or links that failed, a context or a driver that is gone, and what the
# driver has no name for: a new process is the only cure that can be tried.
_TAKEN_TO_END_THE_PROCESS = {4, 214, 220, 709, 999}

STICKY = frozenset(_SAID_TO_END_THE_PROCESS | _TAKEN_TO_END_THE_PROCESS)


def name_of(code: int, driver_name: str) -> str:
    """An error's name.

    Args:
        code: as answered.
        driver_name: what the bindings call it, for a number that is not in the table.
    """
    return NAMES.get(code, driver_name)
