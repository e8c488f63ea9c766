"""The corpus: inputs that reached something others did not, made small, one a line.

It is played first in each run, and its messages are mutated with the drawn ones. Knows the files'
form. Runs in the fuzzer's process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from protocol.errors import KvkeepError
from protocol.messages import REQUEST_TYPES
from tests.fuzz import batches, decode, wire
from tests.fuzz.batches import DecoderFuzz, Stock
from tests.fuzz.finding import Finding
from tests.fuzz.grammar import Step
from tests.fuzz.mutate import mutate
from tests.fuzz.play import SequenceFuzz

FOLDER = Path(__file__).parent / "corpus"
MESSAGES = FOLDER / "messages.txt"
SEQUENCES = FOLDER / "sequences.jsonl"
MAX_BYTES = 600
_VARYING = re.compile(r"`[^`]*`|'[^']*'|\$\S*|\d+|\[.*?\]")


def messages(path: Path = MESSAGES) -> list[tuple[str, bytes]]:
    """Inputs of decoders: target and bytes."""
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    pairs = (line.split() for line in lines if line and not line.startswith("#"))
    return [(pair[0], bytes.fromhex(pair[1] if len(pair) > 1 else "")) for pair in pairs]


def sequences(path: Path = SEQUENCES) -> list[tuple[str, list[Step]]]:
    """Sequences: what each is kept for, and its steps."""
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    found = []
    for line in lines:
        entry = json.loads(line)
        found.append((entry["for"], [Step(*step) for step in entry["steps"]]))
    return found


def line_of(why: str, steps: list[Step]) -> str:
    """One sequence as a line of the file."""
    return json.dumps({"for": why, "steps": [list(step) for step in steps]})


def stock() -> Stock:
    """Drawn messages and those of the corpus that can be taken apart."""
    extra = []
    for target, data in messages():
        if target not in decode.DECODERS:
            continue
        try:
            template = wire.Template(target, data)
        except wire.BrokenError:
            continue
        extra.append(template)
    return Stock(extra)


def play_all(fuzz: SequenceFuzz) -> tuple[int, int]:
    """Every entry of the corpus with every check.

    Returns:
        How many messages, how many sequences.

    Raises:
        Finding: an oracle is broken; the line says by which entry.
    """
    inputs, kept = messages(), sequences()
    for target, data in inputs:
        try:
            batches.run_input(target, data)
        except Finding as finding:
            raise Finding(f"{finding.what} (corpus: {target} {data.hex()})") from finding
    for why, steps in kept:
        try:
            fuzz.play(steps)
        except Finding as finding:
            raise Finding(f"{finding.what} (corpus: {line_of(why, steps)})") from finding
    return len(inputs), len(kept)


# --- making it -------------------------------------------------------------------------------


def signature(target: str, data: bytes) -> str:
    """What a decoder makes of an input, without its numbers and names."""
    decoder, refusal = decode.DECODERS[target]
    try:
        value = decoder(data)
    except refusal as error:
        text = error.message if isinstance(error, KvkeepError) else str(error)
        said: str = _VARYING.sub("#", text).partition(" field ")[0]
        return f"{target}: {said[:60]}"
    kind = value[1] if target == "request" else getattr(value, "body", value)
    return f"{target}: accepted {type(kind).__name__}"


def collect_messages(seed: int, executions: int) -> list[str]:
    """Lines of the messages' file: one small input for each thing a decoder can say."""
    fuzz = DecoderFuzz(seed, Stock([]))
    best: dict[str, tuple[str, bytes]] = {}
    for index in range(executions // batches.BATCH):
        draw = fuzz.draw(index)
        for _ in range(batches.BATCH):
            template = draw.choice(fuzz.stock.templates)
            data = mutate(draw.random, template, fuzz.stock.material)
            if len(data) > MAX_BYTES:
                continue
            name = signature(template.target, data)
            if name not in best or len(data) < len(best[name][1]):
                best[name] = template.target, data
    return [f"{target} {data.hex()}".rstrip() for _, (target, data) in sorted(best.items())]


def collect_sequences(seed: int, count: int) -> list[str]:
    """Lines of the sequences' file: one short sequence for each operation and code answered."""
    fuzz = SequenceFuzz(seed)
    found: dict[str, list[Step]] = {}
    for number in range(count):
        fuzz.counts.answers.clear()
        fuzz.one(number)
        for name in fuzz.counts.answers:
            if int(name.partition("/")[0]) in _KNOWN and name not in found:
                found[name] = fuzz.steps(number)
    return [line_of(name, _smaller(fuzz, found[name], name)) for name in sorted(found)]


_KNOWN = frozenset({0, *REQUEST_TYPES})


def _smaller(fuzz: SequenceFuzz, steps: list[Step], name: str) -> list[Step]:
    """Fewer steps that are still answered so."""

    def reaches(candidate: list[Step]) -> bool:
        fuzz.counts.answers.clear()
        fuzz.play(candidate)
        return name in fuzz.counts.answers

    return fewer(steps, reaches)


def fewer(steps: list[Step], holds: Callable[[list[Step]], bool]) -> list[Step]:
    """Leaves out steps as long as something holds."""
    size = max(1, len(steps) // 2)
    while size:
        at = 0
        while at < len(steps):
            candidate = steps[:at] + steps[at + size :]
            if holds(candidate):
                steps = candidate
            else:
                at += size
        size //= 2
    return steps
