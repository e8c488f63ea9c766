"""Each break takes something away that is there; an unbroken server is left as it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.chaos.broken import BREAKS, _replace
from tests.wire.process import ROOT


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_server_still_launches(name: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.chaos.broken", name, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "--arena-dir" in ended.stdout


def test_what_is_not_there_cannot_be_broken() -> None:
    with pytest.raises(AttributeError):
        _replace(dict, "no_such_guard", lambda: None)
