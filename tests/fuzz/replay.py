"""Plays one reproducer again: by seed and index, by its bytes, or by its steps.

Runs in the process that was started by hand.
"""

from __future__ import annotations

import json

from tests.fuzz import batches, corpus
from tests.fuzz.batches import DecoderFuzz
from tests.fuzz.finding import Finding
from tests.fuzz.grammar import Step
from tests.fuzz.play import SequenceFuzz


def replay(spec: str) -> str:
    """Plays it.

    Args:
        spec: ``decode:SEED:INDEX``, ``sequence:SEED:INDEX``, ``input:TARGET:HEX`` or
            ``steps:JSON``, as a finding names it.

    Returns:
        What was found, or empty when all holds.

    Raises:
        ValueError: the text is none of these.
    """
    kind, _, rest = spec.partition(":")
    try:
        if kind == "decode":
            seed, index = (int(part) for part in rest.split(":"))
            target, data = DecoderFuzz(seed, corpus.stock()).message(index)
            print(f"{target} {data.hex()}")
            batches.run_input(target, data)
        elif kind == "input":
            target, _, text = rest.partition(":")
            batches.run_input(target, bytes.fromhex(text))
        elif kind == "sequence":
            seed, index = (int(part) for part in rest.split(":"))
            fuzz = SequenceFuzz(seed)
            print(corpus.line_of("", fuzz.steps(index)))
            fuzz.one(index)
        elif kind == "steps":
            steps = [Step(*step) for step in json.loads(rest)["steps"]]
            SequenceFuzz(0).play(steps)
        else:
            raise ValueError(f"nothing to replay: {spec!r}")
    except Finding as finding:
        return finding.what
    return ""
