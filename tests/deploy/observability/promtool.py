"""Prometheus and its promtool for tests: found on PATH, or where ``.ci/run`` unpacked them.

Knows where the programs are and what a missing one means. Runs in the pytest process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.wire.process import ROOT

UNPACKED = ROOT / "build" / "prometheus" / "usr" / "bin"
RULES = ROOT / "deploy" / "prometheus" / "kvkeep.rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "kvkeep.json"


def program(name: str) -> str:
    """The path of ``prometheus`` or ``promtool``; the test is skipped without it.

    In CI it may not be missing.
    """
    found = shutil.which(name, path=f"{UNPACKED}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        assert os.environ.get("CI") != "true", f"{name} is missing: see the tools step of .ci/run"
        pytest.skip(f"no {name} on this machine")
    return found


def promtool(*arguments: str | Path, stdin: bytes = b"") -> str:
    """Runs promtool; what it says, when it is not content or has something to remark on."""
    done = subprocess.run(
        [program("promtool"), *map(str, arguments)],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
    )
    said = (done.stdout + done.stderr).decode()
    return f"exit code {done.returncode}: {said}" if done.returncode else ""
