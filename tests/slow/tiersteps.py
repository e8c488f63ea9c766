"""What ``make slow`` runs of the lower tiers.

Knows the command lines of the project. Runs in the runner's process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Final

from tests.slow.readers import read_chaos
from tests.slow.step import Step, suite_step
from tests.slow.tierreaders import read_beside_tier, read_disk

ROOT: Final = Path(__file__).resolve().parents[2]
CHAOS_MINUTES: Final = 20
TRACES: Final = "KV_TRACES"
WITHOUT_TRACES: Final = (
    f"{TRACES} names no folder with the public traces: set it; docs/scale.md says where they are"
)

SESSIONS: Final = "tests/e2e/test_tiers_sessions.py"
AGENTIC: Final = "tests/e2e/test_tiers_agentic.py"
MODELS: Final = "tests/server/core/tiers"
ENGINES: Final = "tests/server/tiers"


def stores() -> tuple[str, ...]:
    """Tests of servers with tiers that have no step of their own, and those of the engines."""
    found = (str(path.relative_to(ROOT)) for path in ROOT.glob("tests/e2e/test_tiers*.py"))
    return (ENGINES, *sorted(set(found) - {SESSIONS, AGENTIC}))


def apart() -> tuple[str, ...]:
    """What has a step here, and is left out of the one with everything that is marked slow."""
    return (SESSIONS, AGENTIC, MODELS, *stores(), "tests/docs/test_scale.py")


def tier_steps(seed: int, build: Path, quick: bool) -> list[Step]:
    """Every step of the tiers, in order; the short run has those that are programs.

    Args:
        seed: of the run.
        build: folder for what the steps write.
        quick: fewer rounds, for trying the runner itself.
    """
    steps = [_chaos(seed, build, quick), _disk(build, quick), _beside_tier(quick)]
    return steps if quick else steps + _suites(seed, build)


def _chaos(seed: int, build: Path, quick: bool) -> Step:
    path, minutes = build / "slow-chaos-tiers.json", 0.5 if quick else CHAOS_MINUTES
    how = ("--minutes", str(minutes), "--l2", "disk", "--seed", str(seed), "--json", str(path))
    return Step(
        "chaos tiers",
        (sys.executable, "-m", "tests.chaos", *how),
        limit_s=60 * minutes + 300,
        read=lambda _, __: read_chaos(json.loads(path.read_text(encoding="utf-8"))),
    )


def _disk(build: Path, quick: bool) -> Step:
    path = build / "slow-disk.json"
    how = ("--folder", str(build / "slow-disk-tier"), "--json", str(path))
    smaller = ("--size", "128M", "--value", "1M", "--rounds", "2") if quick else ()
    return Step(
        "disk beside fio",
        (sys.executable, "-m", "tests.benchmarks.bench_disk", *how, *smaller),
        limit_s=1800,
        read=lambda _, __: read_disk(json.loads(path.read_text(encoding="utf-8")), quick),
    )


def _beside_tier(quick: bool) -> Step:
    shorter = ("--rounds", "2", "--seconds", "1") if quick else ()
    return Step(
        "lookup beside a tier",
        (sys.executable, "-m", "tests.benchmarks.bench_tiers", "--json", *shorter),
        limit_s=900,
        read=lambda _, stdout: read_beside_tier(json.loads(stdout), quick),
    )


def _suites(seed: int, build: Path) -> list[Step]:
    """Whole traces, the workloads at full length, real stores in trouble, long random sequences."""
    folder = os.environ.get(TRACES, "")
    lacks = "" if folder and Path(folder).is_dir() else WITHOUT_TRACES
    seeded = f"--hypothesis-seed={seed}"
    return [
        suite_step(
            "tiers sessions",
            build / "slow-tiers-sessions.xml",
            (SESSIONS,),
            {},
            limit_s=5400,
            may_skip=False,
            tells=True,
            lacks=lacks,
        ),
        suite_step(
            "tiers agentic",
            build / "slow-tiers-agentic.xml",
            (AGENTIC, "--timeout=600"),
            {"CI": "true"},
            limit_s=1800,
            may_skip=False,
            tells=True,
        ),
        suite_step(
            "tiers stores",
            build / "slow-tiers-stores.xml",
            (*stores(), "--timeout=600", seeded),
            {"CI": "true"},
            limit_s=3600,
            may_skip=False,
            tells=True,
        ),
        suite_step(
            "tiers models",
            build / "slow-tiers-models.xml",
            (MODELS, "-m", "slow", seeded),
            {},
            limit_s=3600,
            may_skip=False,
        ),
        suite_step(
            "simulate",
            build / "slow-simulate.xml",
            ("tests/docs/test_scale.py", "tests/server/simulate", "--timeout=600", seeded),
            {},
            limit_s=3600,
            may_skip=False,
            tells=True,
            lacks=lacks,
        ),
    ]
