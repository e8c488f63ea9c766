"""The Makefile leaves an environment alone that belongs to another tree."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.repository import tree


def test_a_linked_environment_is_not_made_anew(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(tree.text("Makefile"))
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "theirs").mkdir()
    (tmp_path / ".venv").symlink_to(tmp_path / "theirs")
    make = shutil.which("make")
    assert make is not None
    done = subprocess.run(
        [make, "setup"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert f"make: .venv is a link to {tmp_path / 'theirs'}" in done.stderr
    assert not list((tmp_path / "theirs").iterdir())
    (tmp_path / "theirs" / ".kvkeep-setup").touch()
    done = subprocess.run(
        [make, "setup"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, "one that is up to date is used"
