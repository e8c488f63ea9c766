"""The Valkey tier: chunks in a server or a cluster that speaks Valkey's protocol.

Purpose: a value is two keys of one hash slot, the header and the payload, so that the payload is
received straight into its slot. Both are written by one MSET and read by one MGET, which are
atomic: nobody sees one without the other unless the store evicted it. Must not know: what is in a
header, how the client is made. Runs in: the porter, on its worker threads.

Each request ends within two seconds; a call begins no further one when its budget is over. What
the library still holds of a request that timed out is a copy of its own, so a slot is nobody's but
ours once a call returned. The store may still get it (``doubts``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from server.tiers.doubts import Doubts
from server.tiers.interface import HEADER_BYTES, Health, Name, Part, Status, Tier, TierError
from server.tiers.valkeylink import Link, library, maker, one_line
from server.tiers.valkeysweep import Sweep
from server.tierspec import TierSpec

GET_S = 2.0
PUT_S = 4.0
CLEAR_S = 6.0
"""Budgets of one call: no further request is begun after that time."""

FULL_PAUSE_S = 1.0
"""So long a store that had no room for anything is not asked again, and then for its figures first:
the library writes a line to standard error for every refusal."""

MAX_SWEEPS = 64
"""Namespaces whose CLEAR goes on where it stopped; with more the one that waited longest begins
anew."""

_GROUP = 512
_T = TypeVar("_T")


def open(spec: TierSpec) -> Tier:  # noqa: A001
    """Connects to a store.

    Args:
        spec: of the kind ``valkey``.

    Returns:
        The tier.

    Raises:
        TierError: nobody answers, or not to us; the library is missing.
    """
    glide = library()
    link = Link(maker(glide, spec))
    return Valkey(glide, link, spec.flag("cluster"), Doubts(), bool(spec.options.get("ledger")))


class Valkey:
    """One store.

    Args:
        glide: the client library.
        link: to the store.
        is_cluster: whether the link is to a cluster.
        doubts: puts that may still come.
        takes_rests: whether what is left of a value is removed when half of it turns out to be
            gone: a ledger strikes it out, and then nobody counts it or finds it by its salt.

    Attributes:
        moved: called after each value that was carried.
    """

    def __init__(
        self, glide: Any, link: Link, is_cluster: bool, doubts: Doubts, takes_rests: bool = False
    ) -> None:
        self._glide = glide
        self._link = link
        self._is_cluster = is_cluster
        self._doubts = doubts
        self._takes_rests = takes_rests
        self._sweeps: dict[bytes, Sweep] = {}
        self._full_until = 0.0
        self._is_full = False
        #: Of a value that was refused, and of the copy in which the store receives it.
        self._wanted = 0
        self.moved: Callable[[], None] = lambda: None

    def batch_exists(self, names: Sequence[Name]) -> list[bool]:
        """As the interface says; both keys of a value count.

        Raises:
            TierError: not even the first can be asked, which is not the same as that it is absent.
        """
        answers = self._ask(names)
        if answers and isinstance(answers[0], Exception):
            raise TierError(f"valkey: {one_line(answers[0])}")
        answers = self._without_rests(names, answers)
        if answers and isinstance(answers[0], Exception):
            raise TierError(f"valkey: {one_line(answers[0])}")
        return [answer == 2 for answer in answers]

    def batch_get_into(self, parts: Sequence[Part]) -> list[Status]:
        """As the interface says; the store's bytes go into the slot, without a copy in Python."""
        end = time.monotonic() + GET_S
        statuses: list[Status] = []
        with self._link.use() as client:
            for part in parts:
                if time.monotonic() >= end:
                    break
                statuses.append(self._get(client, part))
        return statuses + [Status.ERROR] * (len(parts) - len(statuses))

    def batch_put(self, parts: Sequence[Part]) -> list[Status]:
        """As the interface says; what is there is not sent again, for others put the same."""
        end = time.monotonic() + PUT_S
        if self._stays_full():
            return [Status.NO_ROOM] * len(parts)
        answers = self._ask([part.name for part in parts])
        statuses: list[Status] = []
        with self._link.use() as client:
            for part, answer in zip(parts, answers, strict=True):
                if time.monotonic() >= end:
                    break
                if isinstance(answer, Exception):
                    statuses.append(Status.ERROR)
                elif answer == 2:
                    statuses.append(Status.OK)
                elif self._is_full and not self._is_cluster:
                    statuses.append(Status.NO_ROOM)
                else:
                    statuses.append(self._put(client, part))
        if statuses and all(status is Status.NO_ROOM for status in statuses):
            self._full(True)
        return statuses + [Status.ERROR] * (len(parts) - len(statuses))

    def _full(self, is_full: bool) -> None:
        self._is_full = is_full
        self._full_until = time.monotonic() + FULL_PAUSE_S

    def _stays_full(self) -> bool:
        """Whether a store that was full is so still; asked at most once a pause."""
        if not self._is_full or time.monotonic() < self._full_until:
            return self._is_full
        self._full(True)  # for whoever comes meanwhile
        health = self._health()
        self._is_full = health.ok and health.is_full
        if not self._is_full:
            self._wanted = 0
        return self._is_full

    def touch(self, names: Sequence[Name]) -> list[Status]:
        """As the interface says; the store's own TOUCH, which counts for its policies."""
        return [
            Status.ERROR
            if isinstance(answer, Exception)
            else (Status.OK if answer == 2 else Status.ABSENT)
            for answer in self._without_rests(names, self._ask(names, is_use=True))
        ]

    def _without_rests(
        self, names: Sequence[Name], answers: list[int | Exception]
    ) -> list[int | Exception]:
        """Answers of ``_ask``; a half is 0 once it is removed, or why it could not be."""
        halves = [at for at, answer in enumerate(answers) if answer == 1] * self._takes_rests
        for group in _groups(halves):
            batch = self._batch()
            for at in group:
                batch.unlink(_keys(names[at]))
            with self._link.use() as client:
                told = self._answers(client, batch)
            for at, answer in zip(group, told, strict=True):
                answers[at] = answer if isinstance(answer, Exception) else 0
        return answers

    def delete(self, names: Sequence[Name]) -> None:
        """As the interface says.

        Raises:
            TierError: some could not be asked for, or may come again.
        """
        wanted = frozenset(names)
        with self._doubts.removal("valkey", wanted.__contains__), self._link.use() as client:
            for group in _groups(names):
                batch = self._batch()
                for name in group:
                    batch.unlink(_keys(name))
                self._raise_any(self._answers(client, batch))

    def clear(self, fingerprint: bytes) -> None:
        """As the interface says, within CLEAR_S; called again, it goes on with what is left.

        Raises:
            TierError: something is left.
        """
        mine = f"{{kvkeep/1/{fingerprint.hex()}/*"
        with self._doubts.removal(
            "valkey", lambda name: name.fingerprint == fingerprint
        ) as removal:
            sweep = self._sweeps.pop(fingerprint, None)
            sweep = sweep or Sweep(self._glide, self._is_cluster, mine)
            removal.begun_s = sweep.begun_s
            try:
                with self._link.use() as client:
                    is_done = sweep.go_on(client, time.monotonic() + CLEAR_S)
            except self._glide.GlideError as error:
                raise TierError(f"valkey: not cleared: {one_line(error)}") from None
            if not is_done:
                while len(self._sweeps) >= MAX_SWEEPS:
                    self._sweeps.pop(next(iter(self._sweeps)), None)
                self._sweeps[fingerprint] = sweep
                raise TierError(f"valkey: not cleared within {CLEAR_S:g} s; it goes on")

    def health(self) -> Health:
        """As the interface says. A link that does not work is made anew first."""
        found = self._health()
        if not found.ok:
            try:
                self._link.renew()
            except TierError as error:
                return Health(False, note=str(error))
            found = self._health()
        if found.ok:
            self._doubts.answered()
        return found

    def register(self, address: int, size_bytes: int) -> None:
        """Nothing to do: any memory will do."""

    def unregister(self, address: int, size_bytes: int) -> None:
        """Nothing to do: any memory will do."""

    def close(self) -> None:
        """As the interface says."""
        self._link.close()

    def _get(self, client: Any, part: Part) -> Status:
        try:
            found = client.mget(_keys(part.name), buffers=[part.header, part.payload])
        except self._glide.GlideError as error:
            return Status.CORRUPT if "buffer capacity" in str(error) else Status.ERROR
        self.moved()
        if None in found:
            is_half = self._takes_rests and found != [None, None]
            return self._rest_taken(client, part.name) if is_half else Status.ABSENT
        is_whole = [int(length) for length in found] == [HEADER_BYTES, part.payload_bytes]
        return Status.OK if is_whole else Status.CORRUPT

    def _rest_taken(self, client: Any, name: Name) -> Status:
        try:
            client.unlink(_keys(name))
        except self._glide.GlideError:
            return Status.ERROR
        return Status.ABSENT

    def _put(self, client: Any, part: Part) -> Status:
        header, payload = _keys(part.name)
        try:
            client.mset({payload: part.payload, header: part.header})
        except self._glide.GlideError as error:
            if "OOM" in str(error)[:80]:
                self._wanted = 2 * part.payload_bytes
                if not self._is_cluster:
                    self._full(True)
                return Status.NO_ROOM
            self._doubts.note([part.name])
            return Status.ERROR
        self.moved()
        return Status.OK

    def _ask(self, names: Sequence[Name], is_use: bool = False) -> list[int | Exception]:
        """How many keys of each value are there, or why that is not known."""
        end = time.monotonic() + GET_S
        found: list[int | Exception] = []
        with self._link.use() as client:
            for group in _groups(names):
                if time.monotonic() >= end:
                    break
                batch = self._batch()
                for name in group:
                    if is_use:
                        batch.touch(_keys(name))
                    else:
                        batch.exists(_keys(name))
                found += self._answers(client, batch)
        late = TierError("valkey: out of time")
        return found + [late] * (len(names) - len(found))

    def _batch(self) -> Any:
        kind = self._glide.ClusterBatch if self._is_cluster else self._glide.Batch
        return kind(is_atomic=False)

    def _answers(self, client: Any, batch: Any) -> list[int | Exception]:
        """One answer per command; an error is an answer."""
        try:
            return list(client.exec(batch, raise_on_error=False))
        except self._glide.GlideError as error:
            return [error] * len(batch.commands)

    def _raise_any(self, answers: Sequence[int | Exception]) -> None:
        for answer in answers:
            if isinstance(answer, Exception):
                raise TierError(f"valkey: {one_line(answer)}")

    def _health(self) -> _Judged:
        sections = [self._glide.InfoSection.MEMORY, self._glide.InfoSection.REPLICATION]
        try:
            with self._link.use() as client:
                if not self._is_cluster:
                    return _judged([client.info(sections)], self._wanted)
                state = client.custom_command(["CLUSTER", "INFO"])
                if b"cluster_state:ok" not in state:
                    return _Judged(False, note="valkey: the cluster says cluster_state:fail")
                route = self._glide.AllPrimaries()
                return _judged([*client.info(sections, route).values()], self._wanted)
        except self._glide.GlideError as error:
            return _Judged(False, note=f"valkey: {one_line(error)}")


