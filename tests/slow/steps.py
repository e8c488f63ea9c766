"""What ``make slow`` runs, and how each step's figures are read and judged.

Every step is a child process with a time limit, so that a crash or a hang is a verdict like any
other. Knows the command lines of the project and the formats they write. Runs in the runner's
process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.fuzz.judged import EXECUTIONS, SEQUENCES, read_branches, read_fuzz, read_plants
from tests.restarts.broken import BREAKS
from tests.restarts.judged import CHUNKS, KILLS, read_broken, read_restarts
from tests.slow.figure import Figure
from tests.slow.readers import (
    judge_hooks,
    read_adapter,
    read_agentic,
    read_chaos,
    read_kit,
    read_layerwise,
    read_schedules,
    read_soak,
)
from tests.slow.step import Step, suite_step
from tests.slow.tiersteps import apart, tier_steps

Figures = dict[str, float | int | str | bool | None]

_Reader = Callable[[Mapping[str, Any]], dict[str, Figure]]

SCHEDULES_PER_MODE = 520
"""Of four modes; 2,000 are wanted in all, and 200 of each."""

KIT_SCHEDULES = 60
"""Of the conformance kit's engines of one rank, and half as many of each kind of several."""

COMBINATION_ROUNDS = 3
"""Schedules of each combination."""

COMBINATIONS = ("tests/e2e/test_combinations.py", "tests/e2e/test_combinations_ranked.py")

ON_DEVICES = "tests/e2e/test_combinations_simulated.py"
"""All combinations once more, on a simulated CUDA device."""

SCHEDULES_PER_MODE_ON_DEVICES = 100

GAPS = "tests/e2e/test_gaps_in_time.py"
"""Hooks while the server is in trouble, in every gap between two messages."""

GAP_ROUNDS = 3
"""Of all gaps with each trouble, in random order, after each once."""

DEPLOYMENT = ("tests/deploy/test_machine.py", "tests/deploy/test_image.py")
"""The unit under a real systemd, the image under a real Docker."""

CHAOS_MINUTES = 10

PROPERTY_ROUNDS = 5
"""Rounds of all property tests, each with a seed of its own and twice the usual examples."""

MARKS = "not slow and not node and not gpu"


def plan(seed: int, build: Path, quick: bool) -> list[Step]:
    """Every step of a run, in order.

    Args:
        seed: of the run; each step derives its own from it.
        build: folder for what the steps write.
        quick: fewer rounds, for trying the runner itself.
    """
    python = sys.executable
    rounds = 1 if quick else PROPERTY_ROUNDS
    steps = [
        suite_step(
            f"property tests, round {number + 1} of {rounds}",
            build / f"slow-properties-{number}.xml",
            (
                *("-m", f"hypothesis and {MARKS}", f"--hypothesis-seed={seed + number}"),
                f"--hypothesis-profile={'default' if quick else 'thorough'}",
            ),
            {},
            limit_s=900,
        )
        for number in range(rounds)
    ]
    if not quick:
        steps.append(
            suite_step(
                "tests marked slow",
                build / "slow-marked.xml",
                (
                    *("-m", "slow and not gpu", f"--hypothesis-seed={seed}", "--timeout=600"),
                    *(f"--ignore={path}" for path in (ON_DEVICES, GAPS, *DEPLOYMENT, *apart())),
                ),
                {"KV_E2E_SEED": str(seed)},
                limit_s=1800,
            )
        )
        steps.append(
            suite_step(
                "deployment",
                build / "slow-deployment.xml",
                ("-m", "slow", "--timeout=600", *DEPLOYMENT),
                {},
                limit_s=1800,
                may_skip=False,
            )
        )
    more = {"KV_E2E_SEED": str(seed), "KV_E2E_ROUNDS": "60" if quick else "240"}
    folders = ("tests/faults", "tests/e2e")
    # Unless it is the short run: these have steps of their own.
    elsewhere = () if quick else (*COMBINATIONS, ON_DEVICES, GAPS)
    steps.append(
        suite_step(
            "fault rows and end to end",
            build / "slow-e2e.xml",
            ("-m", MARKS, *folders, *(f"--ignore={path}" for path in elsewhere)),
            more,
            limit_s=2400,
        )
    )
    if not quick:
        # Whole, as everything here; those of the folders above have just run.
        ignored = (f"--ignore={path}" for path in folders)
        steps.append(
            suite_step(
                "sampled families",
                build / "slow-sampled.xml",
                ("-m", f"sampled and {MARKS}", *ignored),
                {},
                limit_s=1800,
            )
        )
    demo = build / "slow-demo.json"
    arguments = ("--quick",) if quick else ()
    steps.append(
        Step(
            "demo",
            (python, "-m", "adapter.conformance.demo", "--json", str(demo), *arguments),
            limit_s=400,
            read=lambda _, __: read_demo(json.loads(demo.read_text(encoding="utf-8")), quick),
        )
    )
    steps.append(
        Step(
            "bench",
            (python, "-m", "server", "bench", "--json", "--seed", str(seed), *arguments),
            limit_s=600,
            read=lambda _, stdout: read_bench(json.loads(stdout)),
        )
    )
    steps.append(
        Step(
            "bench beside scraping",
            (
                *(python, "-m", "server", "bench", "--scrape", "--json", "--seed", str(seed)),
                *arguments,
            ),
            limit_s=900,
            read=lambda _, stdout: read_bench(json.loads(stdout)),
        )
    )
    soak = build / "slow-soak.json"
    soaking = ("--minutes", "0.5" if quick else "30", "--seed", str(seed), "--json", str(soak))
    steps.append(
        Step(
            "soak",
            (python, "-m", "tests.soak", *soaking),
            limit_s=2400,
            read=lambda _, __: read_soak(json.loads(soak.read_text(encoding="utf-8"))),
        )
    )
    chaos = build / "slow-chaos.json"
    minutes = 0.5 if quick else CHAOS_MINUTES
    steps.append(
        Step(
            "chaos",
            (
                *(python, "-m", "tests.chaos", "--minutes", str(minutes)),
                *("--seed", str(seed), "--json", str(chaos)),
            ),
            limit_s=60 * minutes + 300,
            read=lambda _, __: read_chaos(json.loads(chaos.read_text(encoding="utf-8"))),
        )
    )
    steps += tier_steps(seed, build, quick) + _restart_steps(seed, build, quick)
    steps += _fuzz_steps(seed, build, quick) + _host_steps(seed, build, quick)
    return steps + _device_steps(seed, build, quick)


