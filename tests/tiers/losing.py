"""A server and an engine while the store below them is lost or full: how long anything takes.

Every chunk that comes is compared. What is measured is printed, as ``tests.slow`` reads it. Knows
the wire and the counters of STATS. Runs in the pytest process.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from tests.tiers.rig import CHAIN, PAGE_BYTES, TierEngine, chains, counters
from tests.tiers.stores import Loss
from tests.wire.process import ServerProcess, wait_until

DEADLINE_S = 1.0
DEADLINE = ("--promote-deadline", f"{DEADLINE_S}s")
SLACK_S = 0.5
"""For two busy cores."""

LOST_S = 12.0
"""Long enough for breakers, for a porter that is caught to be ended, for others to notice."""

HEAL_S = 60.0
IN_L1 = 4
"""Chains that L1 has room for, at most."""


@dataclass(frozen=True)
class Times:
    """What a loss cost.

    Attributes:
        lookups: of chains that L1 did not have, while the store was lost.
        longest_s: the longest of them, with reading what came.
        longest_l1_s: the same of a chain that L1 had all the time.
        noticed_s: until the tier was left alone, None where it never was.
        back_s: from the store's return until a chain was written to it again.
    """

    lookups: int
    longest_s: float
    longest_l1_s: float
    noticed_s: float | None
    back_s: float

    def tell(self, case: str) -> None:
        """Prints the figures."""
        rounded = {
            name: round(value, 2) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }
        print(f"{case} {rounded}")


def is_up(server: ServerProcess, tier: str) -> bool:
    """Whether a tier may be asked now."""
    return counters(server).get(f"tier_{tier}_up") == 1


def put_bytes(server: ServerProcess, tier: str) -> int:
    """What was written to a tier."""
    return counters(server).get(f"tier_{tier}_put_bytes", 0)


def hit_chunks(server: ServerProcess, tier: str) -> int:
    """What a tier brought."""
    return counters(server).get(f"tier_{tier}_hit_chunks", 0)


def is_idle(server: ServerProcess, tier: str) -> bool:
    """Whether nothing is on its way to a tier, and nobody has anything of L1."""
    found = counters(server)
    return not (found["pinned_slots"] or found[f"tier_{tier}_puts_waiting"])


def through(
    server: ServerProcess, engine: TierEngine, tier: str, loss: Loss, working_set: list[list[bytes]]
) -> Times:
    """A store is lost for a while and comes back; the engine asks all the time.

    Args:
        server: whose tier the store is.
        engine: of that server.
        tier: its name.
        loss: what happens.
        working_set: the store has all of it, L1 a quarter at most; its first chain is in use.
    """
    held = engine.look(working_set[0])  # not released: what waits for the store takes all else
    assert held.ready == CHAIN
    loss.begin()
    begun = time.monotonic()
    longest_s = longest_l1_s = 0.0
    noticed_s: float | None = None
    lookups = 0
    while time.monotonic() - begun < LOST_S:
        took_s, _ = _timed(engine, working_set[1 + lookups % (len(working_set) - 1)])
        longest_s, lookups = max(longest_s, took_s), lookups + 1
        took_s, found = _timed(engine, working_set[0])
        assert found == CHAIN, "what L1 holds is served"
        longest_l1_s = max(longest_l1_s, took_s)
        if noticed_s is None and not is_up(server, tier):
            noticed_s = time.monotonic() - begun
        time.sleep(0.05)
    loss.end()
    engine.release(held.lease)
    back_s = written_again(server, engine, tier)
    return Times(lookups, longest_s, longest_l1_s, noticed_s, back_s)


def _timed(engine: TierEngine, keys: list[bytes]) -> tuple[float, int]:
    begun = time.monotonic()
    found = engine.fetch(keys)
    return time.monotonic() - begun, found


def written_again(
    server: ServerProcess, engine: TierEngine, tier: str, keeps: bool = True
) -> float:
    """Waits until a tier takes chains again, and then has it give one back.

    Args:
        server: whose tier it is.
        engine: of that server.
        tier: its name.
        keeps: what it took it has a moment later; not so where it evicts what it likes.

    Returns:
        Seconds until it took one.
    """
    begun = time.monotonic()
    assert wait_until(lambda: is_up(server, tier), HEAL_S, 0.05), counters(server)
    fresh = iter(chains(400, seed=3))
    taken: list[list[bytes]] = []

    def takes_one() -> bool:
        keys, before = next(fresh), put_bytes(server, tier)
        engine.keep(keys)
        wanted = before + CHAIN * PAGE_BYTES
        if wait_until(lambda: put_bytes(server, tier) >= wanted, 3.0, 0.02):
            taken.append(keys)
        return bool(taken)

    assert wait_until(takes_one, HEAL_S, 0.2), counters(server)
    took_s = time.monotonic() - begun
    if not keeps:
        return took_s
    for _ in range(IN_L1 + 1):  # L1 lets go of it
        engine.keep(next(fresh))
        assert wait_until(lambda: is_idle(server, tier), HEAL_S, 0.02), counters(server)
    before = hit_chunks(server, tier)
    assert engine.fetch(taken[0]) == CHAIN
    assert hit_chunks(server, tier) > before
    return took_s


@dataclass(frozen=True)
class Filled:
    """What became of more than a store has room for.

    Attributes:
        found: chunks of each chain that came back.
        longest_s: the longest lookup.
    """

    found: list[int]
    longest_s: float

    def tell(self, case: str, back_s: float) -> None:
        """Prints the figures."""
        rounded = {
            "chunks": CHAIN * len(self.found),
            "found": sum(self.found),
            "longest_s": round(self.longest_s, 2),
            "back_s": round(back_s, 2),
        }
        print(f"{case} {rounded}")


def overfill(
    server: ServerProcess,
    engine: TierEngine,
    tier: str,
    everything: list[list[bytes]],
    refuses: bool = False,
) -> Filled:
    """Saves more than a store has room for, and asks for all of it.

    Args:
        server: whose tier the store is.
        engine: of that server.
        tier: its name.
        everything: what is saved; L1 keeps but the last of it.
        refuses: the store takes no more once it is full; then only some more is tried.
    """
    saved: list[list[bytes]] = []
    full_at = len(everything)

    def is_full() -> bool:
        return refuses and counters(server).get(f"tier_{tier}_no_room", 0) > 0

    for number, keys in enumerate(everything):
        engine.keep(keys)
        saved.append(keys)
        # A store that refuses is tried again ever more rarely: that is not waited for.
        assert wait_until(lambda: is_full() or is_idle(server, tier), 30.0, 0.01), counters(server)
        full_at = min(full_at, number) if is_full() else full_at
        if number == full_at + 2 * IN_L1:
            break
    found, longest_s = [], 0.0
    for keys in saved:
        took_s, number = _timed(engine, keys)
        found.append(number)
        longest_s = max(longest_s, took_s)
    told = counters(server)
    print({name: value for name, value in told.items() if "tier_" in name or "miss_" in name})
    return Filled(found, longest_s)
