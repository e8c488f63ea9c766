"""Which branches of the decoders and of dispatch a run reaches, counted by coverage.py.

``python -m tests.fuzz.branches [--seed N] [--json PATH]``. Nothing of the product is imported
before the counting begins. Exit code 1 when a branch is neither reached nor listed, with its
reason, in ``unreached.txt`` beside this file. Runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).parent / "unreached.txt"
STRICT = (
    "protocol/*.py",
    *("server/core/dispatch.py", "server/core/handlers.py", "server/core/desk.py"),
    "server/core/handle_*.py",
)
"""Files whose every branch must be reached."""

COUNTED = (*STRICT, "server/core/*.py")
EXECUTIONS = 60_000
SEQUENCES = 2_500


@dataclass(frozen=True)
class Gap:
    """A line or a branch that was not reached.

    Attributes:
        file: from the repository's root.
        line: its number.
        text: of the line.
        to: where the branch would have gone, 0 for a line that did not run.
    """

    file: str
    line: int
    text: str
    to: int


def measure(seed: int, executions: int, sequences: int) -> dict[str, Any]:
    """Runs the corpus and both fuzzers under coverage.py.

    Returns:
        coverage.py's JSON report.
    """
    import coverage  # only here: the rest of this file needs nothing but Python

    counter = coverage.Coverage(
        branch=True,
        data_file=None,
        config_file=False,
        include=[str(ROOT / pattern) for pattern in COUNTED],
    )
    counter.start()
    try:
        from tests.fuzz import corpus, decode
        from tests.fuzz.batches import BATCH, DecoderFuzz
        from tests.fuzz.play import SequenceFuzz
        from tests.fuzz.strays import stray_calls

        decode.SLOW_S = 10.0  # counting makes everything slower
        sequence = SequenceFuzz(seed)
        corpus.play_all(sequence)
        stray_calls()
        decoder = DecoderFuzz(seed, corpus.stock())
        for number in range(executions // BATCH):
            decoder.batch(number)
        for number in range(sequences):
            sequence.one(number)
    finally:
        counter.stop()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "coverage.json"
        counter.json_report(outfile=str(path))
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


def gaps(report: dict[str, Any]) -> list[Gap]:
    """What was not reached of the files that must be reached whole."""
    found = []
    for name, entry in sorted(report["files"].items()):
        path = Path(name)
        file = str(path.relative_to(ROOT) if path.is_absolute() else path)
        if not any(Path(file).match(pattern) for pattern in STRICT):
            continue
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        missing = set(entry["missing_lines"])
        found += [Gap(file, line, lines[line - 1].strip(), 0) for line in sorted(missing)]
        for line, to in entry["missing_branches"]:
            if line not in missing and abs(to) not in missing:
                found.append(Gap(file, line, lines[line - 1].strip(), to))
    return found


def excused() -> dict[tuple[str, str], str]:
    """Lines that need not be reached: (file, text) to the reason.

    The list has one a line: file, ``|``, the line's text, ``|``, the reason.
    """
    found = {}
    for row in LIST.read_text(encoding="utf-8").splitlines():
        if row and not row.startswith("#"):
            file, text, reason = (part.strip() for part in row.split("¦"))
            found[file, text] = reason
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Counts and judges.

    Returns:
        0 if every branch is reached or excused, and every excuse is needed.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.branches", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--executions", type=int, default=EXECUTIONS)
    parser.add_argument("--sequences", type=int, default=SEQUENCES)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    report = measure(options.seed, options.executions, options.sequences)
    found, reasons = gaps(report), excused()
    lost = [gap for gap in found if (gap.file, gap.text) not in reasons]
    for gap in lost:
        where = f" to {gap.to}" if gap.to else ""
        print(f"not reached: {gap.file}:{gap.line}{where}: {gap.text}")
    idle = set(reasons) - {(gap.file, gap.text) for gap in found}
    for file, text in sorted(idle):
        print(f"excused and reached (this run may have been lucky): {file}: {text}")
    totals = _totals(report)
    print(f"branches: {totals['strict']} of {totals['strict_all']} where each counts, ", end="")
    print(f"{totals['core']} of {totals['core_all']} in server/core; {len(reasons)} excused")
    if options.json is not None:
        figures = {**totals, "excused": len(reasons), "lost": len(lost), "seed": options.seed}
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 1 if lost else 0


def _totals(report: dict[str, Any]) -> dict[str, int]:
    totals = {"strict": 0, "strict_all": 0, "core": 0, "core_all": 0}
    for name, entry in report["files"].items():
        path = Path(name)
        file = path.relative_to(ROOT) if path.is_absolute() else path
        kind = "strict" if any(file.match(pattern) for pattern in STRICT) else "core"
        totals[kind] += entry["summary"]["covered_branches"]
        totals[f"{kind}_all"] += entry["summary"]["num_branches"]
    return totals


if __name__ == "__main__":
    raise SystemExit(main())
