"""``run.sh``: it is sound, says what it lacks, and docs/cuda.md names its steps and variables."""

from __future__ import annotations

import re
import subprocess
import sys
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


def run_simulated(tmp_path: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs it up to where it ends by itself."""
    return subprocess.run(
        ["bash", SCRIPT],
        cwd=ROOT,
        env={
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "DEVICE": "simulated",
            "ONLY": "facts",
            "VENV": str(tmp_path / "venv"),
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_too_little_shared_memory_is_said_before_anything_is_installed(tmp_path: Path) -> None:
    fake = tmp_path / "df"
    fake.write_text("#!/bin/sh\necho head; echo shm 64 0 64 0% /dev/shm\n")
    fake.chmod(0o755)
    done = run_simulated(tmp_path)
    assert done.returncode == 2
    assert "/dev/shm has 64 MiB free" in done.stderr
    assert "--shm-size" in done.stderr
    assert "--shm-size" in PAGE
    assert not (tmp_path / "venv").exists()


def test_what_could_not_be_installed_is_named_and_a_half_made_venv_replaced(tmp_path: Path) -> None:
    half = tmp_path / "venv" / "bin" / "python"
    half.parent.mkdir(parents=True)
    half.touch(0o755)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    bare = tmp_path / "bare"  # the interpreter of this venv without what is installed in it
    bare.symlink_to(Path(sys.executable).resolve())
    constraint = tmp_path / "constraint.txt"
    constraint.write_text("pyzmq==1.0\n")
    done = run_simulated(
        tmp_path, PYTHON=str(bare), WHEELS=str(wheels), PIP_CONSTRAINT=str(constraint)
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.search(r"could not be installed: .*pyzmq>=", done.stderr)
    assert f"WHEELS={wheels} has not all" in done.stderr
    assert half.stat().st_size > 0, "it was made anew"


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
    assert sum(STEPS.values()) <= LIMIT_S
