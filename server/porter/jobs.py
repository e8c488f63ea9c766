"""Performs one job on the tier: batches of bounded size, sealed before, compared after.

Purpose: whatever a tier does — an exception, too few answers, bytes that are not what was asked
for — becomes a status for each part. Must not know: sockets, whose turn it is. Runs in: a porter's
worker threads.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from protocol.ids import ID_BYTES
from server.core.tiers.parts import MAX_NAMES, Status, pack_names, pack_shares, unpack_quotas
from server.porter.listing import LISTING, CannotListError, Listings
from server.porter.memory import Memory
from server.porter.notes import Warned
from server.porter.pace import Pace
from server.porter.unreadable import Unreadable
from server.porter.vault import Open, Vault
from server.porter.wire import Answer, Command, Kind
from server.tiers.interface import Moving, Name, Part, Sharing, Tier, TierError, Touching

_log = logging.getLogger("kvkeep.porter")

BATCH_BYTES = 16 << 20
BATCH_PARTS = 64
"""Of one call of the tier: long enough that its costs do not count, and short enough that one which
moves at all is done in seconds."""

CALL_S, FORGET_S = 15.0, 600.0
"""Of one call of the tier, and of one that makes it forget, which in a store finds and removes each
value. Engines end theirs within nine seconds: one that takes longer is caught, and may hold its
slots for ever while other threads get on."""

FIRST_CHUNKS = 32
"""Asked for first by a probe, then four times as many: most chains end early or go on for long."""


class Performer:
    """Performs jobs of several threads at once.

    Args:
        tier: does the work.
        memory: where parts lie.
        bytes_s: most bytes a second each way, 0 for no bound.
        stopping: set when nothing new is to be begun.
        moved: called after each batch, from the thread that did it; and from any thread after each
            part, by a tier that says so.
        warned: what was told of the tier's health so far; None for nothing.
        vault: what becomes of values below; None: they stay as they are.
    """

    def __init__(
        self,
        tier: Tier,
        memory: Memory,
        bytes_s: int,
        stopping: threading.Event,
        moved: Callable[[], None],
        warned: Warned | None = None,
        vault: Vault | None = None,
    ) -> None:
        self._tier = tier
        self._vault = vault or Open()
        self._memory = memory
        self._pace_in, self._pace_out = Pace(bytes_s, stopping), Pace(bytes_s, stopping)
        self._stopping = stopping
        self._moved = moved
        self._warned = warned or Warned()
        self._listings = Listings(tier, moved)
        self._unreadable = Unreadable()
        if isinstance(tier, Moving):
            tier.moved = moved
        self._due_s: dict[int, float] = {}

    def is_caught(self) -> bool:
        """Whether a call takes longer than any that ends by itself; for any thread."""
        now_s = time.monotonic()
        return any(due_s <= now_s for due_s in list(self._due_s.values()))

    @contextmanager
    def _calling(self, limit_s: float) -> Iterator[None]:
        """For the time of a call; a thread makes one at a time."""
        thread = threading.get_ident()
        self._due_s[thread] = time.monotonic() + limit_s
        try:
            yield
        finally:
            del self._due_s[thread]

    def perform(self, command: Command) -> Answer:
        """Performs one job.

        Args:
            command: of the kinds that ask, read, write and forget.

        Returns:
            Its answer; nothing of the job touches memory any more.
        """
        kind, number = command.kind, command.number
        try:
            if kind in (Kind.GET, Kind.PUT):
                return Answer(kind, number, statuses=self._carry(command))
            if kind == Kind.PROBE:
                return Answer(kind, number, count=self._probe(command))
            if kind == Kind.HEALTH:
                return self._health(command)
            if kind == Kind.OF_SALT:
                return Answer(kind, number, statuses=self._of_salt(command))
            if kind == Kind.TOUCH:
                return Answer(kind, number, statuses=self._touch(command))
            if kind in LISTING:
                with self._calling(CALL_S):
                    return Answer(kind, number, statuses=self._listings.answer(command))
            if kind == Kind.KEEP:
                with self._calling(CALL_S):
                    self._listings.keep(command)
            elif kind == Kind.QUOTAS:
                self._trim()
            else:
                self._forget(command)
            return Answer(kind, number)
        except CannotListError:  # as documented of this kind of tier: nobody's log needs it
            return Answer(kind, number, error="")
        except BaseException as error:  # noqa: BLE001 - bindings to Rust raise such; a thread of
            # a porter outlives it
            return Answer(kind, number, error=told(error))

    def _carry(self, command: Command) -> bytes:
        rows = command.parts
        assert rows is not None
        statuses = bytearray([Status.ERROR]) * len(rows)
        carry = self._get if command.kind == Kind.GET else self._put
        for batch in _batches(rows):
            if self._stopping.is_set():
                break
            statuses[batch] = self._carry_batch(carry, command.fingerprint, rows[batch])
            self._moved()
        return bytes(statuses)

    def _carry_batch(
        self,
        carry: Callable[[Sequence[Part], Sequence[bytes]], list[Status]],
        fingerprint: bytes,
        rows: NDArray[np.void],
    ) -> bytes:
        """In a frame of its own: a view that it kept would keep an extent's memory."""
        statuses = bytearray([Status.ERROR]) * len(rows)
        found = self._memory.parts(fingerprint, rows)
        whole = [at for at, part in enumerate(found) if part is not None]
        parts = [part for part in found if part is not None]
        try:
            answers = carry(parts, [rows["parent"][at].tobytes() for at in whole])
            if len(answers) != len(parts):
                raise RuntimeError(f"{len(answers)} answers for {len(parts)} parts")
            for at, status in zip(whole, answers, strict=True):
                statuses[at] = Status(status)
        except BaseException as error:  # noqa: BLE001 - as in perform
            _log.warning("%s: %s", carry.__name__.strip("_"), told(error))
            return bytes([Status.ERROR]) * len(rows)
        return bytes(statuses)

    def _get(self, parts: Sequence[Part], parents: Sequence[bytes]) -> list[Status]:
        self._pace_in.wait(sum(part.payload_bytes for part in parts))
        lent = self._vault.lend(parts)
        with self._calling(CALL_S):
            answers = self._tier.batch_get_into(lent)
        if len(answers) != len(parts):
            return answers  # refused by who asked
        statuses = [
            self._vault.check(part, filled, parent) if status == Status.OK else status
            for part, filled, parent, status in zip(parts, lent, parents, answers, strict=True)
        ]
        for part, status in zip(parts, statuses, strict=True):
            self._unreadable.came(part.name, status)
        return statuses

    def _put(self, parts: Sequence[Part], parents: Sequence[bytes]) -> list[Status]:
        self._pace_out.wait(sum(part.payload_bytes for part in parts))
        lent = self._vault.lend(parts)
        sealed = map(self._vault.seal, parts, lent, parents)
        if not all([*sealed]):  # parts of a job are one namespace's
            return [Status.LOCKED] * len(parts)
        self._make_way(parts)
        with self._calling(CALL_S):
            return self._tier.batch_put(lent)

    def _make_way(self, parts: Sequence[Part]) -> None:
        """Removes what a tier has of parts and could not be read: else it would not be replaced.

        Raises:
            BaseException: whatever the tier raises; nothing is put then.
        """
        found = self._unreadable.take(part.name for part in parts)
        if not found:
            return
        try:
            with self._calling(CALL_S):
                self._tier.delete(found)
        except BaseException:
            self._unreadable.note(found)
            raise

    def _probe(self, command: Command) -> int:
        keys, shards, first = _keys(command), command.shards, command.first
        count, step = 0, FIRST_CHUNKS
        while count < len(keys) and not self._stopping.is_set():
            asked = keys[count : count + step]
            with self._calling(CALL_S):
                there = self._tier.batch_exists(_names(command.fingerprint, asked, shards, first))
            if len(there) != len(asked) * shards:
                raise RuntimeError(f"{len(there)} answers for {len(asked) * shards} names")
            self._moved()
            if not all(there):
                return count + there.index(False) // shards
            count, step = count + len(asked), 4 * step
        return count

    def _touch(self, command: Command) -> bytes:
        names = _names(command.fingerprint, _keys(command), command.shards, command.first)
        if not isinstance(self._tier, Touching):
            return bytes([Status.OK]) * len(names)  # it loses nothing by itself
        statuses = bytearray()
        for at in range(0, len(names), BATCH_PARTS):
            if self._stopping.is_set():
                break
            some = names[at : at + BATCH_PARTS]
            with self._calling(CALL_S):
                answers = self._tier.touch(some)
            if len(answers) != len(some):
                raise RuntimeError(f"{len(answers)} answers for {len(some)} names")
            statuses += bytes(answers)
            self._moved()
        return bytes(statuses.ljust(len(names), bytes([Status.ERROR])))

    def _forget(self, command: Command) -> None:
        with self._calling(FORGET_S):
            if command.kind == Kind.CLEAR:
                self._tier.clear(command.fingerprint)
            else:
                self._tier.delete(_names(command.fingerprint, _keys(command), command.shards))

    def set_quotas(self, command: Command) -> None:
        """Sets a tier's quotas at once, so that they hold for whatever is put after it was told.

        Raises:
            TierError: it keeps none, as its settings should have said.
        """
        self._sharing().set_quotas(unpack_quotas(command.text))

    def _trim(self) -> None:
        has_more = True
        while has_more and not self._stopping.is_set():
            with self._calling(CALL_S):
                has_more = self._sharing().trim()
            self._moved()

    def _of_salt(self, command: Command) -> bytes:
        with self._calling(CALL_S):
            most = min(command.shards, MAX_NAMES)
            return pack_names(self._sharing().of_salt(command.fingerprint, most))

    def _sharing(self) -> Sharing:
        if not isinstance(self._tier, Sharing):
            raise TierError("this tier does not know whose its values are")
        return self._tier

    def _health(self, command: Command) -> Answer:
        with self._calling(CALL_S):
            health = self._tier.health()
        warnings = (health.warning, self._vault.warning()) if health.ok else ()
        warning = "; ".join(filter(None, warnings))
        self._warned.tell(warning)
        return Answer(
            Kind.HEALTH,
            command.number,
            error=None if health.ok else health.note or "it says that it is not well",
            used_bytes=max(0, health.used_bytes),
            capacity_bytes=max(0, health.capacity_bytes),
            statuses=pack_shares(health.shares, health.salts),
            warning=warning,
        )


def _batches(rows: NDArray[np.void]) -> Iterator[slice]:
    """Cuts a job: at most BATCH_PARTS parts, and BATCH_BYTES unless one part is longer."""
    begin = num_bytes = 0
    for at, length in enumerate(rows["length"].tolist()):
        if at > begin and (at - begin == BATCH_PARTS or num_bytes + length > BATCH_BYTES):
            yield slice(begin, at)
            begin, num_bytes = at, 0
        num_bytes += length
    if begin < len(rows):
        yield slice(begin, len(rows))


def _keys(command: Command) -> list[bytes]:
    return [command.keys[at : at + ID_BYTES] for at in range(0, len(command.keys), ID_BYTES)]


def _names(fingerprint: bytes, keys: Sequence[bytes], shards: int, first: int = 0) -> list[Name]:
    parts = range(first, first + shards)
    return [Name(fingerprint, key, shard) for key in keys for shard in parts]


def told(error: BaseException) -> str:
    """What an exception of an engine's library says of itself.

    Its text is left out, but for what is meant for people and for the system's own errors: it may
    hold what the library was given, credentials included.
    """
    if isinstance(error, TierError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        return f"{type(error).__name__}: {error.strerror}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {frames[-1].name}, line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"
