"""Which connector breaks which rule, by module of checks, and how one is put to the test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from adapter.conformance.kit.bench import Bench, Target
from adapter.conformance.kit.command import check
from adapter.conformance.kit.rules import RULES, Rule
from adapter.conformance.kit.verdict import Outcome, Verdict
from adapter.conformance.schedules.service import Service
from tests.adapter.conformance.kit import breakers, breakers_foreign, breakers_ours

#: Text of the rule to the class that breaks it.
OFFERS: Final = {
    "offers whole blocks and leaves one token": "Greedy",
    "offers nothing behind a match inside a block": "Ragged",
    "offers nothing without block reuse": "Careless",
    "answers a repeated query alike": "Fickle",
    "keeps salts and adapters apart": "Leaky",
}
LOADS: Final = {
    "what is offered stays loadable": "Bound",
    "writes only the load range": "Painter",
    "writes behind M": "Hasty",
    "loads are idempotent; stale or no metadata is fine": "Fragile",
    "needs no layer hooks": "Hooked",
    "answers equal those without a cache": "Bit",
    "loads a part of a prompt": "Whole",
}
SAVES: Final = {
    "saves only what was computed": "Eager",
    "saves generated blocks and later chunks": "Deaf",
    "keeps pages once, gives them back once": "Hoarding",
    "never publishes a recycled page": "Late",
    "forgets requests by itself": "Counting",
    "saves behind a ragged match": "Narrow",
    "outlives an idle executor": "Impatient",
}
HOOKS: Final = {
    "never blocks the executor": "Slow",
    "metadata pickles, and is small": "Heavy",
    "raises nothing when its server dies": "Loud",
    "does not wait for forwards": "Waiting",
    "comes up without a server": "Demanding",
    "supports attention data parallelism": "Old",
}
LAYOUTS: Final = {
    "skips missing pages, keeps groups apart": "Stray",
    "stores nothing that has left a window": "Ghost",
    "loads what is taken up of an offer": "Whole",
    "begins anew when replayed": "Stale",
    "begins anew after a reset": "Reset",
    "begins anew after a direct preemption": "Final",
    "reports each asynchronous load once": "Twice",
}
DEVICE: Final = {"sets the device in its own threads": "Unset"}
EPOCHS: Final = {
    "takes late, empty page lists": "Once",
    "keeps no process from ending": "Rooted",
    "serves every epoch": "Salty",
    "answers in the interface's types": "Loose",
    "takes pages it was not asked about": "Asked",
    "takes batches without requests": "Crowded",
    "has all of prefix reservations, or none": "Partial",
    "comes up behind an estimation of memory": "Premature",
    "ends cancelled loads": "Twice",
    "stores context-only requests": "Long",
}
IDENTITY: Final = {
    "keeps media apart": "Blind",
    "keeps models and formats apart": "Alias",
    "keeps instances apart": "Shared",
}
POOLS: Final = {
    "saves no rejected drafts": "Drafty",
    "takes pools it cannot export": "Exporting",
    "reads the shape of its pool": "Pair",
}
RANKS: Final = {
    "reports every id on every rank": "Echo",
    "serves unequal ranks of attention data parallelism": "Crowded",
    "starts loads twice in one iteration": "Single",
    "keeps degrees of parallelism apart": "Degree",
    "shares heads between ranks": "Dividing",
    "hits only what every rank holds": "Own",
    "what is offered stays loadable on every rank": "Bound",
}
SUITE: Final = {
    "random schedules, one rank": "Flipping",
    "random schedules, tensor parallel": "Flipping",
    "random schedules, attention data parallel": "Flipping",
}
ALL: Final = (
    OFFERS | LOADS | SAVES | HOOKS | LAYOUTS | DEVICE | EPOCHS | IDENTITY | POOLS | RANKS | SUITE
)

FOREIGN: Final = {"loads a part of a prompt"}
"""Rules whose breaker has a namesake of another rule among ours."""

BY_TEXT: Final[dict[str, Rule]] = {rule.text: rule for rule in RULES}


SOUND: Final = ((breakers_ours, "Kvkeep"), (breakers, "Sound"), (breakers_foreign, "Folder"))
"""Where breakers are, and what all else is there."""


@dataclass(frozen=True)
class Kit:
    """A model, a server and a folder for connectors of this folder."""

    model: Path
    service: Service
    folder: Path

    def bench(self, name: str, rule: str = "") -> Bench:
        """A bench for a connector; what it does not define is that of the sound one.

        Args:
            name: of its classes, without the kind.
            rule: what it is to break: of classes of one name, those beside that rule's count.
        """
        ours = [
            pair
            for pair in (reversed(SOUND) if rule in FOREIGN else SOUND)
            if any(hasattr(pair[0], f"{name}{kind}") for kind in ("Scheduler", "Worker"))
        ]
        module, sound = ours[0]
        names = [
            f"{name if hasattr(module, name + kind) else sound}{kind}"
            for kind in ("Scheduler", "Worker")
        ]
        if module is breakers_foreign:
            target = Target(module.__name__, names[0], names[1], f"folder://{self.folder}")
            return Bench(target, self.model, None, schedules=1)
        target = Target(module.__name__, names[0], names[1], self.service.url)
        return Bench(target, self.model, self.service, schedules=1)

    def verdict(self, text: str, name: str) -> Verdict:
        """What a rule finds of a connector; the server runs again afterwards."""
        try:
            return check(BY_TEXT[text], self.bench(name, text))
        finally:
            if self.service.child.process.poll() is not None:
                self.service.restart()

    def assert_blamed(self, text: str, name: str, why: str = "") -> None:
        """The rule sees the breach, and says why."""
        found = self.verdict(text, name)
        assert found.outcome is Outcome.BROKEN, found.evidence
        assert why in found.evidence

    def assert_not_blamed(self, text: str, name: str = "Sound") -> None:
        """The rule sees none."""
        found = self.verdict(text, name)
        assert found.outcome is not Outcome.BROKEN, found.evidence

    def assert_held(self, text: str, name: str) -> None:
        """The rule was put to the test, and held."""
        found = self.verdict(text, name)
        assert found.outcome is Outcome.HELD, found.evidence
