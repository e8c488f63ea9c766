"""What a chaos run does to its processes and when: a pure function of its seed.

Each kind of event comes at its own rate, one in each stretch of time, at a random moment of it, so
that a run of any length has the number its rate promises. Server deaths end with the first part of
the run: what grows in a server can only be seen in one that lives. Must not know: processes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

WARM_UP_S: Final = 6.0
COOL_DOWN_S: Final = 6.0
QUIET_SHARE: Final = 0.27
"""Last part of a run, in which no server dies: its last incarnation is watched."""


@dataclass(frozen=True)
class Rate:
    """How often something happens.

    Attributes:
        per_minute: of the whole run.
        seconds: shortest and longest duration, where it has one.
        is_early: whether it ends with the first part of the run.
    """

    per_minute: float
    seconds: tuple[float, float] = (0.0, 0.0)
    is_early: bool = False


RATES: Final[Mapping[str, Rate]] = {
    "kill_engine": Rate(7.0),
    "kill_engine_at_a_point": Rate(1.0),
    "kill_server": Rate(2.0, (0.0, 1.2), is_early=True),
    "kill_server_twice": Rate(0.2, (0.05, 0.9), is_early=True),
    "kill_server_past_stopped_engine": Rate(0.6, (2.0, 6.0), is_early=True),
    "end_server": Rate(0.4, (0.0, 0.8), is_early=True),
    "kill_copier": Rate(2.0),
    "stop_engine": Rate(2.5, (0.1, 4.0)),
    "stop_engine_with_offer": Rate(1.5, (0.1, 4.0)),
    "stop_copier": Rate(1.5, (0.1, 3.0)),
    "wedge_copier": Rate(0.2, (11.0, 13.0)),
    "stop_server": Rate(1.0, (0.1, 3.0)),
    "drop_side": Rate(2.0),
    "drop_wire": Rate(3.0),
    "hide_sockets": Rate(0.7, (0.1, 2.0)),
}
"""By kind. A server's ``seconds`` is the time until the next one is started, or, past a stopped
engine, how long the engine stays stopped. Of a rate's broken part the seed decides, so the whole
parts of the two kills alone must make up what a run has to have, however short it is."""


TIER_RATES: Final[Mapping[str, Rate]] = {
    "kill_porter": Rate(2.0),
    "stop_porter": Rate(1.5, (0.1, 3.0)),
    "wedge_porter": Rate(0.2, (11.0, 13.0)),
}
"""What comes on top where the server has lower tiers: each has a process of its own, its porter."""


@dataclass(frozen=True)
class Script:
    """What kind of run it is.

    Attributes:
        rates: by kind of event.
        arenas: sizes, of which each restart of the server draws one.
        full_arena: size of the first server's arena and of the last one's.
        extent: size of its extents.
        fresh: share of prompts that begin like no other.
        again: share of prompts that repeat one that the same engine asked not long ago.
        roles: who plays, by name; empty for the whole cast.
    """

    rates: Mapping[str, Rate]
    arenas: tuple[str, ...]
    full_arena: str
    extent: str = "1M"
    fresh: float = 0.06
    again: float = 0.08
    roles: tuple[str, ...] = ()


EVERYTHING: Final = Script(RATES, ("36M", "36M", "18M", "36M", "10M", "48M", "24M"), "36M")

TIERED: Final = Script(
    {**RATES, **TIER_RATES}, ("18M", "10M", "14M", "24M", "8M", "36M", "12M"), "12M"
)
"""Porters are hit, too, and arenas are smaller, so that hits come from below. Everything else of a
seed is as without tiers."""

RESTARTS: Final = Script(
    {"kill_server_past_stopped_engine": Rate(9.0, (4.0, 5.0))},
    arenas=("1M",),
    full_arena="1M",
    extent="256K",
    fresh=0.5,
    again=0.4,
    roles=("one", "other"),
)
"""Only servers that die past a stopped engine with an offer, and hardly any room: the next one
wants to reuse what that engine is about to read, and nobody else asks for it."""

SCRIPTS: Final = {"everything": EVERYTHING, "restarts": RESTARTS}


def with_tiers(script: Script) -> Script:
    """The kind of run that it is where the server has lower tiers."""
    return TIERED if script is EVERYTHING else script


@dataclass(frozen=True)
class Event:
    """One thing to do.

    Attributes:
        at_s: since the run began.
        kind: one of ``RATES``.
        target: chooses among whatever can be hit then, modulo their number.
        seconds: duration.
        arena: size of the next server's arena, where one is started.
    """

    at_s: float
    kind: str
    target: int
    seconds: float = 0.0
    arena: str = ""


def draw(seed: int, length_s: float, script: Script = EVERYTHING) -> list[Event]:
    """The events of a run.

    Args:
        seed: any integer.
        length_s: of the run.
        script: kind of run.

    Returns:
        In order of time.
    """
    events: list[Event] = []
    for kind, rate in script.rates.items():
        rng = random.Random(f"chaos {seed} {kind}")
        end_s = length_s * (1 - QUIET_SHARE) if rate.is_early else length_s - COOL_DOWN_S
        begin_s = min(WARM_UP_S, end_s / 4)
        whole, rest = divmod(rate.per_minute * length_s / 60, 1)
        count = int(whole) + (rng.random() < rest)
        for number in range(count):
            at_s = begin_s + (end_s - begin_s) * (number + rng.random()) / count
            target, seconds = rng.randrange(1 << 16), rng.uniform(*rate.seconds)
            events.append(Event(at_s, kind, target, seconds, rng.choice(script.arenas)))
    return _with_full_arena_at_last(sorted(events, key=lambda event: event.at_s), script)


def restarts_server(kind: str) -> bool:
    """Whether the next server is another incarnation."""
    return kind in (
        "kill_server",
        "kill_server_twice",
        "kill_server_past_stopped_engine",
        "end_server",
    )


def _with_full_arena_at_last(events: list[Event], script: Script) -> list[Event]:
    """The incarnation that is watched has the room it should have."""
    for number in range(len(events) - 1, -1, -1):
        event = events[number]
        if restarts_server(event.kind):
            events[number] = replace(event, arena=script.full_arena)
            break
    return events
