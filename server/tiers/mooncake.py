"""The Mooncake tier: chunks in the memory of a cluster of nodes, read and written where they lie.

Purpose: a value is one object, which the library gathers from a header and a slot, and scatters
into them; L1 is registered, so that nothing is copied on the way. Must not know: what is in a
header. Runs in: the porter, on its worker threads.

The library gives a transfer up after 60 seconds, tells so, and the transfer may still write into
memory afterwards. Over TCP its own limit for transfers that stand still (``mooncakelink``) ends
them long before, cleanly; what comes near the other limit ends this process (``mooncakewatch``),
and with it whatever could write into a slot that is somebody else's by then.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from server.tiers.doubts import Doubts
from server.tiers.interface import HEADER_BYTES, Health, Name, Part, Status, Tier, TierError
from server.tiers.mooncakeheat import Popularity
from server.tiers.mooncakelink import BLOCK_BYTES, Headers, connect, host_port, library, register
from server.tiers.mooncakewatch import Watch
from server.tierspec import TierSpec

CALL_VALUES = 8
"""Of one call of the library. A node that stands still holds each of them up; with the library's
limits of time such a call ends in some two seconds, or eight when four threads are caught."""

NAMES = 512
"""Of one request to the master."""

ROOM_WAIT_S = 0.5
ROOM_STEP_S = 0.05
"""A full cluster makes room by and by: so long and so often a put is tried again."""

FULL_PAUSE_S = 1.0
"""So long after that a put is tried once only."""

CLEAR_TRIES = 3

_NO_ROOM, _INVALID, _NOT_READY, _NOT_FOUND = -200, -600, -703, -704
_THERE_ALREADY, _FAILED, _WRONG_SUM = -705, -800, -801

_PUT = {0: Status.OK, _THERE_ALREADY: Status.OK, _NO_ROOM: Status.NO_ROOM}
_GET = {
    _NOT_FOUND: Status.ABSENT,
    _NOT_READY: Status.ABSENT,
    _WRONG_SUM: Status.CORRUPT,
}
_PREFIX = "kvkeep/1"


def open(spec: TierSpec) -> Tier:  # noqa: A001
    """Connects to a cluster.

    Args:
        spec: of the kind ``mooncake``.

    Returns:
        The tier.

    Raises:
        TierError: the master does not answer; the library is missing.
    """
    module = library(host_port(spec.location)[0])
    store = connect(module, spec)
    try:
        # One block more than threads that carry, for the one that answers questions.
        return Mooncake(
            store,
            module.ReplicateConfig,
            Headers(store, spec.concurrency + 2),
            Popularity(spec.number("replicas"), spec.number("max_replicas")),
            Watch(),
        )
    except BaseException:
        store.close()
        raise


class Mooncake:
    """One cluster.

    Args:
        store: the library's, connected.
        config: makes the library's ``ReplicateConfig``.
        headers: registered memory.
        popularity: how many copies each value shall have.
        watch: ends the process when a transfer does not come back.
    """

    def __init__(
        self,
        store: Any,
        config: Callable[[], Any],
        headers: Headers,
        popularity: Popularity,
        watch: Watch,
    ) -> None:
        assert CALL_VALUES * HEADER_BYTES <= BLOCK_BYTES
        self._store = store
        self._config = config
        self._headers = headers
        self._popularity = popularity
        self._watch = watch
        self._full_until = 0.0
        self._doubts = Doubts()

    def batch_exists(self, names: Sequence[Name]) -> list[bool]:
        """Asks the master, which keeps what is there from being evicted for a while.

        Raises:
            TierError: the master does not answer, which is not the same as that nothing is there.
        """
        found = [False] * len(names)
        for begin in range(0, len(names), NAMES):
            codes = self._ask(names[begin : begin + NAMES])
            found[begin : begin + NAMES] = [code == 1 for code in codes]
        return found

    def touch(self, names: Sequence[Name]) -> list[Status]:
        """The same, which the master counts as a use.

        Raises:
            TierError: as for ``batch_exists``.
        """
        found: list[Status] = []
        for begin in range(0, len(names), NAMES):
            for code in self._ask(names[begin : begin + NAMES]):
                known = Status.OK if code == 1 else Status.ABSENT
                found.append(Status.ERROR if code < 0 else known)
        return found

    def _ask(self, names: Sequence[Name]) -> list[int]:
        codes: list[int] = self._store.batch_is_exist([_key(name) for name in names])
        if codes[0] < 0:
            raise TierError(f"mooncake: the master does not answer (code {codes[0]})")
        return codes

    def batch_get_into(self, parts: Sequence[Part]) -> list[Status]:
        """Reads values where they shall lie; behind an error nothing more is tried."""
        return _in_pieces(self._get, parts)

    def batch_put(self, parts: Sequence[Part]) -> list[Status]:
        """Writes values from where they lie; behind an error nothing more is tried."""
        statuses = [Status.ERROR] * len(parts)
        try:
            statuses = _in_pieces(self._put, parts)
        finally:  # the master may still hear that a value is whole
            failed = [at for at, status in enumerate(statuses) if status is Status.ERROR]
            self._doubts.note(parts[at].name for at in failed)
        return statuses

    def delete(self, names: Sequence[Name]) -> None:
        """Removes values, those that somebody reads too.

        Raises:
            TierError: the master did not do it, or may have some of them again.
        """
        wanted = frozenset(names)
        with self._doubts.removal("mooncake", wanted.__contains__):
            self._remove(names)

    def _remove(self, names: Sequence[Name]) -> None:
        for begin in range(0, len(names), NAMES):
            some = [_key(name) for name in names[begin : begin + NAMES]]
            failed = [
                code
                for code in self._store.batch_remove(some, True)
                if code not in (0, _NOT_FOUND, _NOT_READY)
            ]
            if failed:
                raise TierError(f"mooncake: {len(failed)} values not removed (code {failed[0]})")

    def clear(self, fingerprint: bytes) -> None:
        """Removes all values of a namespace.

        Raises:
            TierError: the master did not do it, or may have some of them again.
        """
        code = -1
        with self._doubts.removal("mooncake", lambda name: name.fingerprint == fingerprint):
            for _ in range(CLEAR_TRIES):
                code = self._store.remove_by_regex(f"^{_PREFIX}/{fingerprint.hex()}/", True)
                if code >= 0:
                    break
            else:
                raise TierError(f"mooncake: a namespace is not removed (code {code})")

    def health(self) -> Health:
        """Asks the master, and writes, reads and removes a small value.

        What the library says of its own health is that it was set up, which is not asked here.
        """
        key = f"{_PREFIX}/health/{uuid.uuid4().hex}"
        code = self._store.is_exist(key)
        if code < 0:
            return Health(False, note=f"mooncake: the master does not answer (code {code})")
        with self._watch.over():
            try:
                found = self._tried(key)
            finally:
                self._store.remove(key, True)
        if found.ok:
            self._doubts.answered()
        return found

    def register(self, address: int, size_bytes: int) -> None:
        """Has the library know an extent.

        Raises:
            TierError: it will not have it.
        """
        register(self._store, address, size_bytes)

    def unregister(self, address: int, size_bytes: int) -> None:
        """Has the library forget an extent; it is told by its first byte."""
        self._store.unregister_buffer(address)

    def close(self) -> None:
        """Leaves the cluster; memory that was lent to it goes with us."""
        self._watch.close()
        self._store.close()

    def _get(self, parts: Sequence[Part]) -> list[Status]:
        keys = [_key(part.name) for part in parts]
        with self._headers.lent() as block:
            places = _places(parts, block.address)
            with self._watch.over():
                codes = self._store.batch_get_into_multi_buffers(keys, *places)
            statuses = self._told(parts, codes)
            for at, (part, status) in enumerate(zip(parts, statuses, strict=True)):
                if status is Status.OK:
                    part.header[:] = block.data[at * HEADER_BYTES : (at + 1) * HEADER_BYTES]
                    self._popularity.note(part.name)
        return statuses

    def _told(self, parts: Sequence[Part], codes: Sequence[int]) -> list[Status]:
        """What a read's codes mean; one of a value that has another length is CORRUPT."""
        statuses = []
        is_asked = True
        for part, code in zip(parts, codes, strict=True):
            num_bytes = HEADER_BYTES + part.payload_bytes
            if code >= 0:
                status = Status.OK if code == num_bytes else Status.CORRUPT
            else:
                status = _GET.get(code, Status.ERROR)
            if code in (_INVALID, _FAILED) and is_asked:
                stored = self._store.get_size(_key(part.name))
                is_asked = stored >= 0
                if is_asked and stored != num_bytes:
                    status = Status.CORRUPT
            statuses.append(status)
        return statuses

    def _put(self, parts: Sequence[Part]) -> list[Status]:
        with self._headers.lent() as block:
            groups: dict[int, list[int]] = {}
            for at, part in enumerate(parts):
                block.data[at * HEADER_BYTES : (at + 1) * HEADER_BYTES] = part.header
                copies = self._popularity.copies(part.name, part.heat)
                groups.setdefault(copies, []).append(at)
            statuses = [Status.ERROR] * len(parts)
            for copies, group in groups.items():
                self._put_group(parts, block.address, copies, group, statuses)
        return statuses

    def _put_group(
        self,
        parts: Sequence[Part],
        headers: int,
        copies: int,
        group: list[int],
        statuses: list[Status],
    ) -> None:
        """Writes values that have as many copies, and tries again those that find no room."""
        config = self._config()
        config.replica_num = copies
        begun = time.monotonic()
        wait_s = 0.0 if begun < self._full_until else ROOM_WAIT_S
        keys = [_key(part.name) for part in parts]
        addresses, sizes = _places(parts, headers)
        while group:
            with self._watch.over():
                codes = self._store.batch_put_from_multi_buffers(
                    [keys[at] for at in group],
                    [addresses[at] for at in group],
                    [sizes[at] for at in group],
                    config,
                )
            for at, code in zip(group, codes, strict=True):
                statuses[at] = _PUT.get(code, Status.ERROR)
            group = [at for at in group if statuses[at] is Status.NO_ROOM]
            if group and time.monotonic() - begun + ROOM_STEP_S > wait_s:
                self._full_until = time.monotonic() + FULL_PAUSE_S
                return
            if group:
                time.sleep(ROOM_STEP_S)

    def _tried(self, key: str) -> Health:
        config = self._config()
        with self._headers.lent() as block:
            wanted = uuid.uuid4().bytes
            block.data[: len(wanted)] = wanted
            size = [[len(wanted)]]
            (code,) = self._store.batch_put_from_multi_buffers(
                [key], [[block.address]], size, config
            )
            if code == _NO_ROOM:
                text = "mooncake: nothing can be written: the cluster has no room, or no node"
                return Health(True, note=text, warning=text)
            if code != 0:
                return Health(False, note=f"mooncake: a value cannot be written (code {code})")
            block.data[: len(wanted)] = bytes(len(wanted))
            (code,) = self._store.batch_get_into_multi_buffers([key], [[block.address]], size)
            if code != len(wanted) or block.data[: len(wanted)] != wanted:
                return Health(False, note=f"mooncake: a value cannot be read (code {code})")
        return Health(True)


def _in_pieces(
    carry: Callable[[Sequence[Part]], list[Status]], parts: Sequence[Part]
) -> list[Status]:
    statuses = [Status.ERROR] * len(parts)
    for begin in range(0, len(parts), CALL_VALUES):
        told = carry(parts[begin : begin + CALL_VALUES])
        statuses[begin : begin + len(told)] = told
        if Status.ERROR in told:
            break
    return statuses


def _key(name: Name) -> str:
    return f"{_PREFIX}/{name.fingerprint.hex()}/{name.key.hex()}/{name.shard}"


def _places(parts: Sequence[Part], headers: int) -> tuple[list[list[int]], list[list[int]]]:
    """Addresses and lengths of each value's two pieces."""
    return (
        [[headers + at * HEADER_BYTES, part.address] for at, part in enumerate(parts)],
        [[HEADER_BYTES, part.payload_bytes] for part in parts],
    )
