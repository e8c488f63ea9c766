"""Faults inside a real copier, at the place and moment that a test names.

A server started with this folder on ``PYTHONPATH`` and ``KVT_COPIER`` set to a folder runs
copiers that look there at each command. A file ``<command>.<when>`` is a fault: it is removed, and
what it says happens: a signal that the copier sends itself, a sleep in seconds, or ``LINGER``: it
stops and outlives the server, as one that hangs in the kernel does. ``when`` is
``before``, ``mid`` (half of a copy's parts are copied; other commands are done and not answered)
or ``after``. A file ``copy.pace`` stays: seconds to sleep after each part of a copy. Knows the
copier's ``Mappings``; runs in the copier process before anything else of it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
COMMANDS = ("map_pool", "map_extent", "unmap_pool", "unmap_extent", "copy", "populate_step")


def _strike(folder: Path, command: str, when: str) -> None:
    path = folder / f"{command}.{when}"
    try:
        action = path.read_text(encoding="ascii")
        path.unlink()
    except FileNotFoundError:
        return
    if action == "LINGER":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)
        action = "SIGSTOP"
    if action.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[action])
    else:
        time.sleep(float(action))


def _pace_s(folder: Path) -> float:
    try:
        return float((folder / "copy.pace").read_text(encoding="ascii"))
    except FileNotFoundError:
        return 0.0


def _wrapped(original: Callable[..., Any], folder: Path, command: str) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        _strike(folder, command, "before")
        if command == "copy":
            _copy_slowly(original, folder, *arguments)
        else:
            original(*arguments)
            _strike(folder, command, "mid")
        _strike(folder, command, "after")

    return run


def _copy_slowly(
    original: Callable[..., Any], folder: Path, own: Any, pool: int, extent: int, parts: Any
) -> None:
    num_parts, first, struck = parts.shape[1], 0, False
    while first < num_parts:
        pace_s = _pace_s(folder)
        step = 1 if pace_s else max(1, num_parts // 2)
        if first >= num_parts // 2 and not struck:
            struck = True
            _strike(folder, "copy", "mid")
        original(own, pool, extent, parts[:, first : first + step])
        time.sleep(pace_s)
        first += step


def install(folder: Path) -> None:
    """Wraps every command of the copier."""
    from server.copier.mappings import Mappings

    for command in COMMANDS:
        setattr(Mappings, command, _wrapped(getattr(Mappings, command), folder, command))


def hurry(commit_s: float) -> None:
    """Has the server wait less for a COMMIT than any setting allows."""
    from functools import partial

    import server.app

    # Not a name that others may import from there, hence not by its name.
    original = vars(server.app)["CoreConfig"]
    setattr(server.app, "CoreConfig", partial(original, commit_timeout_s=commit_s))  # noqa: B010


if sys.orig_argv[1:4] == ["-m", "server", "launch"] and "KVT_COMMIT_S" in os.environ:
    hurry(float(os.environ["KVT_COMMIT_S"]))
if "server.copier.host" in sys.orig_argv and "KVT_COPIER" in os.environ:
    install(Path(os.environ["KVT_COPIER"]))
