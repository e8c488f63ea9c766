"""The gather kernel on one device: made in the background when asked for, then launched.

Making it takes a fraction of a second. Loading it may wait for all that the device has to do, and
hold what the driver's other calls need meanwhile, so it is asked for when a pool is registered,
before requests are served, and a thread of its own makes it. Until then, and where nobody asks,
copies go by the copy engine; where there is no compiler they do so for good: slower for small
pieces, and nothing else.

Must not know: pages, thresholds. ``is_ready`` and ``launch`` run on any thread that has bound the
device and never wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from protocol.device.cuda.compiler import KERNEL, compile_kernel
from protocol.device.cuda.driver import Driver
from protocol.device.cuda.order import CudaStream
from protocol.device.interface import Batch, DeviceError

PIECES = 200
"""As in ``gather.cu``: what fits into 4 KiB, all that a launch can carry on every GPU."""

_LANES = 32
_THREADS = 256
_PARAMETERS = np.dtype(
    [
        ("targets", np.uint64, PIECES),
        ("sources", np.uint64, PIECES),
        ("sizes", np.uint32, PIECES),
        ("count", np.uint32),
    ],
    align=True,
)
"""The kernel's one parameter, ``struct Pieces``."""

_log = logging.getLogger(__name__)


class GatherKernel:
    """The kernel of one device.

    Args:
        driver: of this process.
        capability: the device's compute capability, e.g. 90.
        bind: makes the device the calling thread's.
        compile_: makes the image for a capability.
    """

    def __init__(
        self,
        driver: Driver,
        capability: int,
        bind: Callable[[], None],
        compile_: Callable[[int], bytes] = compile_kernel,
    ) -> None:
        self._driver = driver
        self._capability = capability
        self._bind = bind
        self._compile = compile_
        self._lock = threading.Lock()
        self._maker: threading.Thread | None = None
        self._function: Any = None
        self._failure: str | None = None

    @property
    def failure(self) -> str | None:
        """Why there is none; None while there is, or nobody asked for it."""
        return self._failure

    def is_ready(self) -> bool:
        """Whether it can be launched; has nothing made."""
        return self._function is not None

    def prepare(self) -> None:
        """Has it made, once; returns at once. Binds nothing and makes no context here."""
        with self._lock:
            if self._maker is None:
                self._maker = threading.Thread(target=self._make, name="kvkeep-kernel", daemon=True)
                self._maker.start()

    def wait_until_made(self, timeout_s: float) -> bool:
        """Has it made and waits for that; for measurements, never for copies.

        Returns:
            whether it can be launched.
        """
        self.prepare()
        assert self._maker is not None
        self._maker.join(timeout_s)
        return self.is_ready()

    def launch(self, batch: Batch, stream: CudaStream) -> None:
        """Queues a batch's copies, ``PIECES`` to a launch.

        Args:
            batch: no size above 1 GiB.
            stream: any.
        """
        num_launches = -(-len(batch.sizes) // PIECES)
        for first in range(0, num_launches * PIECES, PIECES):
            parameters, num_pieces = pack(batch, first)
            # The driver reads the parameter through its address, and both during the call.
            address = np.array([parameters.ctypes.data], dtype=np.uint64)
            num_blocks = -(-num_pieces * _LANES // _THREADS)
            self._driver.launch(
                self._function, num_blocks, _THREADS, int(address.ctypes.data), stream.handle
            )

    def _make(self) -> None:
        try:
            image = self._compile(self._capability)
            self._bind()
            self._function = self._driver.load(image, KERNEL)
        except DeviceError as error:
            self._failure = str(error)
            _log.warning("no kernel for small pieces, the copy engine takes them: %s", error)


def pack(batch: Batch, first: int) -> tuple[np.ndarray[Any, np.dtype[np.void]], int]:
    """The kernel's parameter for the pieces from a number on.

    Returns:
        ``struct Pieces``, and how many pieces are in it.
    """
    some = slice(first, first + PIECES)
    num_pieces = len(batch.sizes[some])
    parameters = np.zeros(1, dtype=_PARAMETERS)
    parameters["targets"][0, :num_pieces] = batch.targets[some]
    parameters["sources"][0, :num_pieces] = batch.sources[some]
    parameters["sizes"][0, :num_pieces] = batch.sizes[some]
    parameters["count"][0] = num_pieces
    return parameters, num_pieces
