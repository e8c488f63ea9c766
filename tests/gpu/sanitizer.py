"""Step ``sanitizer``: the gather kernel, under ``compute-sanitizer`` where that is installed.

That tool comes with the CUDA toolkit; without it the bytes are compared all the same.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

from tests.gpu.ground import Ground
from tests.slow.figure import Figure
from tests.wire.process import ROOT

TOOL = "memcheck"
"""racecheck looks at shared memory, of which the kernel has none."""
FOUND_EXIT = 86
PLAIN_LIMIT_S, TOOL_LIMIT_S = 8.0, 20.0
"""Of the two runs, within the step's time."""


def sanitizer() -> str | None:
    """Where the tool is."""
    return shutil.which("compute-sanitizer", path="/usr/local/cuda/bin") or shutil.which(
        "compute-sanitizer"
    )


def run(
    *prefix: str, ground: str, limit_s: float = PLAIN_LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """The batches, in a process of their own."""
    return subprocess.run(
        [*prefix, sys.executable, "-m", "tests.gpu.gather", ground],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def measure(ground: Ground, is_quick: bool) -> dict[str, Figure]:
    """Compares bytes; then looks for accesses out of bounds.

    Raises:
        AssertionError: something was found; the text has the tool's words.
    """
    plain = run(ground=ground.name)
    assert plain.returncode == 0, plain.stdout + plain.stderr
    figures = {"small pieces, both ways": Figure(plain.stdout.strip())}
    tool = sanitizer() if ground.name == "cuda" else None
    if tool is None:
        return figures | {"compute-sanitizer": Figure("not run: not installed, or no GPU")}
    command = (tool, "--tool", TOOL, "--error-exitcode", str(FOUND_EXIT))
    done = run(*command, ground=ground.name, limit_s=TOOL_LIMIT_S)
    assert done.returncode == 0, f"{TOOL}: {done.stdout[-3000:]} {done.stderr[-1000:]}"
    return figures | {f"compute-sanitizer {TOOL}": Figure("found nothing")}
