"""The CUDA device an engine works on, for threads of our own.

New threads begin on device 0, so a thread that touches the engine's events first says where they
are. A pool on a device names it; an engine whose pool is in host memory may use one all the same.
Where the engine made no use of CUDA, nothing is done: CUDA is never begun from here.

Must not know: what threads do. Captured in the thread that registers the pool, entered in each
thread of ours that touches events or memory of the device. Source: host contract rule 13.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from protocol.device.interface import Device


def capture_device(
    device: Device | None = None, modules: Mapping[str, Any] = sys.modules
) -> Callable[[], None]:
    """Notes the engine's device: the pool's, else the calling thread's CUDA device.

    Args:
        device: of the pool; None for host memory.
        modules: what is imported; torch is not imported for this.

    Returns:
        Makes that device the current one of the thread that calls it; does nothing without CUDA.
    """
    if device is not None:
        return device.bind
    cuda = getattr(modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return _stay
    number = int(cuda.current_device())

    def enter() -> None:
        cuda.set_device(number)

    return enter


def _stay() -> None:
    """Nothing to enter."""
