"""The CUDA device an engine works on, for threads of our own.

New threads begin on device 0, so a thread that touches the engine's events first says where they
are. Where the engine made no use of CUDA, nothing is done: CUDA is never begun from here.

Must not know: what threads do. Captured in the thread that registers the pool, entered in each
thread of ours that touches events or memory of the device. Source: host contract rule 13.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any


def capture_device(modules: Mapping[str, Any] = sys.modules) -> Callable[[], None]:
    """Notes the calling thread's CUDA device.

    Args:
        modules: what is imported; torch is not imported for this.

    Returns:
        Makes that device the current one of the thread that calls it; does nothing without CUDA.
    """
    cuda = getattr(modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return _stay
    device = int(cuda.current_device())

    def enter() -> None:
        cuda.set_device(device)

    return enter


def _stay() -> None:
    """Nothing to enter."""
