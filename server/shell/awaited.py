"""Processes of former incarnations that may still touch the arena, until the last one is gone.

Purpose: each is seen to exit through its pidfd, or says Drained itself; then its file goes and the
core is told. Whose end cannot be seen from here stays until it says so. Must not know: what waits
for them. Runs in: made in the main thread at start, then in the side socket's thread.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from protocol.ids import Epoch, Token
from server.core.adoption import PartyId
from server.shell import parties
from server.shell.parties import Party


@dataclass(eq=False)
class AwaitedParty:
    """One process.

    Attributes:
        party: the number by which the core knows it.
        path: of its file.
        said: what its file says, or None for one that cannot be read.
        pidfd: readable once it has exited, or None when it cannot be watched.
    """

    party: PartyId
    path: str
    said: Party | None
    pidfd: int | None = None

    @property
    def role(self) -> str:
        """What it is, for people."""
        return "unknown" if self.said is None else self.said.role

    def close(self) -> None:
        """Closes its pidfd; its file stays."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


class Awaited:
    """All of them.

    Args:
        entries: who there is.
    """

    def __init__(self, entries: list[AwaitedParty]) -> None:
        self._entries = list(entries)

    def __len__(self) -> int:
        """How many are left."""
        return len(self._entries)

    @property
    def watched(self) -> list[AwaitedParty]:
        """Those with a pidfd."""
        return [one for one in self._entries if one.pidfd is not None]

    def drained(self, epoch: Epoch, token: Token, pid: int, start_ticks: int) -> list[AwaitedParty]:
        """Those that a process means which says Drained.

        Args:
            epoch: the incarnation it names.
            token: that incarnation's token, or empty.
            pid: of the process that says so, or 0 when its number is not known here.
            start_ticks: its start.

        Returns:
            Engines of this very process only: by its number where that is the same as then, or
            by a token that nobody else was given.
        """
        known = parties.digest(token) if token else None
        return [
            one
            for one in self._entries
            if one.said is not None
            and one.said.role == "engine"
            and one.said.epoch == epoch.hex()
            and (
                (known is not None and one.said.token == known)
                or (
                    one.pidfd is not None
                    and (one.said.pid, one.said.start_ticks) == (pid, start_ticks)
                )
            )
        ]

    def gone(self, entry: AwaitedParty) -> None:
        """Forgets one, closes its pidfd and removes its file.

        Args:
            entry: one of them, taken out of every selector.
        """
        self._entries.remove(entry)
        entry.close()
        parties.drop(entry.path)

    def close(self) -> None:
        """Closes every pidfd; the files stay for the next server."""
        for entry in self._entries:
            entry.close()
