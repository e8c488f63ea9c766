"""What an engine on which nothing runs may not have left behind.

``of_host`` knows the host alone, so it holds for any connector; ``of_kvkeep`` looks at our server
and our adapter, too. Must not know: schedules, how engines are built. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from adapter.conformance.schedules.subject import Look

GAUGES: Final = ("leases", "pinned_slots", "slots_reserved", "stores", "copies_in_flight")
"""Values of the server that are 0 when no request is under way."""

HELD: Final = ("held_pages", "busy_saves", "ring_lots_lent")
"""Counters of the adapter that are 0 then. What a request that was cancelled without a callback had
named is forgotten in later iterations (host contract rule 12); it holds nothing."""

Leaks = Callable[[Sequence[Look]], list[str]]
"""From what each rank shows to what is left; empty when nothing is."""


def of_host(looks: Sequence[Look]) -> list[str]:
    """A dead executor, or pages that the host does not have back.

    Args:
        looks: one of each rank.
    """
    for rank, seen in enumerate(looks):
        if seen.died_of:
            return [f"rank {rank} died of {seen.died_of}"]
    return [
        f"rank {rank}: {seen.num_pages - seen.free_pages} pages of the host"
        for rank, seen in enumerate(looks)
        if seen.free_pages != seen.num_pages
    ]


def of_kvkeep(looks: Sequence[Look]) -> list[str]:
    """What ``of_host`` finds, and leases, pins, reservations, open stores and held pages.

    Args:
        looks: one of each rank; the first one's view of the server counts.
    """
    left = of_host(looks)
    if any(seen.died_of for seen in looks):
        return left
    server = looks[0].server
    if not server:
        return ["a server that does not answer"]
    gauges = {name: server.get(name, "missing") for name in GAUGES}
    left += [f"{name}={value}" for name, value in gauges.items() if value != 0]
    for rank, seen in enumerate(looks):
        left += [f"rank {rank}: {n}={seen.adapter[n]}" for n in HELD if seen.adapter.get(n)]
    return left
