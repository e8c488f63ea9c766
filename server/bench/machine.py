"""What a figure was measured on: hardware, kernel, versions, commit.

Purpose: a figure without these says nothing to the next reader. Must not know: the figures. Runs
in: the benchmark's process.
"""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import protocol

_PACKAGES = ("pyzmq", "msgpack", "msgspec", "numpy")


def describe() -> dict[str, str | int | float | None]:
    """Names the machine and the software.

    Returns:
        Plain values; see docs/benchmarks.md.
    """
    facts: dict[str, str | int | float | None] = {
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_1min": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "kvkeep": protocol.__version__,
        "commit": commit(Path(protocol.__file__).parent),
    }
    for name in _PACKAGES:
        facts[name] = metadata.version(name)
    return facts


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return platform.machine()
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def commit(folder: Path) -> str | None:
    """The git commit of the code, with a plus sign when files differ from it.

    Args:
        folder: of the code.

    Returns:
        12 hex digits, or None outside a git checkout or without git.
    """
    try:
        # An installed copy inside somebody's checkout is not that checkout's code.
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        name = _git(folder, "rev-parse", "--short=12", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return name + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ("git", "-C", str(folder), *arguments),
        capture_output=True,
        check=True,
        text=True,
        timeout=10,
    )
    return done.stdout.strip()
