"""Waiting until a server has nothing left to do for its engines.

A hit needs its extent mapped by the engine, which happens in the background after
a server allocates one. Users do not wait for that; a count that must be exact does.

Must not know: what is counted afterwards. Runs in an engine's process, on its main
thread, with a connection of that thread's own.
"""

from __future__ import annotations

import time
from typing import Final

from adapter.channel import Channel
from adapter.link import Link
from protocol.errors import KvkeepError
from protocol.messages import Stats, StatsReply

_CALL_S: Final = 1.0
_POLL_S: Final = 0.002


class Calm:
    """Asks one server, over and over.

    Args:
        link: The connector's.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._channel: Channel | None = None

    def wait(self, timeout_s: float) -> bool:
        """Wait until every extent that was given to an engine is mapped there.

        Args:
            timeout_s: Longest wait in seconds.

        Returns:
            False if no server is there to ask.

        Raises:
            TimeoutError: If it takes longer.
        """
        deadline_s = time.monotonic() + timeout_s
        while self._link.joined is not None:
            if self._unmapped() == 0:
                return True
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"extents are not mapped after {timeout_s:.0f} s")
            time.sleep(_POLL_S)
        return False

    def close(self) -> None:
        """Give up the connection."""
        if self._channel is not None:
            self._channel.close()

    def _unmapped(self) -> int | None:
        if self._channel is None:
            self._channel = self._link.open_channel()
        try:
            reply = self._channel.call(Stats(), _CALL_S)
        except KvkeepError:
            return None  # the link notices on its own if the server is gone
        return reply.values.get("extents_unmapped") if isinstance(reply, StatsReply) else None
