"""The S3 tier: one object for each value, its header in front.

Purpose: a large, slow store that many servers share. What it takes is one request per value, so the
parts of a call go out side by side, on threads that all calls share. Must not know: what is in a
header. Runs in: the porter, on its worker threads and as many threads of its own as the tier may
have requests under way.

A request is given up after some seconds and tried once more only when it failed at once; a call
begins none after its budget, so none lasts longer than nine seconds. Payloads are copied once,
between the slot and a buffer of the client: what the client still holds of a request that was given
up is never a slot. The store may still get it (``doubts``).
"""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from protocol.extras import install
from server.tiers.doubts import Doubts
from server.tiers.interface import HEADER_BYTES, Health, Name, Part, Status, Tier, TierError
from server.tiers.objectclient import SMALL_S, bucket_of, client_of, why_not_answered
from server.tiers.presence import Presence
from server.tierspec import TierSpec

EXISTS_S = 1.0
GET_S = 2.0
PUT_S = 2.0
CLEAR_S = 3.0
"""Budgets of one call: no further request is begun after that time."""

FULL_PAUSE_S = 1.0
"""So long a store that took nothing of a call is sent nothing more."""

REQUESTS_PER_THREAD = 4
"""Requests under way for each thread of the porter."""

_DELETE_GROUP = 1000
_REFUSED = re.compile(r"status code: 5\d\d|QuotaExceeded")
"""Of a put: the store answered the question before it, so it is there, and takes nothing more."""

_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_CAUSE = re.compile(r"(?:status code: \d{3} [A-Za-z ]+|HTTP error: [a-z ]+)")
_T = TypeVar("_T")
_R = TypeVar("_R")


def open(spec: TierSpec) -> Tier:  # noqa: A001
    """Reaches a bucket.

    Args:
        spec: of the kind ``s3``.

    Returns:
        The tier.

    Raises:
        TierError: the bucket is not there, or not for us; the library is missing.
    """
    try:
        library = importlib.import_module("obstore")
    except ImportError:
        raise TierError(f"s3: the package obstore is missing: {install('s3')}") from None
    asking, carrying = client_of(spec, SMALL_S), client_of(spec)
    tier = ObjectStore(library, asking, carrying, bucket_of(spec)[0], spec.concurrency)
    health = tier.health()
    if not health.ok:
        tier.close()
        raise TierError(health.note)
    return tier


