"""A short run holds, without a lower tier or with one, and a planted fault is found."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.chaos.__main__ import main
from tests.wire.process import ROOT

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

NAME = re.compile(r"`([a-z_0-9]+)`")
MUST_BE_ZERO = (
    *("wrong_bytes", "failed_offers", "failed_requests", "engine_deaths", "hangs", "leaks"),
)


def chaos(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    path = tmp_path / "chaos.json"
    code = main(["--json", str(path), *arguments])
    document: dict[str, Any] = json.loads(path.read_text())
    return code, document


@pytest.mark.slow
@pytest.mark.parametrize("tiers", [(), ("--l2", "disk")], ids=["plain", "disk"])
def test_a_short_run_holds(tmp_path: Path, tiers: tuple[str, ...]) -> None:
    # Too short for its counts to be judged: runs of a minute or two are steps of .ci/run, which is
    # why this one is not part of make test.
    _, found = chaos(tmp_path, "--minutes", "0.4", "--seed", "11", "--rate", "25", *tiers)
    assert {name: found[name] for name in MUST_BE_ZERO} == dict.fromkeys(MUST_BE_ZERO, 0), found
    assert found["trouble_list"] == []
    assert found["engine_kills"] >= 2
    assert found["server_kills"] >= 1
    assert found["loads_verified"] > 50
    assert not found["wrong"]
    # The page names every figure as it is written.
    page = (ROOT / "docs" / "chaos.md").read_text(encoding="utf-8")
    table = page.partition("## Figures")[2].partition("## ")[0]
    named = {name for row in table.splitlines() for name in NAME.findall(row.split(" | ")[0])}
    assert len(named) > 20
    assert named <= set(found)


def test_wrong_bytes_in_the_arena_are_found(tmp_path: Path) -> None:
    # It ends once some are found.
    code, found = chaos(
        tmp_path, "--minutes", "2", "--seed", "12", "--rate", "25", "--plant", "flip"
    )
    assert code == 1
    assert found["wrong_bytes"] > 0
    assert any(reason.startswith("wrong_bytes") for reason in found["wrong"])
    assert any("bytes differ" in text for text in found["trouble_list"])


@pytest.mark.slow
def test_a_server_without_quarantine_is_found_out(tmp_path: Path) -> None:
    arguments = ("--minutes", "0.7", "--seed", "4", "--script", "restarts")
    code, found = chaos(tmp_path, *arguments, "--broken", "quarantine")
    assert code == 1
    assert found["failed_offers"] + found["wrong_bytes"] > 0, found
    assert "it was reused while a lease stood on it" in " ".join(found["trouble_list"])
    # The same with the guard in place, so that it is the guard that was found missing.
    _, found = chaos(tmp_path, *arguments)
    assert (found["failed_offers"], found["wrong_bytes"]) == (0, 0), found
    assert found["servers_killed_past_stopped_engines"] >= 4
