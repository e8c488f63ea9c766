"""Which prefixes LOOKUPs find most of late.

Purpose: a prefix is all chains with one first chunk. A LOOKUP only puts down which one it found;
what that comes to is worked out for many at once, and no more often than is cheap, so that a flood
of LOOKUPs is sampled. At most ``WATCHED`` prefixes are kept in mind: where there are more, the
seldom found make room (Misra and Gries' way), and what was found long ago counts ever less. Must
not know: keys beyond the first of a chain, tenants, messages but the row it fills in. Runs in: the
loop thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.ids import ID_BYTES, Fingerprint
from protocol.prefixes import HEAD_BYTES, MAX_PREFIXES, PrefixStatus
from server.core.clock import Clock
from server.core.config import SECOND_NS
from server.core.index import ABSENT
from server.core.namespaces import Owner

WATCHED = 64
"""Prefixes that are kept in mind."""

BATCH = 64
"""LOOKUPs that are looked at together."""

BATCH_EVERY_NS = 10_000_000
"""Of the LOOKUPs between two batches that fill up faster, the first ones stand for all."""

HALF_LIFE_S = 600.0
"""After so long a LOOKUP counts half for how hot a prefix is."""


@dataclass(slots=True)
class Found:
    """One prefix.

    Attributes:
        heat: LOOKUPs that found it, older ones for less.
        hits: the same, each for one.
        chunks: chunks that the last one found.
        used_ns: when that was.
    """

    heat: float = 0.0
    hits: float = 0.0
    chunks: int = 0
    used_ns: int = 0


class Heat:
    """The prefixes of all namespaces.

    Args:
        clock: current time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._recent: list[tuple[Fingerprint, bytes, int, int]] = []
        self._left_out = 0
        self._looked_ns = 0
        self._cooled_ns = 0
        self._found: dict[tuple[Fingerprint, bytes], Found] = {}

    def note(self, owner: Owner, start: int, keys: bytes, count: int) -> None:
        """A LOOKUP found chunks.

        Args:
            owner: the namespace.
            start: ordinal of the first chunk it asked for; others than 0 do not tell which prefix.
            keys: of the chunks it asked for.
            count: chunks that it found, at least one.
        """
        if start:
            return
        now_ns = self._clock.now_ns
        recent = self._recent
        if len(recent) >= BATCH:
            if now_ns - self._looked_ns < BATCH_EVERY_NS:
                self._left_out += 1
                return
            self._look(now_ns)
            recent = self._recent
        recent.append((owner.fingerprint, keys[:ID_BYTES], count, now_ns))

    def _look(self, now_ns: int) -> None:
        """Takes in what was put down."""
        recent, self._recent = self._recent, []
        weight = (len(recent) + self._left_out) / len(recent) if recent else 1.0
        self._left_out, self._looked_ns = 0, now_ns
        self._cool(now_ns)
        found = self._found
        for fingerprint, head, count, at_ns in recent:
            one = found.get((fingerprint, head))
            if one is None:
                one = found[fingerprint, head] = Found()
            one.heat += weight
            one.hits += weight
            one.chunks = count
            one.used_ns = at_ns
        if len(found) > WATCHED:
            self._narrow()

    def _cool(self, now_ns: int) -> None:
        passed_ns = now_ns - self._cooled_ns
        if passed_ns < SECOND_NS:
            return
        self._cooled_ns = now_ns
        factor = 0.5 ** (passed_ns / SECOND_NS / HALF_LIFE_S)
        for one in self._found.values():
            one.heat *= factor

    def _narrow(self) -> None:
        """Lets the coldest go; the others lose as much heat, so that newcomers get a chance.

        Of those that are equally hot the last found stay.
        """
        ranked = sorted(self._found.items(), key=_rank, reverse=True)
        most = ranked[WATCHED][1].heat
        self._found = dict(ranked[:WATCHED])
        for one in self._found.values():
            one.heat -= most

    def hottest(self, owners: Mapping[Fingerprint, Owner]) -> tuple[PrefixStatus, ...]:
        """The hottest prefixes of which L1 holds something, the hottest first.

        Args:
            owners: namespaces that are there.
        """
        now_ns = self._clock.now_ns
        self._look(now_ns)
        for name in [name for name in self._found if not _is_held(owners, *name)]:
            del self._found[name]
        shown = sorted(self._found.items(), key=_rank, reverse=True)
        return tuple(
            PrefixStatus(
                fingerprint=fingerprint,
                head=head[:HEAD_BYTES],
                chunks=one.chunks,
                hits=round(one.hits),
                idle_s=max(0, now_ns - one.used_ns) / SECOND_NS,
            )
            for (fingerprint, head), one in shown[:MAX_PREFIXES]
        )


def _rank(named: tuple[tuple[Fingerprint, bytes], Found]) -> tuple[float, int]:
    return named[1].heat, named[1].used_ns


def _is_held(owners: Mapping[Fingerprint, Owner], fingerprint: Fingerprint, head: bytes) -> bool:
    owner = owners.get(fingerprint)
    return owner is not None and owner.index.find(head) != ABSENT
