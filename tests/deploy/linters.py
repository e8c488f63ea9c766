"""Linters and schemas that the tests of deployment files run: as programs, found beside Python.

Knows where a tool is and what a missing one means; nothing of the files. Runs in the pytest
process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository import tree


def tool(name: str) -> str:
    """The path of a program of the development tools; the test is skipped without it.

    In CI it may not be missing.
    """
    found = shutil.which(
        name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    if found is None:
        assert os.environ.get("CI") != "true", f"{name} is missing"
        pytest.skip(f"{name} is not installed: pip install -e '.[dev]'")
    return found


def complaints(name: str, *arguments: str | Path) -> str:
    """What a linter says; empty when it is content."""
    done = subprocess.run(
        [tool(name), *map(str, arguments)],
        cwd=tree.ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return f"{done.stdout}{done.stderr}" if done.returncode else ""
