"""Figures of a run as JSON, and how a finding is shown.

Knows no fuzzer. Runs in the process that was started by hand.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from server.bench.machine import describe

SCHEMA = 1


def anonymous_bytes() -> int:
    """Anonymous resident memory of this process (Linux)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def document(seed: int, figures: dict[str, Any], finding: dict[str, Any] | None) -> dict[str, Any]:
    """What ``--json`` writes.

    Args:
        seed: of the run.
        figures: of its parts.
        finding: what was found, or None.
    """
    return {
        "schema": SCHEMA,
        "seed": seed,
        "machine": describe(),
        "figures": figures,
        "finding": finding,
    }


def reproducer(finding: dict[str, Any]) -> str:
    """A finding with the command that plays it again."""
    lines = [f"FOUND {finding['what']}", "  again:"]
    if finding.get("seed") is not None:
        where = f"{finding['part']}:{finding['seed']}:{finding['index']}"
        lines.append(f"    python -m tests.fuzz --replay {where}")
    lines.append(f"    python -m tests.fuzz --replay {shlex.quote(finding['small'])}")
    return "\n".join(lines)
