"""The load mode follows what the host's interface makes safe."""

from __future__ import annotations

import pytest

from adapter.loadmode import CHOICES, LoadMode, in_force, resolve
from adapter.trtllm_api import CONFORMANCE_FEATURES

SYNC, ASYNC, LAYERWISE = LoadMode.SYNC, LoadMode.ASYNC, LoadMode.LAYERWISE


@pytest.mark.parametrize(
    ("asked", "epoch", "is_adp", "has_layers", "mode", "says"),
    [
        ("auto", "E1", False, True, SYNC, ""),
        ("auto", "E2", False, True, SYNC, ""),
        ("auto", "E3", False, True, SYNC, ""),
        ("auto", "E3", True, True, SYNC, ""),
        ("auto", "E4", False, True, ASYNC, ""),
        ("sync", "E4", False, True, SYNC, ""),
        ("async", "E1", False, True, SYNC, "cancelled request"),
        ("async", "E2", False, True, SYNC, "cancelled request"),
        ("async", "E3", False, True, SYNC, "cancelled request"),
        ("async", "E3", True, True, ASYNC, ""),
        ("async", "E2", True, True, SYNC, "cancelled request"),
        ("async", "E4", False, False, ASYNC, ""),
        ("layerwise", "E1", False, True, LAYERWISE, ""),
        ("layerwise", "E4", True, True, LAYERWISE, ""),
        ("layerwise", "E4", False, False, SYNC, "each layer"),
    ],
)
def test_modes(
    asked: str, epoch: str, is_adp: bool, has_layers: bool, mode: LoadMode, says: str
) -> None:
    found, line = resolve(asked, CONFORMANCE_FEATURES[epoch], is_adp, has_layers)
    assert found is mode
    assert says in line
    assert bool(line) == bool(says)
    assert "\n" not in line


@pytest.mark.parametrize(
    ("asked", "epoch", "is_adp", "line"),
    [
        ("auto", "E3", True, "sync (auto: this host cannot cancel a load)"),
        ("auto", "E4", False, "async (auto: this host can cancel a load)"),
        ("async", "E3", True, "async (as asked)"),
        ("async", "E3", False, "sync (async was asked for, and is not safe here)"),
        ("layerwise", "E2", False, "layerwise (as asked)"),
    ],
)
def test_the_mode_in_force_is_told(asked: str, epoch: str, is_adp: bool, line: str) -> None:
    mode, _ = resolve(asked, CONFORMANCE_FEATURES[epoch], is_adp, True)
    assert in_force(asked, mode) == line


def test_every_mode_can_be_asked_for() -> None:
    assert set(CHOICES) == {"auto", *(mode.value for mode in LoadMode)}
