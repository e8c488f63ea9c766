"""Fuzzing: decoders and sequences of messages, from a printed seed.

``python -m tests.fuzz`` plays the corpus and then a short run. ``--executions`` and ``--sequences``
say how much, ``--plant NAME`` shows that a planted fault is found, ``--replay SPEC`` plays a
finding again. docs/fuzzing.md explains it all. Exit code 1 when something was found, or a plant
was not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fuzz import corpus, planting, replay, report, workers
from tests.fuzz.batches import BATCH
from tests.fuzz.finding import Finding
from tests.fuzz.plants import PLANTS
from tests.fuzz.play import SequenceFuzz
from tests.fuzz.replay import FORMS

EXECUTIONS, SEQUENCES = 200_000, 1_000
MAX_GROWTH_MIB = 16.0
MIB = 1 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the command line says.

    Returns:
        0 when every oracle held (or every plant was found), 1 otherwise.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    for name, least in (("executions", 0), ("sequences", 0), ("jobs", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be {least} or more, not {getattr(options, name)}")
    if options.replay is not None:
        try:
            replay.read(options.replay)
        except ValueError as error:
            parser.error(f"--replay: {error}")
        return _replay(options.replay)
    print(f"seed {options.seed}", flush=True)
    if options.plant is not None:
        unknown = set(options.plant) - {*PLANTS, "all"}
        if unknown:
            parser.error(f"no plant {sorted(unknown)}; there are: all, {', '.join(PLANTS)}")
        return _plants(options)
    if options.collect:
        return _collect(options)
    return _fuzz(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--seed",
        type=int,
        default=random.SystemRandom().randrange(1 << 31),
        help="repeats a run; else one is drawn and printed",
    )
    parser.add_argument(
        "--executions",
        type=int,
        default=EXECUTIONS,
        help="of decoders; 0 leaves them out (default %(default)s)",
    )
    parser.add_argument(
        "--sequences",
        type=int,
        default=SEQUENCES,
        help="of messages; 0 leaves them out (default %(default)s)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=min(2, os.cpu_count() or 1),
        help="processes (default %(default)s)",
    )
    parser.add_argument("--json", type=Path, help="write figures there")
    parser.add_argument("--plant", action="append", help="a planted fault by name, or all")
    parser.add_argument("--replay", metavar="SPEC", help=f"play a finding: {', '.join(FORMS)}")
    parser.add_argument("--collect", action="store_true", help="make the corpus anew")
    return parser


def _replay(spec: str) -> int:
    what = replay.replay(spec)
    print(f"FOUND {what}" if what else "nothing is found any more")
    return 1 if what else 0


def _plants(options: argparse.Namespace) -> int:
    names = list(PLANTS) if "all" in options.plant else options.plant
    found: dict[str, Any] = {}
    for name in names:
        one = found[name] = planting.find(name, options.seed)
        said = f"found in {one['seconds']} s: {one['what']}" if one["what"] else "NOT FOUND"
        print(f"{name} ({PLANTS[name].kind}): {said}", flush=True)
    if options.json is not None:
        _write(options.json, report.document(options.seed, {"plants": found}, None))
    return 0 if all(one["seconds"] is not None for one in found.values()) else 1


def _collect(options: argparse.Namespace) -> int:
    lines = corpus.collect_messages(options.seed, options.executions)
    head = "# decoder, input: one for each thing a decoder says (python -m tests.fuzz --collect)"
    corpus.MESSAGES.write_text("\n".join([head, *lines]) + "\n", encoding="ascii")
    kept = corpus.collect_sequences(options.seed, options.sequences)
    corpus.SEQUENCES.write_text("\n".join(kept) + "\n", encoding="ascii")
    print(f"{len(lines)} messages, {len(kept)} sequences")
    return 0


def _fuzz(options: argparse.Namespace) -> int:
    began = time.monotonic()
    figures: dict[str, Any] = {}
    finding: dict[str, Any] | None = None
    try:
        figures["corpus"] = dict(
            zip(("messages", "sequences"), corpus.play_all(SequenceFuzz(0)), strict=True)
        )
    except Finding as found:
        finding = {"what": found.what, "small": "the corpus's entry named above"}
    if finding is None and options.executions:
        count = -(-options.executions // BATCH)
        total, finding = workers.run("decode", options.seed, count, options.jobs, _show)
        print(flush=True)  # ends the line of progress
        figures["decode"] = _decode_figures(total)
    if finding is None and options.sequences:
        total, finding = workers.run(
            "sequence", options.seed, options.sequences, options.jobs, _show
        )
        print(flush=True)
        figures["sequence"] = _sequence_figures(total)
    figures["seconds"] = round(time.monotonic() - began, 1)
    grown = max(part.get("growth_mib", 0.0) for part in figures.values() if isinstance(part, dict))
    if options.json is not None:
        _write(options.json, report.document(options.seed, figures, finding))
    print(json.dumps(_told(figures)))
    if finding is not None:
        print(report.reproducer(finding))
    elif grown > MAX_GROWTH_MIB:
        print(f"FOUND memory grows: {grown} MiB")
    return 1 if finding is not None or grown > MAX_GROWTH_MIB else 0


def _told(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures for people: without the hundreds of answers, which are for ``--json``."""
    return {
        name: {one: two for one, two in part.items() if one != "answers"}
        if isinstance(part, dict)
        else part
        for name, part in figures.items()
    }


def _decode_figures(total: workers.Total) -> dict[str, Any]:
    return {
        "executions": total.done,
        "accepted_share": round(total.good / max(1, total.done), 3),
        "per_core_second": round(total.done / max(1e-9, total.cpu_s)),
        "slowest_wall_ms": round(1e3 * total.slowest_s, 2),
        "growth_mib": round(total.growth_bytes() / MIB, 2),
    }


def _sequence_figures(total: workers.Total) -> dict[str, Any]:
    return {
        "sequences": total.done,
        "messages": total.messages,
        "fewest_messages": total.fewest,
        "dispatched_share": round(total.good / max(1, total.messages), 3),
        "per_core_second": round(total.done / max(1e-9, total.cpu_s), 1),
        "growth_mib": round(total.growth_bytes() / MIB, 2),
        "answers": dict(sorted(total.answers.items())),
    }


def _show(total: workers.Total) -> None:
    print(f"\r{total.done} done, {total.good} good", end="", flush=True)


def _write(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
