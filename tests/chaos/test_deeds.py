"""Sockets are hidden and shown without harm to the next server's; players are hit in turn."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.chaos.deeds import Deeds, _hide, _show, _Tries
from tests.chaos.script import SCRIPTS, with_tiers

pytestmark = pytest.mark.torch


def test_what_was_hidden_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert not _hide(str(path))
    path.write_text("old")
    assert _hide(str(path))
    assert not path.exists()
    _show(str(path))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_next_servers_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("old")
    assert _hide(str(path))
    path.write_text("new")
    _show(str(path))
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_players_are_tried_in_turn_until_the_run_is_over() -> None:
    over = threading.Event()
    players: Any = ["a", "b", "c"]
    seen: list[Any] = []
    for player in _Tries(players, 1, over):
        seen.append(player)
        if len(seen) == 4:
            over.set()
    assert seen == ["c", "a", "b", "c"]


def test_every_kind_of_event_is_a_deed() -> None:
    for script in SCRIPTS.values():
        for kind in with_tiers(script).rates:
            assert callable(getattr(Deeds, kind)), kind
