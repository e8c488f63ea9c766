"""Removes all keys of a namespace from a Valkey store, a slice at a time.

Purpose: keys of all namespaces lie side by side, so all of them are walked over; with millions that
takes longer than one call may. A sweep goes on where it stopped, and begins anew where its place
means nothing any more: a server was replaced or started again, slots moved. Every request is one to
a single server, and ends in the client's own time; the client's own scan of a cluster waits without
end for a primary that is away. Must not know: values. Runs in: the porter, one thread at a time.
"""

from __future__ import annotations

import time
from typing import Any

from server.tiers.interface import TierError

COUNT = 512
"""Keys of one request."""

_SLOTS = b"cluster_slots_ok:16384"


class Sweep:
    """One walk over all keys.

    Args:
        glide: the client library.
        is_cluster: whether its clients are of a cluster.
        pattern: of the keys to remove.

    Attributes:
        begun_s: when it was, by the monotonic clock.
    """

    def __init__(self, glide: Any, is_cluster: bool, pattern: str) -> None:
        self._glide = glide
        self._is_cluster = is_cluster
        self._pattern = pattern
        self._layout: object = None
        self._left: list[str] = []
        self._cursor = b"0"
        self.begun_s = time.monotonic()

    def go_on(self, client: Any, end_s: float) -> bool:
        """Removes some more, at least what one request finds.

        Args:
            client: of the library.
            end_s: no further request is begun after that, by the monotonic clock.

        Returns:
            Whether all is removed; after that, and after an error, the sweep is of no use.

        Raises:
            TierError: the store is not whole, or is not what it was when this began.
            GlideError: of the library.
        """
        servers, layout = self._look(client)
        if self._layout is None:
            self._left, self._layout = servers, layout
        self._raise_unless_same(layout)
        while self._left:
            self._cursor, keys = self._scan(client, self._left[-1])
            if keys:
                client.unlink(keys)
            if self._cursor == b"0":
                self._left.pop()
            if self._left and time.monotonic() >= end_s:
                return False
        self._raise_unless_same(self._look(client)[1])
        return True

    def _raise_unless_same(self, layout: object) -> None:
        if layout != self._layout:
            raise TierError("valkey: not cleared: the store changed meanwhile; begun anew")

    def _look(self, client: Any) -> tuple[list[str], object]:
        """The servers that hold keys, and what is another when their cursors mean nothing."""
        sections = [self._glide.InfoSection.SERVER]
        if not self._is_cluster:
            return [""], _run_id(client.info(sections))
        # What a primary that is away holds would come back with it.
        if _SLOTS not in client.custom_command(["CLUSTER", "INFO"]):
            raise TierError("valkey: not cleared: a primary is away")
        infos = client.info(sections, self._glide.AllPrimaries())
        runs = {_text(address): _run_id(info) for address, info in infos.items()}
        slots = client.custom_command(["CLUSTER", "SLOTS"])
        owners = sorted((row[0], row[1], _text(row[2][2])) for row in slots)
        return sorted(runs), (runs, owners)

    def _scan(self, client: Any, server: str) -> tuple[bytes, list[bytes]]:
        if not self._is_cluster:
            cursor, keys = client.scan(self._cursor, match=self._pattern, count=COUNT)
            return cursor, keys
        host, _, port = server.rpartition(":")
        command = ["SCAN", self._cursor, "MATCH", self._pattern, "COUNT", str(COUNT)]
        route = self._glide.ByAddressRoute(host, int(port))
        cursor, keys = client.custom_command(command, route)
        return cursor, keys


def _run_id(info: bytes) -> str:
    """Which start of a server it is."""
    for line in info.decode("utf-8", "replace").splitlines():
        if line.startswith("run_id:"):
            return line
    raise TierError("valkey: not cleared: a server does not say its run_id")


def _text(word: bytes | str) -> str:
    return word if isinstance(word, str) else word.decode("utf-8", "replace")
