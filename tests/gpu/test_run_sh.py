"""``run.sh``: it is sound, says what it lacks, and docs/cuda.md names its steps and variables."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.gpu.step import STEPS
from tests.repository import tree
from tests.wire.process import ROOT

SCRIPT = "tests/gpu/run.sh"
PAGE = tree.text("docs/cuda.md")


def test_the_shell_reads_it() -> None:
    subprocess.run(["bash", "-n", SCRIPT], cwd=ROOT, check=True)


def test_without_a_gpu_it_says_so_before_anything_is_installed() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    done = subprocess.run(
        ["bash", SCRIPT],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "no NVIDIA GPU on this machine" in done.stderr


def rows(heading: str) -> list[str]:
    """First code words of a table."""
    found = re.search(rf"^\| {heading} \|.*?(?=^$)", PAGE, re.M | re.S)
    assert found is not None
    return re.findall(r"^\| `([^`=]+)", found[0], re.M)


def test_the_page_names_every_step_and_no_other() -> None:
    assert rows("step") == list(STEPS)


def test_the_page_names_every_variable_of_the_script() -> None:
    used = set(re.findall(r"\$\{([A-Z]+):-", tree.text(SCRIPT)))
    assert set(rows("variable")) == used


def test_all_steps_fit_into_six_minutes() -> None:
    from tests.gpu.__main__ import LIMIT_S

    limits = re.findall(r"timeout --kill-after=\d+ (\d+)", tree.text(SCRIPT))
    assert limits == ["360"]
    assert LIMIT_S < 360
