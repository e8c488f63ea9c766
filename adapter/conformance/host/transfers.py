"""The ledger of asynchronous loads and saves the connector was told of.

Each id is announced to ``get_finished`` once, when its transfer starts, and must
come back exactly once; an unknown or repeated id is a ``KeyError`` (host contract
§3). A request whose ``request_finished`` answered True twice holds two
references, which one completion does not release: its pages leak, as on the
real host (host contract §6).

Must not know: requests, the connector. Executor thread only.
"""

from __future__ import annotations

from collections.abc import Sequence


class TransferLedger:
    """What is pending, and what is still to be announced."""

    def __init__(self) -> None:
        """Start with nothing pending."""
        self._saving: dict[int, list[list[int]]] = {}
        self._loading: set[int] = set()
        self._new_saves: list[int] = []
        self._new_loads: list[int] = []

    @property
    def num_saving_pages(self) -> int:
        """Pages held for saves, counted once per reference."""
        return sum(len(blocks) for held in self._saving.values() for blocks in held)

    @property
    def num_loading(self) -> int:
        """Loads pending, those of cancelled requests included."""
        return len(self._loading)

    def start_save(self, request_id: int, blocks: Sequence[int]) -> None:
        """Hold pages (one reference each) until the id is reported saved."""
        self._saving.setdefault(request_id, []).append(list(blocks))
        self._new_saves.append(request_id)

    def start_load(self, request_id: int) -> None:
        """Expect the id to be reported loaded."""
        self._loading.add(request_id)
        self._new_loads.append(request_id)

    def announce(self) -> tuple[list[int], list[int]]:
        """Ids not announced yet: saves, loads."""
        announced = self._new_saves, self._new_loads
        self._new_saves, self._new_loads = [], []
        return announced

    def finish_save(self, request_id: int) -> list[int]:
        """Take one completion of a save.

        Returns:
            The pages it releases.

        Raises:
            KeyError: If no save of this id is pending.
        """
        if request_id not in self._saving:
            raise KeyError(f"get_finished reported {request_id} saved, which is not pending")
        held = self._saving[request_id]
        blocks = held.pop()
        if not held:
            del self._saving[request_id]
        return blocks

    def finish_load(self, request_id: int) -> None:
        """Take the completion of a load.

        Raises:
            KeyError: If no load of this id is pending.
        """
        if request_id not in self._loading:
            raise KeyError(f"get_finished reported {request_id} loaded, which is not pending")
        self._loading.remove(request_id)
