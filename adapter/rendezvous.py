"""Where scheduler and worker of one engine meet inside a process.

Purpose: both classes are constructed at once, in two threads, each with nothing but ``llm_args``;
whoever comes first makes the shared part, the other finds it. The registry is weak: it ends with
its users, and an address that Python hands out again never leads to an old engine, because an
entry keeps its ``llm_args`` alive as long as it can be found. Must not know: hooks, sockets. Runs
in: any thread.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Final, Literal, TypeVar

Role = Literal["scheduler", "worker"]


class Party:
    """What the two share; subclassed by what they need.

    Attributes:
        llm_args: kept alive so that its identity stays unique; never compared by value, for the
            host's objects compare equal across engines and cannot be hashed.
    """

    def __init__(self, llm_args: object) -> None:
        """Keeps the key alive.

        Args:
            llm_args: the object both classes are given.
        """
        self.llm_args = llm_args
        self._members: dict[Role, weakref.ReferenceType[object]] = {}

    def has(self, role: Role) -> bool:
        """Whether a living object plays the role."""
        member = self._members.get(role)
        return member is not None and member() is not None

    def join(self, role: Role, member: object) -> None:
        """Notes who plays a role, weakly."""
        self._members[role] = weakref.ref(member)


P = TypeVar("P", bound=Party)


class Rendezvous:
    """A weak registry of parties by the identity of their ``llm_args``."""

    def __init__(self) -> None:
        """Starts empty."""
        self._lock = threading.Lock()
        self._parties: weakref.WeakValueDictionary[int, Party] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        """Parties that can be found."""
        return len(self._parties)

    def meet(
        self, llm_args: object, role: Role, member: object, kind: type[P], make: Callable[[], P]
    ) -> P:
        """Joins the party of ``llm_args``, or founds it.

        A second scheduler or worker of the same arguments belongs to another engine (the first
        one is being torn down): it founds a new party.

        Args:
            llm_args: the object both classes are given.
            role: who comes.
            member: the caller itself, held weakly.
            kind: class of the party.
            make: makes a party for ``llm_args``; called at most once, under the lock, so it must
                be quick.

        Returns:
            The party; the caller must keep it.
        """
        with self._lock:
            party = self._parties.get(id(llm_args))
            if not isinstance(party, kind) or party.llm_args is not llm_args or party.has(role):
                party = make()
                self._parties[id(llm_args)] = party
            party.join(role, member)
            return party


#: The one process-wide object here: two independently constructed classes have no other way.
MEETING_POINT: Final = Rendezvous()
