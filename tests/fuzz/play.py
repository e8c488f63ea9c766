"""Plays sequences against a core and judges them.

Knows how a sequence begins and ends. Runs in the fuzzer's process.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.fuzz import deaths, samples
from tests.fuzz.clients import Clients
from tests.fuzz.drawing import config_of, draw_steps, open_below
from tests.fuzz.finding import Finding, require
from tests.fuzz.grammar import Step
from tests.fuzz.mutate import Material
from tests.fuzz.rebirth import party_gone
from tests.fuzz.tight import Tight
from tests.fuzz.truth import SECOND, Truth
from tests.fuzz.verbs import Verbs

LEAST_MESSAGES = 20
STEPS = 20
AUDIT_SHARE = 0.03
"""Share of steps after which the core's books are checked; all of them are at the end."""

_ENDED = (
    "sessions",
    "instances",
    "leases",
    "stores",
    "replies_owed",
    "copies_in_flight",
    "slots_reserved",
    "pinned_slots",
    "processes",
    "connections",
    "parties_awaited",
    "arena_quarantined_bytes",
    "prefetches_waiting",
    "promotions_running",
)


@dataclass
class Counts:
    """What a run of sequences did.

    Attributes:
        sequences: played.
        messages: frames sent.
        served: of those, how many reached a handler.
        fewest: messages of the shortest sequence.
        answers: replies by operation and code.
    """

    sequences: int = 0
    messages: int = 0
    served: int = 0
    fewest: int = 1 << 30
    answers: dict[str, int] = field(default_factory=dict)


class SequenceFuzz:
    """The sequence fuzzer.

    Args:
        seed: repeats it.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.counts = Counts()
        self._tight = Tight()
        self._stock = Material.of(samples.templates(), samples.bounds())

    def steps(self, number: int) -> list[Step]:
        """The steps of one sequence, made again."""
        draw = random.Random(f"{self.seed}/{number}")
        return draw_steps(draw, STEPS)

    def one(self, number: int) -> None:
        """Plays one sequence.

        Raises:
            Finding: an oracle is broken.
        """
        self.play(self.steps(number), LEAST_MESSAGES)

    def play(self, steps: list[Step], least: int = 0) -> None:
        """Plays steps to their end.

        Args:
            steps: any.
            least: PINGs are added until so many messages were sent.

        Raises:
            Finding: an oracle is broken.
        """
        begin = steps[0] if steps and steps[0].verb == "begin" else Step("begin", 0, 0, 0, 0, 0)
        self._tight.switch(bool(begin.a & 1))
        try:
            self._play(begin, steps, least)
        except Finding:
            raise
        except Exception as error:
            raise Finding(f"an error out of the core: {type(error).__name__}: {error}") from error
        finally:
            self._tight.switch(False)

    def _play(self, begin: Step, steps: list[Step], least: int) -> None:
        truth = Truth(config_of(begin), begin.x, lazy=begin.a % 3 == 0)
        clients = Clients(truth)
        open_below(truth.below, begin)
        verbs = Verbs(clients, self._stock)
        slices = (100_000, 1, 3)[begin.a // 2 % 3]
        audits = random.Random(begin.x)
        for step in steps:
            if step.verb == "begin":
                continue
            truth.now_ns += 1000
            getattr(verbs, step.verb)(step)
            truth.settle(slices)
            if audits.random() < AUDIT_SHARE:
                truth.audit()
        padding = 0
        while clients.frames < least:
            verbs.operate(Step("operate", padding, 32, 0, 0, padding))
            verbs.join(Step("join", padding, padding, 0, 0, 0))
            padding += 1
        self._end(truth, clients, verbs)
        self._count(clients)

    def _end(self, truth: Truth, clients: Clients, verbs: Verbs) -> None:
        """All is answered in time, and with the last process nothing is held for anybody."""
        truth.lazy = False
        truth.below.recover()
        deaths.stuck_dies(truth)
        while truth.former:
            party_gone(truth, 0)
        truth.settle()
        truth.audit()
        for _ in range(3):
            truth.now_ns += 3700 * SECOND
            truth.core.tick(truth.now_ns)
            truth.settle()
        clients.check_nothing_owed()
        truth.audit()
        for process in verbs.alive():
            clients.exit(process)
            truth.settle()
        truth.settle()
        truth.audit()
        require(truth.core.accounted_bytes() >= 0, "memory: less than nothing")
        stats = truth.core.stats()
        for name in _ENDED:
            require(stats[name] == 0, f"left behind: {name} {stats[name]}")
        require(truth.core.drained(), "left behind: the core is not at rest")
        require(not truth.jobs and not truth.claims, "left behind: copies or claims")
        truth.below.check_rest()

    def _count(self, clients: Clients) -> None:
        counts = self.counts
        counts.sequences += 1
        counts.messages += clients.frames
        counts.served += clients.served
        counts.fewest = min(counts.fewest, clients.frames)
        for (op, code), number in clients.answers.items():
            name = f"{op}/{code}"
            counts.answers[name] = counts.answers.get(name, 0) + number


def shrink(fuzz: SequenceFuzz, steps: list[Step], kind: str) -> list[Step]:
    """Fewer and plainer steps with a finding of the same kind.

    Args:
        fuzz: plays them.
        steps: with a finding.
        kind: of the finding.
    """

    def fails(candidate: list[Step]) -> bool:
        try:
            fuzz.play(candidate)
        except Finding as finding:
            return finding.kind == kind
        return False

    size, budget = max(1, len(steps) // 2), 400
    while size and budget > 0:
        at, cut = 0, False
        while at < len(steps) and budget > 0:
            budget -= 1
            candidate = steps[:at] + steps[at + size :]
            if fails(candidate):
                steps, cut = candidate, True
            else:
                at += size
        if not cut:
            size //= 2
    for at, step in enumerate(steps):
        plain = [*steps[:at], step._replace(m=0), *steps[at + 1 :]]
        if step.m and fails(plain):
            steps = plain
    return steps
