"""Plants faults one after the other and measures how long each takes to be found.

Runs in the process that was started by hand; a planted core is only ever played here.
"""

from __future__ import annotations

import time
from typing import Any

from tests.fuzz import corpus
from tests.fuzz.batches import DecoderFuzz
from tests.fuzz.finding import Finding
from tests.fuzz.plants import PLANTS, plant
from tests.fuzz.play import SequenceFuzz

LIMIT_S = 120.0
"""A planted fault must be found within this."""


def find(name: str, seed: int, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Plants a fault and fuzzes until it is found; the corpus is left out.

    Args:
        name: of the plant.
        seed: of the run.
        limit_s: when to give up.

    Returns:
        ``seconds`` until it was found (None for not), ``what`` was said, executions, sequences.
    """
    planted = plant(PLANTS[name])
    began = time.monotonic()
    decoder, sequence = DecoderFuzz(seed, corpus.stock()), SequenceFuzz(seed)
    number = 0
    what: str | None = None
    try:
        while what is None and time.monotonic() - began < limit_s:
            try:
                decoder.batch(number)
                for index in range(4):
                    sequence.one(4 * number + index)
            except Finding as finding:
                what = finding.what.splitlines()[0]
            number += 1
    finally:
        planted.undo()
    return {
        "seconds": round(time.monotonic() - began, 2) if what is not None else None,
        "what": what,
        "executions": decoder.tally.executions,
        "sequences": sequence.counts.sequences,
    }
