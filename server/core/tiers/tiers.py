"""All tiers: who is asked what, and whose answer it is.

Purpose: the one face towards promotion, demotion and forgetting; answers of porters find their
tier by the job's number. A namespace that a tier is still to forget is neither read from it nor
written to it. Must not know: leases, plans, how a porter works. Runs in: the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import count
from typing import Any

from numpy.typing import NDArray

from protocol import codec
from protocol.ids import ID_BYTES, Fingerprint
from server.core.clock import Timers
from server.core.config import CoreConfig
from server.core.effects import JobId, TierId
from server.core.namespaces import Owner
from server.core.outbox import Outbox
from server.core.tiers.listed import Listed
from server.core.tiers.parts import Status
from server.core.tiers.tier import Tier

PUT_SHARE = 4
"""Writes on their way to all tiers together pin at most this part of the arena: what is written
cannot be evicted, and no STORE is to fail for that."""


class Tiers:
    """Every tier, in the order of asking.

    Args:
        config: settings.
        timers: stalls and check-ups.
        outbox: effects and counters.

    Attributes:
        tiers: every tier, in the order of asking; empty without lower tiers.
        refused: why a porter could not open its tier when that was last tried, as far as it could
            not.
        is_barred: whether a namespace is neither to be read from a tier nor written to it.
        opened: called with a tier that may be asked again.
        closed: called with a tier that is left alone from now on.
        stranded: called with a tier whose porter was killed and does not die.
    """

    def __init__(self, config: CoreConfig, timers: Timers, outbox: Outbox) -> None:
        jobs = count(1)
        share = config.arena_bytes // (PUT_SHARE * max(1, len(config.tiers)))
        self.tiers = [
            Tier(TierId(number), one, min(one.window_bytes // 2, share), timers, outbox, jobs)
            for number, one in enumerate(config.tiers)
        ]
        for tier in self.tiers:
            tier.changed = self._changed
        self.refused: dict[TierId, str] = {}
        self.is_barred: Callable[[Tier, Fingerprint], bool] = lambda tier, fingerprint: False
        self.opened: list[Callable[[Tier], None]] = []
        self.closed: list[Callable[[Tier], None]] = []
        self.stranded: list[Callable[[Tier], None]] = []

    def _changed(self, tier: Tier) -> None:
        for told in self.opened if tier.is_open else self.closed:
            told(tier)

    def readable(self, fingerprint: Fingerprint | None = None) -> list[Tier]:
        """Tiers that may be asked now, in order.

        Args:
            fingerprint: leave out those that are still to forget this namespace.
        """
        return [
            tier
            for tier in self.tiers
            if tier.is_open and (fingerprint is None or not self.is_barred(tier, fingerprint))
        ]

    # --- asking ---------------------------------------------------------------------------

    def probe(
        self, tier: Tier, owner: Owner, keys: bytes, ended: Callable[[int | None], None]
    ) -> None:
        """Asks how many leading chunks a tier has whole; a hint.

        Of a namespace with windows only one group of full attention is asked for: the windows'
        parts may well be absent far from a chain's end.

        Args:
            tier: which.
            owner: the namespace.
            keys: 16 bytes per chunk, at most MAX_KEYS.
            ended: told how many, None after any error; maybe before this returns.
        """
        if self.is_barred(tier, owner.fingerprint):
            ended(0)
            return
        first, shards = asked(owner.index.full)

        def over(statuses: bytes | None, number: int) -> None:
            ended(None if statuses is None else number)

        tier.probe(owner.fingerprint, keys, shards, over, first)

    def get(
        self,
        tier: Tier,
        owner: Owner,
        parts: NDArray[Any],
        num_bytes: int,
        ended: Callable[[bytes], None],
        flow: Hashable = None,
    ) -> None:
        """Has values read into reserved slots.

        Args:
            tier: which.
            owner: the namespace.
            parts: PART_DTYPE[n], at most MAX_PARTS.
            num_bytes: of all of them.
            ended: told a ``Status`` per part, once nothing of it touches the slots any more; maybe
                before this returns.
            flow: who waits for it; those who do take turns.
        """
        failed = bytes([Status.ERROR]) * len(parts)
        if self.is_barred(tier, owner.fingerprint):
            ended(failed)
            return

        def over(statuses: bytes | None, _: int) -> None:
            ended(statuses or failed)

        tier.get(owner.fingerprint, parts, num_bytes, over, flow)

    def put(
        self,
        tier: Tier,
        owner: Owner,
        parts: NDArray[Any],
        num_bytes: int,
        ended: Callable[[bytes], None],
    ) -> None:
        """Has published, pinned slots written; arguments as for ``get``."""
        failed = bytes([Status.ERROR]) * len(parts)
        if self.is_barred(tier, owner.fingerprint):
            ended(failed)
            return
        if owner.fingerprint not in tier.told:
            tier.keep(owner.fingerprint, codec.bytes_from_struct(owner.namespace))
        tier.put(owner.fingerprint, parts, num_bytes, lambda statuses, _: ended(statuses or failed))

    def touch(
        self, tier: Tier, owner: Owner, keys: bytes, ended: Callable[[bytes | None], None]
    ) -> None:
        """Tells a tier that chunks are used, and asks whether they are there.

        Args:
            tier: which.
            owner: the namespace.
            keys: 16 bytes per chunk, parents first; see ``server.core.effects.TierTouch``.
            ended: told a ``Status`` per part, None after any error; maybe before this returns.
        """
        if self.is_barred(tier, owner.fingerprint):
            ended(None)
            return
        num_parts = len(keys) // ID_BYTES * owner.num_shards

        def over(statuses: bytes | None, _: int) -> None:
            ended(statuses if statuses is not None and len(statuses) == num_parts else None)

        tier.touch(owner.fingerprint, keys, owner.num_shards, over)

    def drop(
        self,
        tier: Tier,
        fingerprint: Fingerprint,
        keys: bytes,
        shards: int,
        ended: Callable[[bool], None] = lambda is_done: None,
    ) -> None:
        """Has chunks forgotten; tried once.

        Args:
            tier: which.
            fingerprint: of the namespace.
            keys: 16 bytes per chunk, at most MAX_KEYS; empty for all of the namespace.
            shards: parts 0 to ``shards - 1`` of each go.
            ended: told whether they are; maybe before this returns.
        """
        tier.drop(fingerprint, keys, shards, lambda statuses, _: ended(statuses is not None))

    def list_there(
        self,
        tier: Tier,
        what: Listed,
        fingerprint: Fingerprint,
        ended: Callable[[bytes | None], None],
        shard: int = 0,
        most: int = 0,
    ) -> None:
        """Asks a tier what it has.

        Args:
            tier: which.
            what: see ``server.core.effects.TierList``, as for the rest.
            fingerprint: of the namespace, or zeros.
            ended: told what is listed, None where it cannot; maybe before this returns.
            shard: the part that stands for a chunk.
            most: chunks wanted.
        """
        tier.list_there(what, fingerprint, lambda listed, _: ended(listed), shard, most)

    # --- what porters say -----------------------------------------------------------------

    def _tier(self, number: TierId) -> Tier | None:
        return self.tiers[number] if 0 <= number < len(self.tiers) else None

    def porter_ready(self, number: TierId, used_bytes: int, capacity_bytes: int) -> None:
        """A tier's porter runs and has opened it."""
        tier = self._tier(number)
        self.refused.pop(number, None)
        if tier is not None:
            tier.ready(used_bytes, capacity_bytes)

    def porter_refused(self, number: TierId, why: str) -> None:
        """A tier's porter could not open it."""
        if self._tier(number) is not None:
            self.refused[number] = why

    def porter_said(self, number: TierId, text: str) -> None:
        """A tier's porter complained."""
        tier = self._tier(number)
        if tier is not None:
            tier.breaker.said(text)

    def porter_lost(self, number: TierId) -> None:
        """A tier's porter is gone."""
        tier = self._tier(number)
        if tier is not None:
            tier.lost()

    def porter_stuck(self, number: TierId, life: int) -> None:
        """A tier's porter was killed and does not die."""
        tier = self._tier(number)
        if tier is not None:
            tier.strand(life)
            for told in self.stranded:
                told(tier)

    def porter_gone(self, number: TierId, life: int) -> None:
        """A stuck porter is seen dead at last."""
        tier = self._tier(number)
        if tier is not None:
            tier.gone(life)

    def probed(self, job: JobId, number: int | None) -> None:
        """TierProbe was answered, None for an error; jobs nobody knows (any more) are ignored."""
        for tier in self.tiers:
            if job in tier.flying:
                tier.done(job, None if number is None else b"", number or 0)
                return

    def done(self, job: JobId, statuses: bytes | None) -> None:
        """What is neither a probe nor a check-up was answered, None for an error."""
        for tier in self.tiers:
            if job in tier.flying:
                tier.done(job, statuses)
                return

    def checked(
        self,
        job: JobId,
        is_well: bool,
        used_bytes: int,
        capacity_bytes: int,
        shares: dict[bytes, int],
        salts: dict[bytes, int],
        warning: str,
    ) -> None:
        """TierHealth was answered."""
        for tier in self.tiers:
            if job in tier.flying:
                tier.checked(job, is_well, used_bytes, capacity_bytes)
                if is_well:
                    tier.shares, tier.salts, tier.warning = shares, salts, warning
                return

    def moves(self, number: TierId) -> None:
        """A tier's porter gets on, though nothing has ended."""
        tier = self._tier(number)
        if tier is not None:
            tier.moves()

    def figures(self) -> dict[str, int]:
        """Gauges of all tiers."""
        values: dict[str, int] = {}
        for tier in self.tiers:
            values.update(tier.figures())
        return values


def asked(full: tuple[bool, ...]) -> tuple[int, int]:
    """First and number of the shards that stand for a chunk: the first row of full ones, or all."""
    if not any(full):
        return 0, len(full)
    first = full.index(True)
    rest = full[first:]
    return first, rest.index(False) if False in rest else len(rest)
