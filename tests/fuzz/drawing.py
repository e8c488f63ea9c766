"""How a sequence is drawn: its server, engines, then any verbs, each as often as it is worth.

Knows the verbs by name only. Runs in the fuzzer's process.
"""

from __future__ import annotations

import random

from server.core.config import CoreConfig, TierConfig
from server.core.tiers.policy import Policy
from tests.fuzz.below import Below
from tests.fuzz.grammar import Step
from tests.server.core.world import PAGE

POLICIES = (Policy.WRITE_THROUGH, Policy.ON_EVICT, Policy.AFTER_USES, Policy.NONE)


def config_of(step: Step) -> CoreConfig:
    """A small server; every other one has small limits as well."""
    extents = 4 + step.b % 14
    extent = 2 * PAGE + (3 + step.c % 8) * PAGE
    tight = step.a & 1
    return CoreConfig(
        arena_bytes=extents * extent,
        extent_bytes=extent,
        side_path="/run/x.side",
        copy_window_bytes=(4 + step.c % 8) * PAGE,
        copy_piece_bytes=(1 + step.c % 3) * PAGE,
        max_processes=5 if tight else 64,
        max_pools_per_process=2 if tight else 16,
        max_sessions_per_process=2 if tight else 16,
        max_namespaces=3 if tight else 256,
        max_pins=2 if tight else 64,
        max_leased_slots_per_instance=24 if tight else 1 << 20,
        tiers=tiers_of(step),
        promote_piece_bytes=(1 + step.c % 3) * PAGE,
    )


def tiers_of(step: Step) -> tuple[TierConfig, ...]:
    """The lower tiers of that server: none, one or two."""
    bits = step.c // 24
    window = (6, 24)[bits % 2] * PAGE
    kinds = POLICIES[bits // 2 % 4], POLICIES[bits // 8 % 4]
    return tuple(
        TierConfig(
            "ab"[number],
            kinds[number],
            uses=1,
            window_bytes=window,
            shared_bytes=0 if number else 24 * PAGE,
        )
        for number in range((0, 1, 2)[step.b // 14 % 3])
    )


def open_below(below: Below, step: Step) -> None:
    """Starts that server's porters: prompt ones or lazy ones, good ones or bad ones."""
    below.open(step.a // 6 % 2 == 0, (0.0, 0.05, 0.3)[step.a // 12 % 3], step.x)


WEIGHTS: dict[str, int] = {
    "engine": 5,
    "join": 2,
    "register": 5,
    "unregister": 3,
    "greet": 2,
    "quiet": 2,
    "exit": 3,
    "drop": 1,
    "report": 5,
    "lookup": 10,
    "query": 2,
    "retrieve": 9,
    "load": 10,
    "release": 9,
    "end": 4,
    "heartbeat": 3,
    "store": 12,
    "commit": 9,
    "cancel": 5,
    "save": 10,
    "operate": 11,
    "quota": 4,
    "follow": 4,
    "copy": 4,
    "act": 3,
    "work": 4,
    "finish": 5,
    "time": 3,
    "copier": 2,
    "restart": 2,
    "party": 2,
    "drain": 1,
}
TIER_WEIGHTS: dict[str, int] = {
    "fill": 6,
    "want": 16,
    "wait": 6,
    "warm": 8,
    "porter": 8,
    "reply": 10,
    "serve": 5,
    "spoil": 4,
    "wipe": 4,
}
"""Beside the others, of servers that have tiers."""


def draw_steps(draw: random.Random, count: int) -> list[Step]:
    """A sequence: how its server is set up, engines, then anything.

    Args:
        draw: makes the choices.
        count: steps after the beginning.
    """

    def numbers() -> tuple[int, int, int]:
        bits = draw.getrandbits(48)
        return bits & 0xFFFF, bits >> 16 & 0xFFFF, bits >> 32

    steps = [Step("begin", *numbers(), 0, draw.getrandbits(31))]
    weights = {**WEIGHTS, **TIER_WEIGHTS} if tiers_of(steps[0]) else WEIGHTS
    verbs, shares = list(weights), list(weights.values())
    for verb in ("engine", "engine", "save", "load", *("engine",) * draw.randrange(2)):
        steps += [Step(verb, *numbers(), 0, draw.getrandbits(31))]
    for verb in draw.choices(verbs, shares, k=count):
        spoilt = int(draw.random() * 100)
        steps.append(Step(verb, *numbers(), spoilt, draw.getrandbits(31)))
    return steps
