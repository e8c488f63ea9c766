"""Compiles the gather kernel at run time, with NVIDIA's own compiler library (NVRTC).

Needs no GPU and no toolkit. For the GPU's own instructions where the library knows them; else for
the newest virtual instructions that it knows and the GPU has, which the driver then translates.

Must not know: devices, contexts. Takes a fraction of a second: never on an engine's thread.
"""

from __future__ import annotations

import importlib
import importlib.resources
from typing import Any

from protocol.device.interface import DeviceError

KERNEL = b"copy_pieces"


def source() -> str:
    """The kernel's text."""
    folder = importlib.resources.files("protocol.device.cuda") / "data"
    return (folder / "gather.cu").read_text(encoding="utf-8")


def compile_kernel(capability: int, is_virtual: bool = False) -> bytes:
    """The kernel for a GPU.

    Args:
        capability: the GPU's compute capability, e.g. 90 for 9.0.
        is_virtual: virtual instructions (PTX) even where its own are known.

    Returns:
        an image as ``cuModuleLoadData`` takes it.

    Raises:
        DeviceError: there is no compiler, or it refuses; the text has its words.
    """
    try:
        return _Compiler(importlib.import_module("cuda.bindings.nvrtc")).run(capability, is_virtual)
    except (ImportError, RuntimeError) as error:  # no package; no library
        raise DeviceError("no compiler", f"NVRTC ({error})") from error


class _Compiler:
    """NVRTC's calls, checked."""

    def __init__(self, api: Any) -> None:
        self._api = api

    def run(self, capability: int, is_virtual: bool) -> bytes:
        (archs,) = self._call("nvrtcGetSupportedArchs")
        known = [int(each) for each in archs]
        if capability in known and not is_virtual:
            return self._compile(f"sm_{capability}", "CUBIN")
        older = [each for each in known if each <= capability]
        if not older:
            raise DeviceError("no compiler", f"NVRTC knows no GPU of capability {capability}")
        return self._compile(f"compute_{max(older)}", "PTX")

    def _compile(self, target: str, kind: str) -> bytes:
        (program,) = self._call("nvrtcCreateProgram", source().encode(), b"gather.cu", 0, [], [])
        try:
            options = [f"--gpu-architecture={target}".encode(), b"--std=c++17"]
            try:
                self._call("nvrtcCompileProgram", program, len(options), options)
            except DeviceError as error:
                log = self._text("nvrtcGetProgramLog", program)
                raise DeviceError(error.code, f"gather.cu for {target}: {log.decode()}") from error
            return self._text(f"nvrtcGet{kind}", program)
        finally:
            self._call("nvrtcDestroyProgram", program)

    def _text(self, name: str, program: Any) -> bytes:
        (length,) = self._call(f"{name}Size", program)
        text = b"\0" * int(length)  # the bindings write into it
        self._call(name, program, text)
        return text

    def _call(self, name: str, *arguments: Any) -> Any:
        status, *values = getattr(self._api, name)(*arguments)
        if status:
            raise DeviceError(status.name, name)
        return values
