"""Random schedules over the combinations of docs/trtllm.md, with the connector under test.

A rule per kind of engine: one rank, tensor parallel, attention data parallel. Combinations that
differ in kvkeep's load modes alone are one to any other connector. An engine that does not come up
is refused by its connector, which is told and no breach. Runs in the kit's main thread.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from adapter.conformance.coverage.combine import combinations, sample
from adapter.conformance.coverage.dimensions import Combination
from adapter.conformance.kit.bench import Bench
from adapter.conformance.kit.verdict import (
    NO_ADP,
    NO_LOAD,
    Verdict,
    broken,
    held,
    shortened,
    unseen,
)
from adapter.conformance.schedules.play import NothingLoadedError, PlayError, Tally
from adapter.conformance.schedules.sweep import Sweep

_SHOWN: Final = 3
_SHOWN_CHARS: Final = 120
_WRONG_CHARS: Final = 600
_MAX_REFUSED: Final = 4
"""Engines that do not come up before it is given up, per schedule that is wanted."""


@dataclass
class Played:
    """What became of some combinations, by their ids.

    Attributes:
        engines: that came up.
        tally: of all.
        refused: whose engine did not come up, and why.
        idle: which answered rightly and never loaded anything.
        wrong: what was wrong.
    """

    engines: int = 0
    tally: Tally = field(default_factory=Tally)
    refused: dict[str, str] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def plays_alone(bench: Bench) -> Verdict:
    """One rank: epochs, lifecycles, layouts, and kvkeep's load modes."""
    return _verdict(bench, ("1",))


def plays_tensor_parallel(bench: Bench) -> Verdict:
    """Two ranks or four that answer together."""
    return _verdict(bench, ("tp2", "tp4"))


def plays_attention_dp(bench: Bench) -> Verdict:
    """Two ranks with requests of their own."""
    if not (bench.is_ours or all(bench.opted_into_attention_dp())):
        return unseen(NO_ADP)
    return _verdict(bench, ("adp2",))


def chosen(ranks: Sequence[str], is_ours: bool, seed: int) -> list[Combination]:
    """All combinations of some engines, a few that together hold most values first.

    Args:
        ranks: which kinds of engines.
        is_ours: whether load modes mean anything to the connector.
        seed: of the order in which they are taken.
    """
    rng = random.Random(f"suite {seed}")
    first = [one for one in sample() if one.ranks in ranks]
    rest = [one for one in combinations() if one.ranks in ranks and one not in first]
    rng.shuffle(first)
    rng.shuffle(rest)
    rest.sort(key=lambda one: one.ranks == "tp4")
    found: dict[Combination, Combination] = {}
    for one in (*first, *rest):
        found.setdefault(one if is_ours else replace(one, mode="auto"), one)
    return list(found.values())


def _verdict(bench: Bench, ranks: Sequence[str]) -> Verdict:
    # Several processes each: half as many.
    count = bench.schedules if ranks == ("1",) else -(-bench.schedules // 2)
    played = _play(bench, chosen(ranks, bench.is_ours, bench.seed), count)
    if played.wrong:
        return broken(shortened(f"seed {bench.seed}: {'; '.join(played.wrong)}", _WRONG_CHARS))
    tally = played.tally
    told = [
        f"seed {bench.seed}: {played.engines} combinations, {tally.schedules} schedules, "
        f"{tally.compared} answers equal, {tally.cancelled} cancelled, "
        f"{tally.loaded_tokens} of {tally.prompt_tokens} tokens loaded"
    ]
    if played.refused:
        some = "; ".join(f"{one} ({why})" for one, why in list(played.refused.items())[:_SHOWN])
        told.append(f"{len(played.refused)} refused: {some}")
    if played.idle:
        some = ", ".join(played.idle[:_SHOWN])
        told.append(f"{len(played.idle)} in which nothing was loaded: {some}")
    if played.refused and not played.engines:
        return unseen(". ".join(told))  # a server has no part in it
    if not tally.loaded_tokens:
        return unseen(". ".join([*told, NO_LOAD]))
    return held(". ".join(told))


def _play(bench: Bench, every: Sequence[Combination], count: int) -> Played:
    played = Played()
    per_engine, most = max(1, count // len(every)), _MAX_REFUSED * count
    with Sweep(bench.sweep_url, bench.models, connector=bench.sweep_connector) as sweep:
        for number, combination in enumerate(every):
            if played.engines * per_engine >= count or len(played.refused) >= most:
                break
            first = bench.seed + number * 1_000_003
            _play_one(bench, sweep, combination, range(first, first + per_engine), played)
    return played


def _play_one(
    bench: Bench, sweep: Sweep, combination: Combination, seeds: range, played: Played
) -> None:
    name, before = combination.test_id, played.tally.requests
    try:
        sweep.run(combination, seeds, played.tally)
    except NothingLoadedError:
        played.idle.append(name)
    except PlayError as error:
        played.wrong.append(str(error))
    except Exception as error:  # noqa: BLE001 - whatever a connector raises at bring-up
        is_late = played.tally.requests > before
        if not (bench.is_ours or is_late):
            played.refused[name] = shortened(str(error), _SHOWN_CHARS)
            return
        played.wrong.append(f"{name}: {error!r}")
    played.engines += 1
