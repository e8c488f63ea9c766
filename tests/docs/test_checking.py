"""The part of docs/operations.md on checking an installation: command, options, exit codes."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.repository import tree
from tests.wire.process import ROOT

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PAGE = tree.text("docs/operations.md")
PART = PAGE[PAGE.index("## Checking an installation") : PAGE.index("## Measure a node")]
(COMMAND,) = re.findall(r"^```\npython (.*)\n```", PART, re.M)


def run(*further: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *COMMAND.split(), *further],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_options_are_the_described_ones() -> None:
    described = set(re.findall(r"`(--[a-z-]+)", PART))
    shown = run("--help").stdout
    assert set(re.findall(r"(--[a-z-]+)", shown)) == described | {"--help"}


@pytest.mark.parametrize(
    ("further", "code", "said"),
    [
        (["--rule", "§9.1"], 0, "leaves one token"),
        (
            [
                *("--rule", "§9.1", "--module", "tests.adapter.conformance.kit.breakers"),
                *("--scheduler-class", "GreedyScheduler", "--worker-class", "SoundWorker"),
                *("--server-url", "dict://checking"),
            ],
            1,
            "BROKEN",
        ),
        (["--module", "no.such"], 2, "no such connector"),
        (["--rule", "§99"], 2, "invalid choice"),
    ],
)
def test_it_exits_as_described(further: list[str], code: int, said: str) -> None:
    assert re.search(rf"^\| {code} \|", PART, re.M)
    done = run(*further)
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
