"""One step of ``make slow``: a child process, and how what it left is read. Plain data.

Knows pytest's reports; nothing of what is run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.slow.figure import Figure
from tests.slow.told import read_told

TELLING = ("-o", "junit_logging=system-out")
"""Options of pytest with which a report has what the tests printed."""


@dataclass(frozen=True)
class Step:
    """One child process.

    Attributes:
        name: shown and written down.
        command: what to run, from the repository's root.
        limit_s: longest time.
        environ: beyond the runner's own.
        read: makes figures of what it wrote to files and to stdout.
        lacks: what it cannot run without and how to come by it, one line; empty when all is there.
    """

    name: str
    command: tuple[str, ...]
    limit_s: float
    environ: Mapping[str, str] = field(default_factory=dict)
    read: Callable[[Path, str], dict[str, Figure]] = lambda build, stdout: {}
    lacks: str = ""


def suite_step(
    name: str,
    report: Path,
    arguments: tuple[str, ...],
    environ: Mapping[str, str],
    limit_s: float = 500,
    may_skip: bool = True,
    tells: bool = False,
    lacks: str = "",
) -> Step:
    """A run of pytest.

    Args:
        name: of the step.
        report: JUnit XML to be written.
        arguments: of pytest.
        environ: beyond the runner's own.
        limit_s: longest time.
        may_skip: whether a test may be left out.
        tells: whether what its tests print are figures, too.
        lacks: as of a step.
    """
    command = (sys.executable, "-m", "pytest", "-q", *arguments, f"--junitxml={report}")

    def read(_: Path, __: str) -> dict[str, Figure]:
        told = read_told(report) if tells else {}
        return {**read_junit(report, may_skip), **told}

    return Step(name, (*command, *(TELLING if tells else ())), limit_s, environ, read, lacks)


def read_junit(report: Path, may_skip: bool = True) -> dict[str, Figure]:
    """Counts of one pytest run.

    Args:
        report: JUnit XML.
        may_skip: whether a test may be left out.
    """
    root = ET.parse(report).getroot()
    suite = root if root.tag == "testsuite" else root[0]
    counts = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors")}
    skipped = int(suite.get("skipped", "0"))
    ran = counts["tests"] - skipped
    failed = counts["failures"] + counts["errors"]
    return {
        "tests": Figure(ran, "> 0", ran > 0),
        "failed": Figure(failed, "0", failed == 0),
        "skipped": Figure(skipped) if may_skip else Figure(skipped, "0", skipped == 0),
    }