def _device_steps(seed: int, build: Path, quick: bool) -> list[Step]:
    """The host's whole suite on simulated CUDA devices: random delays, answers equal to the bit."""
    count = 2 if quick else SCHEDULES_PER_MODE_ON_DEVICES
    numbers = ("--count", str(count), "--seed", str(seed))
    schedules = Step(
        "simulated CUDA: schedules",
        (
            *(sys.executable, "-m", "adapter.conformance.schedules", "--json", *numbers),
            *("--device", "simulated"),
        ),
        limit_s=3600,
        read=lambda _, stdout: read_schedules(json.loads(stdout), quick, count),
    )
    if quick:
        return [schedules]
    rounds = {"KV_SCHEDULE_SEED": str(seed), "KV_SCHEDULES": str(COMBINATION_ROUNDS)}
    elsewhere = (f"--ignore={path}" for path in (*COMBINATIONS, ON_DEVICES))
    folders = ("tests/adapter/conformance/host", "tests/e2e")
    return [
        schedules,
        suite_step(
            "simulated CUDA: combinations",
            build / "slow-simulated-combinations.xml",
            (ON_DEVICES, "--timeout=600"),
            rounds,
            3600,
            may_skip=False,
        ),
        suite_step(
            "simulated CUDA: host and adapter",
            build / "slow-simulated-suite.xml",
            ("-m", MARKS, *folders, *elsewhere),
            {"KV_SCHEDULE_SEED": str(seed), "TRTLLM_CONFORMANCE_DEVICE": "simulated"},
            limit_s=2400,
        ),
    ]


def _restart_steps(seed: int, build: Path, quick: bool) -> list[Step]:
    """A server with a full cache killed again and again; then servers that lack a guard."""

    def step(name: str, count: int, chunks: int, more: tuple[str, ...], read: _Reader) -> Step:
        path = build / f"slow-{name.replace(' ', '-')}.json"
        counts = ("--kills", str(count), "--chunks", str(chunks), "--seed", str(seed))
        return Step(
            name,
            (sys.executable, "-m", "tests.restarts", *counts, "--json", str(path), *more),
            limit_s=1800,
            read=lambda _, __: read(json.loads(path.read_text(encoding="utf-8"))),
        )

    kills, chunks = (5, 10_000) if quick else (KILLS, CHUNKS)
    steps = [step("restarts", kills, chunks, (), lambda document: read_restarts(document, quick))]
    return steps + [
        step(f"restarts {name}", 10, 10_000, ("--break", name), read_broken)
        for name in ([] if quick else sorted(BREAKS))
    ]


def _fuzz_steps(seed: int, build: Path, quick: bool) -> list[Step]:
    """The fuzzers at their full counts, every planted fault, and the branches they reach."""
    fuzz = (sys.executable, "-m", "tests.fuzz", "--seed", str(seed))
    run, plants, branches = (
        build / f"slow-{name}.json" for name in ("fuzz", "fuzz-plants", "fuzz-branches")
    )
    executions, sequences = (20_000, 200) if quick else (EXECUTIONS, SEQUENCES)
    counts = ("--executions", str(executions), "--sequences", str(sequences))
    reached = (sys.executable, "-m", "tests.fuzz.branches", "--seed", str(seed))
    steps = [
        Step(
            "fuzz",
            (*fuzz, *counts, "--json", str(run)),
            limit_s=5400,
            read=lambda _, __: read_fuzz(json.loads(run.read_text(encoding="utf-8")), quick),
        ),
        Step(
            "fuzz plants",
            (*fuzz, "--plant", "all", "--json", str(plants)),
            limit_s=2400,
            read=lambda _, __: read_plants(json.loads(plants.read_text(encoding="utf-8"))),
        ),
        Step(
            "fuzz branches",
            (*reached, "--json", str(branches)),
            limit_s=1200,
            read=lambda _, __: read_branches(json.loads(branches.read_text(encoding="utf-8"))),
        ),
    ]
    return steps[:1] if quick else steps


