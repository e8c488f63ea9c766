"""Smaller slices and limits for some sequences, so that short ones reach what takes thousands.

A slice of two blocks ends in the middle of a chain of eight; a limit of three is reached. Knows
names of constants only. Runs in the fuzzer's process.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from types import ModuleType
from typing import Any

import server.core
from protocol import limits

SMALL: dict[str, int] = {
    "SLICE_BLOCKS": 2,
    "WALK_BLOCKS": 2,
    "PIN_SLOTS": 2,
    "SMALL_BLOCKS": 1,
    "RESERVE_BLOCKS": 2,
    "EVICT_BLOCKS": 2,
    "FREE_BLOCKS": 1,
    "SWEEP_SLOTS": 3,
    "MAX_STORES_PER_SESSION": 3,
    "MAX_LIVE_REQUESTS": 2,
    "MAX_CONNECTIONS_PER_TOKEN": 2,
    "MAX_OUTSTANDING_REQUESTS": 3,
    "MAX_SLOTS_PER_REPLY": 12,
    "MAX_PARTS": 3,
    "PIECE_PARTS": 4,
    "BEGIN_SHARDS": 1,
    "MAX_RUNS": 2,
    "RIDES": 2,
    "MAX_DROPS": 1,
    "MAX_OWED_KEYS": 3,
    "MAX_FAILURES": 2,
    "MAX_WAITING": 2,
}


def _modules() -> list[ModuleType]:
    names = [one.name for one in pkgutil.walk_packages(server.core.__path__, "server.core.")]
    for name in names:
        importlib.import_module(name)
    return [sys.modules[name] for name in names] + [limits]


class Tight:
    """Switches all of them at once."""

    def __init__(self) -> None:
        self._places: list[tuple[ModuleType, str, Any]] = [
            (module, name, getattr(module, name))
            for module in _modules()
            for name in SMALL
            if hasattr(module, name)
        ]
        self._is_on = False

    def switch(self, on: bool) -> None:
        """Uses the small ones, or those of the product."""
        if on == self._is_on:
            return
        self._is_on = on
        for module, name, usual in self._places:
            setattr(module, name, SMALL[name] if on else usual)
