"""Combinations that together cover every legal pair of values.

Greedy and deterministic: the next combination is, of all legal ones, the one that covers most pairs
that are not covered yet; ties go to the cheaper one (fewer processes), then to the first in order.
A pair is legal when some legal combination holds it. Must not know: how combinations are run.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Final

from adapter.conformance.coverage.dimensions import DIMENSIONS, Combination
from adapter.conformance.coverage.rules import Rule, broken_by, is_legal

Pair = tuple[str, str, str, str]
"""First dimension, its value, second dimension, its value; dimensions in their order."""

_COST: Final = {"1": 0, "tp2": 1, "adp2": 1, "tp4": 2}


@cache
def legal_combinations() -> tuple[Combination, ...]:
    """Every combination a host can have, in order."""
    every = itertools.product(*(dimension.names for dimension in DIMENSIONS))
    return tuple(c for c in (Combination(*values) for values in every) if is_legal(c))


def pairs_of(combination: Combination) -> frozenset[Pair]:
    """The pairs of values that a combination holds."""
    names = [dimension.name for dimension in DIMENSIONS]
    return frozenset(
        (one, combination.value(one), other, combination.value(other))
        for one, other in itertools.combinations(names, 2)
    )


def all_pairs() -> tuple[Pair, ...]:
    """Every pair of values of two dimensions, possible or not."""
    return tuple(
        (one.name, first, other.name, second)
        for one, other in itertools.combinations(DIMENSIONS, 2)
        for first in one.names
        for second in other.names
    )


@cache
def legal_pairs() -> frozenset[Pair]:
    """Pairs that some legal combination holds."""
    return frozenset().union(*(pairs_of(one) for one in legal_combinations()))


def why_illegal(pair: Pair) -> Rule:
    """The rule behind a pair that cannot be.

    Args:
        pair: not one of ``legal_pairs``.

    Raises:
        LookupError: it is legal, or no single rule names it.
    """
    one, first, other, second = pair
    rule = broken_by({one: first, other: second})
    if rule is None or pair in legal_pairs():
        raise LookupError(f"no rule forbids {pair}")
    return rule


@cache
def combinations() -> tuple[Combination, ...]:
    """A small set of legal combinations that covers every legal pair."""
    candidates = [(one, pairs_of(one)) for one in legal_combinations()]
    missing = set(legal_pairs())
    chosen: list[Combination] = []
    while missing:
        best, held = max(
            candidates, key=lambda entry: (len(entry[1] & missing), -_COST[entry[0].ranks])
        )
        chosen.append(best)
        missing -= held
    return tuple(sorted(chosen, key=lambda one: (one.ranks, one.epoch, one.test_id)))


@cache
def sample() -> tuple[Combination, ...]:
    """A few of the combinations that hold each value but four ranks; most have one process."""
    values = {(dimension.name, name) for dimension in DIMENSIONS for name in dimension.names}
    chosen: list[Combination] = []
    for ranks in (name for name, cost in _COST.items() if cost < 2):
        candidates = [(one, _values_of(one)) for one in combinations() if one.ranks == ranks]
        able = frozenset().union(*(held for _, held in candidates))
        missing = (values & able).difference(*map(_values_of, chosen))
        while missing:
            best, held = max(candidates, key=lambda entry: len(entry[1] & missing))
            chosen.append(best)
            missing -= held
    return tuple(chosen)


def _values_of(combination: Combination) -> frozenset[tuple[str, str]]:
    return frozenset(vars(combination).items())
