"""Logits of the reference run: written once, compared bit for bit afterwards.

Must not know: engines. Runs in an engine's process, on its main thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch


def write(path: Path, logits: Sequence[Any]) -> None:
    """Keep one request's logits.

    Args:
        path: File to write.
        logits: ``float32[vocab]`` per generated token.
    """
    np.save(path, torch.stack(list(logits)).numpy(), allow_pickle=False)


def equal(path: Path, logits: Sequence[Any]) -> bool:
    """Compare with what was kept: every token, every bit, no tolerance.

    Args:
        path: File that ``write`` wrote.
        logits: ``float32[vocab]`` per generated token.

    Returns:
        Whether there are as many and all are equal; a NaN equals nothing.
    """
    kept = torch.from_numpy(np.load(path, allow_pickle=False))
    return bool(torch.equal(kept, torch.stack(list(logits))))