class ObjectStore:
    """One bucket.

    Args:
        library: ``obstore``.
        asking: client of the bucket, below the prefix, for questions.
        carrying: the same for everything else, which may take longer.
        bucket: its name, for people.
        concurrency: threads of the porter.

    Attributes:
        moved: called after each object that was carried.
    """

    def __init__(
        self, library: Any, asking: Any, carrying: Any, bucket: str, concurrency: int
    ) -> None:
        self._library = library
        self._asking = asking
        self._client = carrying
        self._bucket = bucket
        self.moved: Callable[[], None] = lambda: None
        self._errors = (importlib.import_module("obstore.exceptions").BaseError, OSError)
        self._full_until = 0.0
        self._doubts = Doubts()
        self._seen = Presence(time.monotonic)
        self._threads = ThreadPoolExecutor(concurrency * REQUESTS_PER_THREAD, "kvkeep-s3")

    def batch_exists(self, names: Sequence[Name]) -> list[bool]:
        """As the interface says; what was seen lately is not asked for again.

        Raises:
            TierError: not even the first can be asked, which is not the same as that it is absent.
        """
        late: bool | BaseException = False
        answers = self._all(names, EXISTS_S, late, self._is_there)
        if answers and isinstance(answers[0], BaseException):
            raise TierError(self._told(answers[0]))
        return [answer is True for answer in answers]

    def batch_get_into(self, parts: Sequence[Part]) -> list[Status]:
        """As the interface says; nothing is written into a part once this returned."""
        return self._all(parts, GET_S, Status.ERROR, self._get)

    def batch_put(self, parts: Sequence[Part]) -> list[Status]:
        """As the interface says; what is there is not sent again, for others put the same."""
        if time.monotonic() < self._full_until:
            return [Status.NO_ROOM] * len(parts)
        statuses = self._all(parts, PUT_S, Status.ERROR, self._put)
        if statuses and all(status is Status.NO_ROOM for status in statuses):
            self._full_until = time.monotonic() + FULL_PAUSE_S
        return statuses

    def delete(self, names: Sequence[Name]) -> None:
        """As the interface says.

        Raises:
            TierError: some could not be deleted, or may come again.
        """
        for name in names:
            self._seen.forget(name)
        wanted = frozenset(names)
        with self._doubts.removal("s3", wanted.__contains__):
            if names:
                self._delete([path_of(name) for name in names])

    def clear(self, fingerprint: bytes) -> None:
        """As the interface says, within CLEAR_S; called again, it goes on with what is left.

        Raises:
            TierError: something is left.
        """
        self._seen.forget_all(fingerprint)
        with self._doubts.removal("s3", lambda name: name.fingerprint == fingerprint):
            self._clear(fingerprint)

    def _clear(self, fingerprint: bytes) -> None:
        end = time.monotonic() + CLEAR_S
        under_way: list[Future[None]] = []
        try:
            for paths in self._listed(f"kvkeep/1/{fingerprint.hex()}"):
                if time.monotonic() >= end:
                    raise TierError(f"s3: {self._bucket}: not cleared in {CLEAR_S} s; some is left")
                under_way.append(self._threads.submit(self._delete, paths))
        finally:
            problems = [future.exception() for future in under_way]
        for problem in filter(None, problems):
            raise problem

    def health(self) -> Health:
        """As the interface says; how much is in a bucket is not known."""
        try:
            self._library.list_with_delimiter(self._asking, "kvkeep/1/probe")
        except self._errors as error:
            why = why_not_answered(str(error), os.environ)
            return Health(False, note=f"s3: {self._bucket}: {why}" if why else self._told(error))
        self._doubts.answered()
        return Health(True)

    def register(self, address: int, size_bytes: int) -> None:
        """Nothing to do: any memory will do."""

    def unregister(self, address: int, size_bytes: int) -> None:
        """Nothing to do: any memory will do."""

    def close(self) -> None:
        """As the interface says; waits for the requests that are under way."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _all(
        self, items: Sequence[_T], budget_s: float, late: _R, do: Callable[[_T], _R]
    ) -> list[_R]:
        """Side by side; what was not begun within the budget counts as ``late``."""
        end = time.monotonic() + budget_s

        def one(item: _T) -> _R:
            return do(item) if time.monotonic() < end else late

        # All of them are waited for: a thread that is left behind would fill a slot later.
        return [*map(Future.result, [self._threads.submit(one, item) for item in items])]

    def _is_there(self, name: Name) -> bool | BaseException:
        if self._seen.has(name):
            return True
        try:
            return self._size(name) >= 0
        except self._errors as error:
            return error

    def _size(self, name: Name) -> int:
        """Bytes of the object, -1 when it is not there."""
        try:
            size = int(self._library.head(self._asking, path_of(name))["size"])
        except FileNotFoundError:
            return -1
        self._seen.note(name)
        return size

    def _get(self, part: Part) -> Status:
        try:
            found = self._library.get(self._client, path_of(part.name))
            if found.meta["size"] != HEADER_BYTES + part.payload_bytes:
                return Status.CORRUPT
            data = memoryview(found.buffer())
        except FileNotFoundError:
            self._seen.forget(part.name)
            return Status.ABSENT
        except self._errors:
            return Status.ERROR
        part.header[:] = data[:HEADER_BYTES]
        part.payload[:] = data[HEADER_BYTES:]
        self.moved()
        self._seen.note(part.name)
        return Status.OK

    def _put(self, part: Part) -> Status:
        is_sent = False
        try:
            if self._size(part.name) == HEADER_BYTES + part.payload_bytes:
                return Status.OK
            value = b"".join((part.header, part.payload))
            is_sent = True
            self._library.put(self._client, path_of(part.name), value, use_multipart=False)
        except self._errors as error:
            if _REFUSED.search(str(error)):
                return Status.NO_ROOM
            if is_sent:
                self._doubts.note([part.name])
            return Status.ERROR
        self.moved()
        self._seen.note(part.name)
        return Status.OK

    def _delete(self, paths: list[str]) -> None:
        try:
            self._library.delete(self._client, paths)
        except self._errors as error:
            raise TierError(self._told(error)) from None

    def _listed(self, prefix: str) -> Iterator[list[str]]:
        try:
            for found in self._library.list(self._client, prefix, chunk_size=_DELETE_GROUP):
                yield [one["path"] for one in found]
        except self._errors as error:
            raise TierError(self._told(error)) from None

    def _told(self, error: BaseException) -> str:
        """What went wrong, for people: the whole text may be long, and repeats the request."""
        text = str(error)
        found = _CODE.search(text) or _CAUSE.search(text)
        what = found[found.re.groups] if found else type(error).__name__
        return f"s3: {self._bucket}: {what}"


def path_of(name: Name) -> str:
    """Of an object, below the prefix."""
    return f"kvkeep/1/{name.fingerprint.hex()}/{name.key.hex()}/{name.shard}"
