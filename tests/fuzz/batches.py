"""Decoder executions in batches of a thousand, each repeatable from the seed and its index.

Knows how to draw and count, not what is right. Runs in the fuzzer's process.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from dataclasses import dataclass, field

from tests.fuzz import decode, samples
from tests.fuzz.finding import Finding, require
from tests.fuzz.formats import FORMATS
from tests.fuzz.mutate import Material, mutate
from tests.fuzz.wire import Template

BATCH = 1000
FORMAT_EVERY = 40
"""One execution in so many is about a file, a blob or a URL instead of a message."""

THOROUGH = 0.25
"""Share of what is let through that is compared with the page and with itself."""

LONG_BYTES = 100_000
"""Messages so long are near a frame's limits: compared always if they grew, else never."""

_MEMORY_BYTES = 1 << 20
_MEMORY_TIMES = 24


@dataclass
class Tally:
    """What a run did.

    Attributes:
        executions: messages tried.
        accepted: let through.
        slowest_s: longest execution, the mutation included.
        by_target: executions of each decoder.
    """

    executions: int = 0
    accepted: int = 0
    slowest_s: float = 0.0
    by_target: dict[str, int] = field(default_factory=dict)


class Stock:
    """Templates and material, and messages of the corpus among them."""

    def __init__(self, extra: list[Template]) -> None:
        self.templates: list[Template] = [*samples.templates(), *extra]
        self.material = Material.of(self.templates, samples.bounds())


class DecoderFuzz:
    """The decoder fuzzer.

    Args:
        seed: repeats it.
        stock: what is mutated.
    """

    def __init__(self, seed: int, stock: Stock) -> None:
        self.seed = seed
        self.stock = stock
        self.tally = Tally()
        self.failed: tuple[str, bytes] | None = None

    def draw(self, number: int) -> random.Random:
        """The random numbers of a batch."""
        return random.Random(f"{self.seed}/{number}")

    def batch(self, number: int, stop: int = BATCH) -> None:
        """One batch, or the beginning of one.

        Raises:
            Finding: an oracle is broken; ``failed`` names the input.
        """
        draw = self.draw(number)
        uniform, templates, material = draw.random, self.stock.templates, self.stock.material
        tally, clock = self.tally, time.perf_counter
        accepted, slowest, count = 0, 0.0, len(templates)
        decoders, last = decode.DECODERS, clock()
        for at in range(stop):
            if at % FORMAT_EVERY == 0:
                self._format(draw, at // FORMAT_EVERY)
                last = clock()
                continue
            template = templates[int(uniform() * count)]
            data = mutate(uniform, template, material)
            target = template.target
            decoder, refusal = decoders[target]
            try:
                value = decoder(data)
                accepted += 1
            except refusal:
                value = None
            except Exception as error:
                self.failed = target, data
                raise Finding(f"an untyped error: {type(error).__name__}: {error}") from error
            now = clock()
            taken, last = now - last, now
            if value is not None:
                thorough = uniform() < THOROUGH
                if len(data) > LONG_BYTES:
                    thorough = len(data) > len(template.data)
                if thorough:
                    self._thorough(target, data, value)
                    last = clock()
            if taken > slowest:
                slowest = taken
                if taken > decode.SLOW_S:
                    self._slow(target, data)
                    last = clock()
        tally.executions += stop
        tally.accepted += accepted
        tally.slowest_s = max(tally.slowest_s, slowest)
        if number % 4 == 0:
            self._memory(draw)

    def _thorough(self, target: str, data: bytes, value: object) -> None:
        self.failed = target, data
        decode.check_accepted(target, data, value)
        self.failed = None

    def _slow(self, target: str, data: bytes) -> None:
        self.failed = target, data
        decode.check_time(target, data)
        self.failed = None

    def _format(self, draw: random.Random, at: int) -> None:
        name, one = FORMATS[at % len(FORMATS)]
        data = one.draw(draw)
        self.failed = name, data
        one.check(data)
        self.failed = None

    def _memory(self, draw: random.Random) -> None:
        """One execution under the eyes of tracemalloc."""
        template = draw.choice(self.stock.templates)
        data = mutate(draw.random, template, self.stock.material)
        self.failed = template.target, data
        check_memory(template.target, data)
        self.failed = None

    def message(self, index: int) -> tuple[str, bytes]:
        """The input of one execution, made again.

        Args:
            index: 0 and up.
        """
        number, at = divmod(index, BATCH)
        draw = self.draw(number)
        uniform = draw.random
        target, data = "", b""
        for place in range(at + 1):
            if place % FORMAT_EVERY == 0:
                name, one = FORMATS[place // FORMAT_EVERY % len(FORMATS)]
                target, data = name, one.draw(draw)
                continue
            template = self.stock.templates[int(uniform() * len(self.stock.templates))]
            target, data = template.target, mutate(uniform, template, self.stock.material)
            if self._is_accepted(target, data):
                uniform()
        return target, data

    @staticmethod
    def _is_accepted(target: str, data: bytes) -> bool:
        decoder, _ = decode.DECODERS[target]
        try:
            return decoder(data) is not None
        except Exception:  # noqa: BLE001 - whatever it is, it is not accepted
            return False


def check_memory(target: str, data: bytes) -> None:
    """Whether a message costs no more memory than its bytes explain.

    Raises:
        Finding: it does.
    """
    tracemalloc.start()
    try:
        decode.try_one(target, data, thorough=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    allowed = _MEMORY_BYTES + _MEMORY_TIMES * len(data)
    require(peak <= allowed, f"too much memory: {peak} bytes for {len(data)}")


def run_input(target: str, data: bytes) -> None:
    """One input with every check.

    Raises:
        Finding: an oracle is broken.
    """
    for name, one in FORMATS:
        if name == target:
            one.check(data)
            return
    decode.try_one(target, data)
    decode.check_time(target, data)
    check_memory(target, data)


def shrink(target: str, data: bytes, kind: str) -> bytes:
    """A smaller input with a finding of the same kind."""

    def fails(candidate: bytes) -> bool:
        try:
            run_input(target, candidate)
        except Finding as finding:
            return finding.kind == kind
        return False

    size, budget = max(1, len(data) // 2), 4000
    while size:
        at, cut = 0, False
        while at < len(data) and budget:
            budget -= 1
            candidate = data[:at] + data[at + size :]
            if fails(candidate):
                data, cut = candidate, True
            else:
                at += size
        if not cut or not budget:
            size //= 2
        if not budget:
            break
    return data
