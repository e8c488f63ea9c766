"""The ledger of asynchronous loads and saves the connector was told of.

Each id is announced to ``get_finished`` once, when its transfer starts, and must
come back exactly once on every rank; an unknown or repeated id is a ``KeyError``
(host contract §3; E4 ignores it). An id acts only when all ranks have returned it,
in whichever iterations (§5). A request whose ``request_finished`` answered True
twice holds two references, which one completion does not release: its pages leak,
as on the real host (host contract §6).

Must not know: requests, the connector. Executor thread only.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

Tables = list[list[int]]
Reported = tuple[list[int], list[int]]
"""Ids whose saves ended, ids whose loads ended; a repeated id counts as often as it stands."""


class TransferLedger:
    """What is pending, what is still to be announced, and what this rank has returned.

    Args:
        ignore_unknown: Whether ids that are not pending are ignored (E4).
        skew: Calls of ``report`` by which what it is told counts late: ranks differ.
    """

    def __init__(self, *, ignore_unknown: bool = False, skew: int = 0) -> None:
        self._saving: dict[int, list[Tables]] = {}
        self._loading: set[int] = set()
        self._new_saves: list[int] = []
        self._new_loads: list[int] = []
        self._open = (Counter[int](), Counter[int]())  # what this rank has still to return
        self._returned = (Counter[int](), Counter[int]())  # what other ranks are waited for with
        self._ignore_unknown = ignore_unknown
        self._late: deque[Reported] = deque([([], []) for _ in range(skew)])

    @property
    def num_saving_pages(self) -> int:
        """Pages held for saves, counted once per reference."""
        tables = [table for held in self._saving.values() for kept in held for table in kept]
        return sum(len(table) - table.count(-1) for table in tables)

    @property
    def num_loading(self) -> int:
        """Loads pending, those of cancelled requests included."""
        return len(self._loading)

    def is_pending(self, request_id: int) -> bool:
        """Whether any transfer of a request has not ended on every rank."""
        return request_id in self._loading or request_id in self._saving

    def __bool__(self) -> bool:
        return bool(self._loading or self._saving)

    def start_save(self, request_id: int, tables: Sequence[Sequence[int]]) -> None:
        """Hold pages (one reference each) until the id is reported saved."""
        self._saving.setdefault(request_id, []).append([list(table) for table in tables])
        self._new_saves.append(request_id)
        self._open[0][request_id] += 1

    def start_load(self, request_id: int) -> None:
        """Expect the id to be reported loaded."""
        self._loading.add(request_id)
        self._new_loads.append(request_id)
        self._open[1][request_id] += 1

    def announce(self) -> Reported:
        """Ids not announced yet: saves, loads."""
        announced = self._new_saves, self._new_loads
        self._new_saves, self._new_loads = [], []
        return announced

    def report(self, saved: Sequence[int], loaded: Sequence[int]) -> Reported:
        """Take what this rank's connector returned.

        Args:
            saved: Ids whose saves ended here.
            loaded: Ids whose loads ended here.

        Returns:
            All that this rank has returned and that has not acted yet; to be gathered.

        Raises:
            KeyError: If an id is not pending here, or comes more often than it is.
        """
        known: Reported = ([], [])
        for kind, ids in enumerate((saved, loaded)):
            for request_id in ids:
                if self._open[kind][request_id] > 0:
                    self._open[kind][request_id] -= 1
                    known[kind].append(request_id)
                elif not self._ignore_unknown:
                    what = ("saved", "loaded")[kind]
                    raise KeyError(
                        f"get_finished reported {request_id} {what}, which is not pending"
                    )
        self._late.append(known)
        for returned, due in zip(self._returned, self._late.popleft(), strict=True):
            returned.update(due)
        return sorted(self._returned[0].elements()), sorted(self._returned[1].elements())

    def settle(self, gathered: Sequence[Reported]) -> tuple[list[Tables], list[int]]:
        """Act on what every rank has returned.

        Args:
            gathered: What ``report`` returned, of all ranks.

        Returns:
            The pages of the saves that ended, per layer group, and the ids of the loads.
        """
        everywhere = []
        for kind in (0, 1):
            common = Counter(gathered[0][kind])
            for reported in gathered[1:]:
                common &= Counter(reported[kind])
            self._returned[kind].subtract(common)
            everywhere.append(sorted(common.elements()))
        self._loading.difference_update(everywhere[1])
        return [self._finish_save(request_id) for request_id in everywhere[0]], everywhere[1]

    def _finish_save(self, request_id: int) -> Tables:
        held = self._saving[request_id]
        tables = held.pop()
        if not held:
            del self._saving[request_id]
        return tables
