"""``kvkeep clear``: asks first, forgets, and looks afterwards."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from server.cli.clear import told
from tests.server.cli.cached import Cached
from tests.wire.process import ROOT


def chunks(holding: Cached) -> int:
    found = holding.told("inspect")["namespaces"]
    return sum(one["chunks"] for one in found)


def test_one_namespace_or_all_are_forgotten(holding: Cached) -> None:
    found = holding.told("clear", "--namespace", "test/model", "--yes")
    expected = {"cleared": 7, "chunks_after": 0, "tiers_pending": 0}
    assert found == {"fingerprint": holding.name, **expected}
    assert chunks(holding) == 0
    shown = holding.run("clear", "--all", "--yes")
    assert shown.exit_code == 0
    assert shown.output == "cleared 0 chunks; asked again: nothing is cached\n"
    refused = holding.run("clear", "--namespace", "0" * 32, "--yes")
    assert refused.exit_code == 1
    assert "UNKNOWN_NAMESPACE" in refused.output


def test_nothing_is_forgotten_by_a_slip(holding: Cached) -> None:
    for arguments, said in (
        (["--yes"], "either --namespace NAME or --all"),
        (["--yes", "--all", "--namespace", "x"], "either --namespace NAME or --all"),
        (["--all"], "--yes, since nobody can be asked here"),
        (["--all", "--json"], "--yes, since nobody can be asked here"),
        (["--namespace", "other", "--yes"], "expected one that is there"),
    ):
        refused = holding.run("clear", *arguments)
        assert refused.exit_code == 2, refused.output
        assert said in refused.output
        assert refused.output.count("\n") == 1
    assert chunks(holding) == 7


def answer(holding: Cached, text: bytes) -> tuple[int, str]:
    """The command on a terminal, with one answer to its question."""
    ours, theirs = pty.openpty()
    try:
        program = subprocess.Popen(
            [sys.executable, "-m", "server", "clear", "--all", "--server", holding.server.url],
            cwd=ROOT,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        os.write(ours, text)
        said, _ = program.communicate(timeout=30)
    finally:
        os.close(theirs)
        os.close(ours)
    return program.returncode, said


def test_on_a_terminal_it_asks(holding: Cached) -> None:
    code, said = answer(holding, b"\n")
    assert code == 130
    assert f"{holding.name}  test/model: 7 chunks" in said
    assert "Forget this, at " in said
    assert chunks(holding) == 7
    code, said = answer(holding, b"y\n")
    assert code == 0
    assert "cleared 7 chunks" in said
    assert chunks(holding) == 0


def test_what_is_not_over_yet_is_said() -> None:
    lines = told({"cleared": 3, "chunks_after": 2, "tiers_pending": 1}).splitlines()
    assert lines[0] == "cleared 3 chunks; asked again: 2 chunks, stored since"
    assert lines[1].startswith("1 tier has not forgotten yet")
