"""The torture sees mistakes of order: engines in which one is planted, and one without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.adapter.enginerig import launched
from tests.gpu.ground import Ground
from tests.gpu.rig import PoolKind
from tests.gpu.torture import TortureRig, play

NUM_REQUESTS = 40
SEEDS = range(5)


class Done:
    """A point that counts as reached."""

    def query(self) -> bool:
        return True


class Early:
    """A stream whose points are reached before its work is."""

    def __init__(self, stream: Any) -> None:
        self.cuda_stream = stream.cuda_stream

    def record_event(self) -> Done:
        return Done()


class Elsewhere:
    """Points of the engine's stream, but what is queued goes to another one."""

    def __init__(self, stream: Any, other: Any) -> None:
        self._stream, self._other = stream, other
        self.cuda_stream = other.cuda_stream

    def record_event(self) -> Any:
        return self._stream.record_event()


class SavesEarly(TortureRig):
    """Saves pages before the work that fills them is done."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.stream = Early(self.main)  # type: ignore[assignment]


class LoadsElsewhere(TortureRig):
    """Loads without regard to what is queued on the engine's stream."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.stream = Elsewhere(self.main, self.ground.stream())  # type: ignore[assignment]


def wrong_pages(ground: Ground, folder: Path, seed: int, make: type[TortureRig]) -> int:
    with launched("--l1-size", "64M") as server:
        counts = play(ground, folder / f"m{seed}", server.url, PoolKind(), seed, NUM_REQUESTS, make)
    assert counts["pages_compared"] > 0
    return counts["wrong_pages"]


@pytest.mark.parametrize("make", [SavesEarly, LoadsElsewhere])
def test_a_planted_mistake_is_seen(
    simulated: Ground, tmp_path: Path, make: type[TortureRig]
) -> None:
    assert any(wrong_pages(simulated, tmp_path, seed, make) for seed in SEEDS)


def test_without_one_every_byte_is_right(simulated: Ground, tmp_path: Path) -> None:
    assert wrong_pages(simulated, tmp_path, 1, TortureRig) == 0
