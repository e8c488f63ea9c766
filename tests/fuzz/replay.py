"""Plays one reproducer again: by seed and index, by its bytes, or by its steps.

Runs in the process that was started by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.fuzz import batches, corpus
from tests.fuzz.batches import DecoderFuzz
from tests.fuzz.decode import DECODERS
from tests.fuzz.drawing import TIER_WEIGHTS, WEIGHTS
from tests.fuzz.finding import Finding
from tests.fuzz.formats import FORMATS
from tests.fuzz.grammar import Step
from tests.fuzz.play import SequenceFuzz

FORMS = ("decode:SEED:INDEX", "sequence:SEED:INDEX", "input:TARGET:HEX", "steps:JSON")
TARGETS = (*DECODERS, *(name for name, _ in FORMATS))
"""Decoders and file formats by their names in a reproducer."""

VERBS = frozenset({"begin", *WEIGHTS, *TIER_WEIGHTS})


def read(spec: str) -> Callable[[], None]:
    """What a reproducer asks to be played; nothing is played yet.

    Args:
        spec: one of ``FORMS``, as a finding names it.

    Returns:
        Plays it; raises Finding.

    Raises:
        ValueError: the text is none of these.
    """
    kind, _, rest = spec.partition(":")
    try:
        if kind == "input":
            target, _, text = rest.partition(":")
            return _input(target, bytes.fromhex(text))
        if kind == "steps":
            return _steps(json.loads(rest)["steps"])
        if kind in ("decode", "sequence"):
            seed, index = (int(part) for part in rest.split(":"))
            if index < 0:
                raise ValueError(f"index {index}: indices begin with 0")
            return _drawn(kind, seed, index)
        raise ValueError(f"unknown kind {kind[:40]!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"no reproducer ({said}); the forms are {', '.join(FORMS)}") from error


def _input(target: str, data: bytes) -> Callable[[], None]:
    if target not in TARGETS:
        raise ValueError(f"unknown target {target[:40]!r}; there are: {', '.join(TARGETS)}")
    return lambda: batches.run_input(target, data)


def _steps(plain: list[list[int | str]]) -> Callable[[], None]:
    steps = [Step(*step) for step in plain]  # type: ignore[arg-type]
    for step in steps:
        verb, *numbers = step
        if verb not in VERBS or not all(type(number) is int for number in numbers):
            raise ValueError(f"no step: {list(step)!r:.80}")
    return lambda: SequenceFuzz(0).play(steps)


def _drawn(kind: str, seed: int, index: int) -> Callable[[], None]:
    def decode() -> None:
        target, data = DecoderFuzz(seed, corpus.stock()).message(index)
        print(f"{target} {data.hex()}")
        batches.run_input(target, data)

    def sequence() -> None:
        fuzz = SequenceFuzz(seed)
        print(corpus.line_of("", fuzz.steps(index)))
        fuzz.one(index)

    return decode if kind == "decode" else sequence


def replay(spec: str) -> str:
    """Plays it.

    Args:
        spec: one of ``FORMS``.

    Returns:
        What was found, or empty when all holds.

    Raises:
        ValueError: the text is none of these.
    """
    play = read(spec)
    try:
        play()
    except Finding as finding:
        return finding.what
    return ""
