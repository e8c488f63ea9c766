"""Tries on a device what kvkeep will ask of it: ``python -m server.copier.probe WHAT``.

Purpose: ``doctor`` says what works here because it was done, not because it should. ``list`` names
the devices; ``share UUID`` makes an allocation, exports it, has a second process open it and read
it as a copier would, page-locks host memory as an engine would and copies out of it; ``open
UUID`` is that second process. Each answers one JSON object on stdout. Must not know: sockets,
arenas, engines. Runs in: child processes of the command line, since a device may wedge or spoil
its process; the parent ends them.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any, TypeVar

import numpy as np

from protocol.device import backends
from protocol.device.cuda import nvml
from protocol.device.interface import Device, DeviceError, Direction, Stream, batch_of

T = TypeVar("T")

COPY_BYTES = 1 << 20
ALLOCATION_BYTES = 4 << 20
PIN_BYTES = 64 << 20
"""More than the 8 MiB that RLIMIT_MEMLOCK leaves by default, so that a limit in force shows."""
WAIT_S = 20.0
OPEN_LIMIT_S = 40.0
UUID_VARIABLE = "CUDA_VISIBLE_DEVICES"


def finish(device: Device, stream: Stream) -> None:
    """Waits until all that is queued on a stream is done.

    Raises:
        DeviceError: it failed, or is not done after 20 s.
    """
    event = device.record(stream)
    end_s = time.monotonic() + WAIT_S
    while not event.query():
        if time.monotonic() > end_s:
            raise DeviceError("no end", f"copying, {WAIT_S:.0f} s")
        time.sleep(0.001)


def list_devices() -> dict[str, Any]:
    """What the driver shows to this process.

    Returns:
        ``devices``: uuid (hexadecimal), label, name, compute mode (None where not known), free and
        total bytes of each, and ``error``, why it cannot be used, or empty; ``error``: why there
        are none, or empty.
    """
    try:
        devices = [listed(device) for device in backends.visible_devices()]
    except DeviceError as error:
        return {"devices": [], "error": str(error)}
    return {"devices": devices, "error": "" if devices else "the driver shows no device"}


def listed(device: Device) -> dict[str, Any]:
    """One device as ``list_devices`` has it; one that refuses to be used hides no other."""
    failed, sizes = "", (0, 0)
    try:
        device.bind()
        memory = device.memory()
        sizes = (memory.free_bytes, memory.total_bytes)
    except DeviceError as error:
        failed = str(error)
    return {
        "uuid": device.uuid.hex(),
        "label": nvml.device_name(device.uuid),
        "name": device.name,
        "compute_mode": nvml.compute_mode(device.uuid),
        "free_bytes": sizes[0],
        "total_bytes": sizes[1],
        "error": failed,
    }


class Trial:
    """Steps that were tried one after the other, and what came of each.

    Attributes:
        results: step to what is known of it; ``error`` is empty where it worked.
    """

    def __init__(self) -> None:
        """Nothing was tried."""
        self.results: dict[str, dict[str, Any]] = {}

    def of(self, step: str, action: Callable[[], T], **known: Any) -> T | None:
        """Tries one step.

        Returns:
            What it returned, or None when it failed.
        """
        begun_s = time.monotonic()
        result, failed = None, ""
        try:
            result = action()
        except (DeviceError, OSError, ValueError, subprocess.SubprocessError) as error:
            failed = str(error) or type(error).__name__
        took_s = round(time.monotonic() - begun_s, 6)
        self.results[step] = {"error": failed, "took_s": took_s, **known}
        return result

    def skipped(self, *steps: str) -> None:
        """Steps that were not tried since an earlier one failed."""
        for step in steps:
            self.results[step] = {"error": "not tried", "took_s": 0.0}


class Sharing:
    """All trials on one device."""

    def __init__(self, device: Device, stack: ExitStack) -> None:
        """``stack`` frees what they make."""
        self._device = device
        self._stack = stack
        self._trial = Trial()
        self._stream = device.create_stream()
        self._pattern = np.frombuffer(os.urandom(COPY_BYTES), dtype=np.uint8)

    def run(self) -> dict[str, dict[str, Any]]:
        """Does what can be done.

        Returns:
            Step to its result.
        """
        address = self._trial.of("allocate", self._filled)
        if address is None:
            self._trial.skipped("export", "open", "pin", "load")
            return self._trial.results
        exported = self._trial.of("export", lambda: self._device.export(address))
        if exported is None:
            self._trial.skipped("open")
        else:
            offset_bytes = address - exported.base
            free_bytes = self._device.memory().free_bytes
            seen = self._trial.of("open", lambda: self._opened(exported.handle, offset_bytes))
            if seen is not None:
                cost_bytes = max(0, free_bytes - int(seen["free_bytes"]))
                self._trial.results["open"]["process_bytes"] = cost_bytes
        self._pin(address)
        return self._trial.results

    def _filled(self) -> int:
        """A device buffer with the pattern at its second MiB; its address there."""
        device = self._device
        memory = self._stack.enter_context(closing(device.allocate(ALLOCATION_BYTES)))
        buffer = self._stack.enter_context(closing(device.pinned_buffer(COPY_BYTES)))
        buffer.view[:] = self._pattern
        address = memory.address + COPY_BYTES
        batch = batch_of([(address, buffer.address, COPY_BYTES)])
        device.copy(self._stream, batch, Direction.TO_DEVICE)
        finish(device, self._stream)
        return address

    def _opened(self, handle: bytes, offset_bytes: int) -> dict[str, Any]:
        """Lets a second process read the pattern.

        Raises:
            ValueError: it could not, or read something else.
        """
        label = nvml.device_name(self._device.uuid)
        asked = {"handle": handle.hex(), "offset_bytes": offset_bytes}
        done = subprocess.run(
            [sys.executable, "-m", "server.copier.probe", "open", self._device.uuid.hex()],
            input=json.dumps(asked),
            env={**os.environ, UUID_VARIABLE: label},
            capture_output=True,
            text=True,
            timeout=OPEN_LIMIT_S,
            check=False,
        )
        try:
            seen: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            last = done.stderr.strip().splitlines()[-1:] or ["nothing was said"]
            raise ValueError(
                f"the second process ended with {done.returncode}: {last[0]}"
            ) from None
        if seen["error"]:
            raise ValueError(seen["error"])
        if seen["digest"] != hashlib.sha256(self._pattern.tobytes()).hexdigest():
            raise ValueError("the second process read other bytes than were written")
        return seen

    def _pin(self, address: int) -> None:
        """Page-locks memory mapped as extents are, read-only, and loads from it."""
        fd = os.memfd_create("kvkeep-probe", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, PIN_BYTES)
            os.pwrite(fd, self._pattern[::-1].tobytes(), 0)
            mapping = mmap.mmap(fd, PIN_BYTES, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(fd)
        view = np.frombuffer(mapping, dtype=np.uint8)
        source = view.ctypes.data
        view[::4096].max()  # as an engine does: populated first, page-locked then
        pinned = self._trial.of("pin", lambda: self._device.pin(source, PIN_BYTES))
        if pinned is None:
            self._trial.skipped("load")
            return
        with closing(pinned):
            self._trial.results["pin"] |= {"bytes": PIN_BYTES, "read_only": pinned.is_read_only}
            self._trial.of("load", lambda: self._loaded(source, address))

    def _loaded(self, source: int, address: int) -> None:
        """Copies from page-locked memory to the device and back.

        Raises:
            ValueError: other bytes came back.
        """
        device = self._device
        with closing(device.pinned_buffer(COPY_BYTES)) as buffer:
            there = batch_of([(address, source, COPY_BYTES)])
            back = batch_of([(buffer.address, address, COPY_BYTES)])
            device.copy(self._stream, there, Direction.TO_DEVICE)
            device.copy(self._stream, back, Direction.TO_HOST)
            finish(device, self._stream)
            if not np.array_equal(buffer.view, self._pattern[::-1]):
                raise ValueError("other bytes came back from the device")


def share(device_uuid: bytes) -> dict[str, Any]:
    """Tries everything on one device.

    Args:
        device_uuid: 16 bytes.

    Returns:
        ``steps``: step to its result; ``error``: why nothing could be tried, or empty.
    """
    try:
        device = backends.device_by_uuid(device_uuid)
        device.bind()
        with ExitStack() as stack:
            return {"error": "", "steps": Sharing(device, stack).run()}
    except DeviceError as error:
        return {"error": str(error), "steps": {}}


def open_and_read(device_uuid: bytes, handle: bytes, offset_bytes: int) -> dict[str, Any]:
    """Opens another process's allocation and reads 1 MiB of it, as a copier does.

    Returns:
        ``digest`` of the bytes (SHA-256), ``num_bytes`` of the allocation, ``free_bytes`` of the
        device meanwhile; ``error``: what failed, or empty.
    """
    try:
        device = backends.device_by_uuid(device_uuid)
        device.bind()
        stream = device.create_stream()
        with (
            closing(device.open(handle)) as opened,
            closing(device.pinned_buffer(COPY_BYTES)) as buffer,
        ):
            if offset_bytes < 0 or offset_bytes + COPY_BYTES > opened.num_bytes:
                return {"error": f"the allocation has {opened.num_bytes} bytes only"}
            source = opened.base + offset_bytes
            batch = batch_of([(buffer.address, source, COPY_BYTES)])
            device.copy(stream, batch, Direction.TO_HOST)
            finish(device, stream)
            return {
                "error": "",
                "digest": hashlib.sha256(buffer.view.tobytes()).hexdigest(),
                "num_bytes": opened.num_bytes,
                "free_bytes": device.memory().free_bytes,
            }
    except DeviceError as error:
        return {"error": str(error)}


def main(arguments: list[str]) -> None:
    """Answers one question.

    Args:
        arguments: ``list``, ``share UUID_HEX``, or ``open UUID_HEX`` with a JSON object on stdin.
    """
    if arguments == ["list"]:
        answer = list_devices()
    elif arguments[:1] == ["share"] and len(arguments) == 2:
        answer = share(bytes.fromhex(arguments[1]))
    elif arguments[:1] == ["open"] and len(arguments) == 2:
        asked = json.load(sys.stdin)
        handle = bytes.fromhex(asked["handle"])
        answer = open_and_read(bytes.fromhex(arguments[1]), handle, int(asked["offset_bytes"]))
    else:
        raise SystemExit("list, share UUID or open UUID")
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