def _host_steps(seed: int, build: Path, quick: bool) -> list[Step]:
    """The conformance host's lifecycles, layouts, modes and ranks, and what the adapter costs."""
    module = (sys.executable, "-m")
    count = 2 if quick else SCHEDULES_PER_MODE
    few = str(2 if quick else KIT_SCHEDULES)
    kit = (*module, "adapter", "conformance", "--json", "--seed", str(seed), "--schedules", few)
    adapter = build / "slow-adapter.json"
    smaller = ("--active", "16", "--tokens", "1024", "--cycles", "2") if quick else ()
    schedules = ("--json", "--count", str(count), "--seed", str(seed))
    steps = [
        Step(
            "schedules",
            (*module, "adapter.conformance.schedules", *schedules),
            limit_s=5400,
            read=lambda _, stdout: read_schedules(json.loads(stdout), quick),
        ),
        Step("conformance kit", kit, 1800, read=lambda _, stdout: read_kit(json.loads(stdout))),
        Step(
            "adapter cpu",
            (*module, "tests.benchmarks.bench_adapter", "--json", str(adapter), *smaller),
            limit_s=600,
            read=lambda _, __: read_adapter(json.loads(adapter.read_text("utf-8")), quick),
        ),
    ]
    return steps if quick else [*steps, *_whole_host_steps(seed, build), *_agentic_steps(build)]


def _whole_host_steps(seed: int, build: Path) -> list[Step]:
    """What the short run leaves out: every combination, layers that are timed, every gap."""
    rounds = {"KV_SCHEDULE_SEED": str(seed), "KV_SCHEDULES": str(COMBINATION_ROUNDS)}
    gaps = suite_step(
        "hooks beside trouble",
        build / "slow-gaps.xml",
        (GAPS, "--timeout=900"),
        {"KV_E2E_SEED": str(seed), "KV_GAP_ROUNDS": str(GAP_ROUNDS)},
        limit_s=2400,
        may_skip=False,
        tells=True,
    )
    return [
        Step(
            "layer-wise gain",
            (sys.executable, "-m", "tests.benchmarks.bench_layerwise", "--json"),
            limit_s=300,
            read=lambda _, stdout: read_layerwise(json.loads(stdout)),
        ),
        replace(gaps, read=lambda build, stdout: judge_hooks(gaps.read(build, stdout))),
        suite_step(
            "combinations",
            build / "slow-combinations.xml",
            (*COMBINATIONS, "--timeout=600"),
            rounds,
            3600,
            may_skip=False,
        ),
    ]


def _agentic_steps(build: Path) -> list[Step]:
    """Twelve agents at the size of a real model, then with large blocks of small tokens."""

    def step(name: str, block_tokens: int, token_kib: int) -> Step:
        path = build / ("agentic.json" if block_tokens == 32 else "slow-agentic-256.json")
        sizes = ("--block-tokens", str(block_tokens), "--token-kib", str(token_kib))
        return Step(
            name,
            (sys.executable, "-m", "adapter.conformance.agentic", "--json", str(path), *sizes),
            limit_s=1200,
            read=lambda _, __: read_agentic(
                json.loads(path.read_text("utf-8")), block_tokens, token_kib
            ),
        )

    return [step("agentic", 32, 128), step("agentic, blocks of 256", 256, 1)]


def read_demo(document: Mapping[str, Any], quick: bool) -> dict[str, Figure]:
    """Every claim of the demo, and its time.

    Args:
        document: as the demo wrote it.
        quick: whether it was the short one, which counts other requests.
    """
    claims = [
        (f"{act['title']}: {claim['text']}", bool(claim["held"]))
        for act in document["acts"]
        for claim in act["claims"]
    ]
    seconds = float(document["seconds"])
    figures = {text: Figure(held, "held", held) for text, held in claims}
    figures["claims"] = Figure(len(claims), "> 10", len(claims) > 10)
    figures["seconds"] = Figure(seconds, "< 240", seconds < 240)
    figures["all held"] = Figure(bool(document["held"]), "held", bool(document["held"]))
    if not quick:
        found = _trace_hits(document)
        figures["trace blocks loaded of asked"] = Figure(
            found, "2278 of 13662", found == "2278 of 13662"
        )
    return figures


def _trace_hits(document: Mapping[str, Any]) -> str:
    for act in document["acts"]:
        figures = act["figures"]
        if "hit_blocks" in figures and "full_blocks" in figures:
            return f"{figures['hit_blocks']} of {figures['full_blocks']}"
    return "not told"


def read_bench(document: Mapping[str, Any]) -> dict[str, Figure]:
    """Every figure of the benchmark with its own verdict.

    Args:
        document: as docs/benchmarks.md describes it.
    """
    targets = document["targets"]
    return {
        name: Figure(
            value, targets.get(name, {}).get("target", ""), targets.get(name, {}).get("met")
        )
        for name, value in document["figures"].items()
    }