@dataclass(frozen=True)
class _Judged(Health):
    """How primaries are.

    Attributes:
        is_full: none of them takes anything before others remove something.
    """

    is_full: bool = False


def _judged(infos: list[bytes], wanted_bytes: int) -> _Judged:
    """What primaries say of themselves, and whether they have so many bytes left."""
    used_bytes = capacity_bytes = num_full = 0
    policies = set()
    for info in infos:
        lines = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines())
        facts = {key: value for key, _, value in lines}
        if facts.get("role") != "master":
            return _Judged(False, note="valkey: no primary among the addresses")
        used, most = int(facts.get("used_memory", 0)), int(facts.get("maxmemory", 0))
        used_bytes, capacity_bytes = used_bytes + used, capacity_bytes + most
        policy = facts.get("maxmemory_policy", "")
        if most and not policy.startswith("allkeys-"):  # our values have no time to live
            policies.add(policy)
            num_full += used + wanted_bytes > most
    note = ""
    if policies:
        when = "it is full and" if num_full else "once full it"
        note = (
            f"valkey: maxmemory-policy is {', '.join(sorted(policies))}: {when} takes nothing "
            "more; expected allkeys-lru"
        )
    return _Judged(
        True, used_bytes, capacity_bytes, note, warning=note, is_full=num_full == len(infos)
    )


def _keys(name: Name) -> list[bytes]:
    """Of header and payload; the braces put both into one hash slot."""
    tag = f"{{kvkeep/1/{name.fingerprint.hex()}/{name.key.hex()}/{name.shard}}}"
    return [f"{tag}:h".encode(), f"{tag}:p".encode()]


def _groups(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (items[start : start + _GROUP] for start in range(0, len(items), _GROUP))
