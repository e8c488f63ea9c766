"""A store with a ledger: any engine, and beside it what this server wrote there.

Purpose: the engine does the work and need not know; here a value is entered before it is written,
a tenant's oldest values go before a new one would exceed its limit, and what the store turns out
not to have any more is struck out. Floors cannot be kept: others write to the store, and it evicts
by itself. Must not know: which engine, files. Runs in: the porter, on its worker threads.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from server.core.tiers.parts import Share, Status
from server.tiers.disk.troubles import Troubles
from server.tiers.doubts import SETTLE_S, Doubts
from server.tiers.interface import (
    HEADER_BYTES,
    Health,
    Moving,
    Name,
    Part,
    Tier,
    TierError,
    Touching,
)
from server.tiers.ledger.ledger import Ledger
from server.tiers.ledger.pages import STOPPED, LedgerBusyError, LedgerError
from server.tiers.ledger.rows import Wanted, pack_name, unpack_name

ROUNDS = 3
"""In one call values are removed, and room is looked for again, so often at most."""

LATE_S = 4.0
"""When removing took so long nothing is written in that call: it would not end in time."""

ASK_S = 0.25
MOST_ASKED = 256
"""A check-up asks the store for so many values, and so long at most."""

STILL_S = 5.0
"""A ledger whose disk takes so long for a commit is warned of."""

_MAX_SUSPECTS = 1024
_MAX_CLEARS = 64


class LedgerTier:
    """One store: ``Tier``, ``Moving``, ``Touching``, ``Sharing`` of ``server.tiers.interface``.

    Args:
        tier: the engine.
        ledger: open; closed with it.
        kind: of the tier, for people.
        troubles: what goes wrong is told there.
        clock: seconds, never backwards.
    """

    def __init__(
        self,
        tier: Tier,
        ledger: Ledger,
        kind: str,
        troubles: Troubles,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tier = tier
        self._ledger = ledger
        self._notes = ledger.notes
        self._kind = kind
        self._troubles = troubles
        self._clock = clock
        #: What the last porter was writing when it was killed may still come.
        self._doubts = Doubts(clock)
        self._doubts.note(map(unpack_name, ledger.open_names()))
        self._suspects: deque[bytes] = deque(maxlen=_MAX_SUSPECTS)
        #: When a namespace's CLEAR that goes on began, by the clock and by the ledger's.
        self._clearing: dict[bytes, tuple[float, int]] = {}

    @property
    def moved(self) -> Callable[[], None]:
        """See ``Moving``; an engine that says nothing of it never calls it."""
        return self._tier.moved if isinstance(self._tier, Moving) else lambda: None

    @moved.setter
    def moved(self, moved: Callable[[], None]) -> None:
        if isinstance(self._tier, Moving):
            self._tier.moved = moved

    def batch_exists(self, names: Sequence[Name]) -> list[bool]:
        """See ``Tier``. What is not found is asked for again by a check-up: it is only a hint."""
        found = self._tier.batch_exists(names)
        missing = next((at for at, is_there in enumerate(found) if not is_there), None)
        if missing is not None:
            self._suspects.append(pack_name(names[missing]))
        return found

    def batch_get_into(self, parts: Sequence[Part]) -> list[Status]:
        """See ``Tier``."""
        asked = self._notes.tick()
        statuses = self._tier.batch_get_into(parts)
        self._saw([part.name for part in parts], statuses, asked)
        return statuses

    def touch(self, names: Sequence[Name]) -> list[Status]:
        """See ``Touching``; an engine that loses nothing by itself has what it was given."""
        if not isinstance(self._tier, Touching):
            return [Status.OK] * len(names)
        asked = self._notes.tick()
        statuses = self._tier.touch(names)
        self._saw(names, statuses, asked)
        return statuses

    def _saw(self, names: Sequence[Name], statuses: Sequence[Status], asked: int) -> None:
        pairs = list(zip(names, statuses, strict=False))
        self._notes.used(pack_name(name) for name, status in pairs if status == Status.OK)
        absent = [pack_name(name) for name, status in pairs if status == Status.ABSENT]
        self._notes.gone(absent, asked)

    def batch_put(self, parts: Sequence[Part]) -> list[Status]:
        """See ``Tier``; OVER for what finds no room below its tenant's limit."""
        late_s = self._clock() + LATE_S
        statuses = [Status.OVER] * len(parts)
        new: set[bytes] = set()
        entered = self._enter(parts, late_s, new)
        if not entered:
            return statuses
        names = [pack_name(parts[at].name) for at in entered]
        answers: Sequence[Status] = ()
        try:
            if self._clock() >= late_s:
                self._troubles.tell("late", "removing older values left no time to write")
                answers = [Status.ERROR] * len(entered)
            else:
                answers = self._tier.batch_put([parts[at] for at in entered])
        finally:
            is_told = len(answers) == len(entered)
            told = answers if is_told else [Status.ERROR] * len(entered)
            self._ended(list(zip(names, told, strict=True)), new)
        if not is_told:
            raise RuntimeError(f"{len(answers)} answers for {len(entered)} parts")
        for at, status in zip(entered, answers, strict=True):
            statuses[at] = status
        return statuses

    def _ended(self, told: Sequence[tuple[bytes, Status]], new: set[bytes]) -> None:
        """Accounts for writes that were entered, by what the store said of each."""
        there = [name for name, status in told if status == Status.OK]
        # Else a store that is full had a tenant lose what it has for what it does not get.
        refused = [name for name, status in told if status == Status.NO_ROOM and name in new]
        known = {*there, *refused}
        self._notes.land(there, True)
        self._notes.land([name for name, _ in told if name not in known], False)
        try:
            if refused:
                self._ledger.refused(refused)
        except LedgerError as error:
            self._troubles.tell("ledger", error)
        self._ledger.settle()  # else a kill left in doubt what is known by now

    def _enter(self, parts: Sequence[Part], late_s: float, new: set[bytes]) -> list[int]:
        """Which parts are entered and may be written, and names that are new."""
        wanted = [
            Wanted(pack_name(part.name), HEADER_BYTES + part.payload_bytes, part.salt)
            for part in parts
        ]
        entered: list[int] = []
        left = list(range(len(parts)))
        try:
            for _ in range(ROUNDS):
                taken = self._ledger.enter([wanted[at] for at in left])
                new |= taken.new
                entered += [left[at] for at in taken.entered]
                left = [left[at] for at in taken.waiting]
                if not taken.victims or not self._make_room(taken.victims):
                    break
                if not left or self._clock() >= late_s:
                    break
        except Exception as error:  # noqa: BLE001 - what was entered must be accounted for
            why = error if isinstance(error, TierError) else type(error).__name__
            self._troubles.tell("not entered", why)
        return entered

    def _make_room(self, victims: Sequence[bytes]) -> bool:
        """Removes values that ``enter`` named; whether they are gone."""
        try:
            self._remove(victims)
        except Exception as error:  # noqa: BLE001 - engines' libraries raise what they like
            why = error if isinstance(error, TierError) else type(error).__name__
            self._troubles.tell("not removed", why)
            return False
        self._troubles.count("removed for limits", len(victims))
        return True

    def _remove(self, names: Sequence[bytes]) -> None:
        """Removes values that are marked as leaving, and strikes them out."""
        asked = self._notes.tick()
        try:
            self._tier.delete([unpack_name(name) for name in names])
        except BaseException:
            self._notes.left(names)
            raise
        self._ledger.removed(names, asked)

    def delete(self, names: Sequence[Name]) -> None:
        """See ``Tier``.

        Raises:
            TierError: some still count, or may come again.
        """
        wanted = frozenset(names)
        packed = [pack_name(name) for name in wanted]
        self._notes.leave(packed)
        asked = self._notes.tick()
        try:
            with self._doubts.removal(self._kind, wanted.__contains__):
                self._tier.delete(names)
        except BaseException:
            self._notes.left(packed)
            raise
        # Not what may come again: that counts until a removal holds.
        self._ledger.removed(packed, asked)

    def clear(self, fingerprint: bytes) -> None:
        """See ``Tier``.

        Raises:
            TierError: some still count, or may come again.
        """
        while len(self._clearing) > _MAX_CLEARS:
            self._clearing.pop(next(iter(self._clearing)), None)
        with self._doubts.removal(
            self._kind, lambda name: name.fingerprint == fingerprint
        ) as removal:
            # An engine may need several calls; what it passed in the first is not looked at again.
            begun = removal.begun_s, self._notes.tick()
            removal.begun_s, asked = self._clearing.setdefault(fingerprint, begun)
            self._tier.clear(fingerprint)
            self._clearing.pop(fingerprint, None)
        self._ledger.cleared(fingerprint, asked)

    def health(self) -> Health:
        """See ``Tier``; asks for some values that may have gone."""
        found = self._tier.health()
        trouble, is_free = "", True
        if found.ok:
            self._doubts.answered()
            try:
                self._ledger.revive()
                self._look()
            except LedgerBusyError as error:
                is_free = False
                trouble = f"{error}: writes to the store wait" if error.still_s >= STILL_S else ""
            except LedgerError as error:
                trouble = f"{error}; {STOPPED}"
        shares, salts = self._ledger.shares(is_free)
        return replace(
            found,
            note="; ".join(filter(None, (found.note, trouble, self._troubles.line()))),
            shares=shares,
            salts=salts,
            warning="; ".join(filter(None, (found.warning, trouble))),
        )

    def _look(self) -> None:
        end_s = self._clock() + ASK_S
        unsure = self._notes.settled(self._clock(), SETTLE_S, MOST_ASKED)
        try:
            while unsure and self._clock() < end_s:
                asked = self._notes.tick()
                is_there = self._is_there(unsure[-1])
                if is_there is None:
                    break
                self._ledger.answered(unsure[-1], is_there, asked)
                unsure.pop()
        finally:
            self._notes.doubt(unsure)
        for _ in range(min(MOST_ASKED, len(self._suspects))):
            if self._clock() >= end_s:
                return
            name = self._suspects.popleft()
            asked = self._notes.tick()
            if self._ledger.has(name) and self._is_there(name) is False:
                self._notes.gone([name], asked)

    def _is_there(self, name: bytes) -> bool | None:
        """What the store says of one value; None for nothing: only of the first it says why."""
        try:
            return self._tier.batch_exists([unpack_name(name)])[0]
        except Exception:  # noqa: BLE001 - whatever it is, nobody knows
            return None

    def register(self, address: int, size_bytes: int) -> None:
        """See ``Tier``."""
        self._tier.register(address, size_bytes)

    def unregister(self, address: int, size_bytes: int) -> None:
        """See ``Tier``."""
        self._tier.unregister(address, size_bytes)

    def close(self) -> None:
        """See ``Tier``."""
        try:
            self._tier.close()
        finally:
            self._ledger.close()

    # --- tenants --------------------------------------------------------------------------

    def set_quotas(self, quotas: Sequence[Share]) -> None:
        """See ``Sharing``; floors are not kept here, and the server refuses them."""
        self._ledger.set_limits(quotas)

    def trim(self) -> bool:
        """See ``Sharing``.

        Raises:
            TierError: the store did not remove what was to go.
        """
        is_over, victims = self._ledger.excess()
        if not victims:
            return False
        self._remove(victims)
        return is_over

    def of_salt(self, salt: bytes, most: int) -> list[Name]:
        """See ``Sharing``: what this server wrote."""
        try:
            return [unpack_name(name) for name in self._ledger.of_salt(salt, most)]
        except LedgerError as error:
            raise OSError(0, str(error)) from None
