"""A server that is broken on purpose: ``python -m tests.restarts.broken order … launch …``.

Takes one guard away and launches. A run against it must find wrong bytes; else the run, not the
guard, is worth nothing. Must not know: runs. Runs in place of the server.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from protocol.ids import ID_BYTES
from server.__main__ import main
from server.core import records
from server.core.effects import WriteRecords
from server.core.quarantine import Quarantine
from server.core.reservations import Reservations
from server.core.slots import Slots
from server.core.stores import StorePlan
from server.shell.extents import ExtentFile


def records_first() -> None:
    """The publish order turned round: records are written, and then the bytes are copied."""
    reserve = Reservations.reserve
    generations = itertools.count(1 << 40, 1 << 10)

    def reserve_and_record(self: Any, plan: StorePlan) -> Slots | None:
        done = len(plan.slots)
        numbers = reserve(self, plan)
        if numbers is not None and numbers.size:
            first, owner = plan.held + done, plan.owner
            rows = records.build(
                keys=plan.keys[first * ID_BYTES : (first + numbers.size) * ID_BYTES],
                parent=plan.key(first - 1) if first else plan.parent_key,
                fingerprint=owner.fingerprint,
                shard=plan.shard,
                chunk_blocks=owner.namespace.chunk_blocks,
                payload_bytes=owner.namespace.slot_payload_bytes(plan.shard),
                owner=plan.session.instance.instance,
                stamp_us=self._clock.now_us,
                first_generation=next(generations),
            )
            extents = self._slots.extent[numbers]
            for extent, mine in self._slots.by_extent(numbers):
                which = rows[extents == extent]
                self._outbox.add(WriteRecords(extent, self._slots.local[mine], which))
        return numbers

    _replace(Reservations, "reserve", reserve_and_record)


def records_stay() -> None:
    """The other half of the order: a slot's record still stands while other bytes come."""
    _replace(ExtentFile, "void", lambda self, slots: None)
    _replace(ExtentFile, "reuse", lambda self, slots: None)


def without_quarantine() -> None:
    """What former engines may still read is reused at once."""
    _replace(Quarantine, "seal", lambda self, extent: None)


def _replace(kind: type, name: str, function: Callable[..., Any]) -> None:
    assert callable(getattr(kind, name)), f"{kind.__name__} has no {name}: nothing would be broken"
    setattr(kind, name, function)


BREAKS: Final[Mapping[str, Callable[[], None]]] = {
    "records-first": records_first,
    "records-stay": records_stay,
    "quarantine": without_quarantine,
}
"""By name."""

if __name__ == "__main__":
    BREAKS[sys.argv[1]]()
    sys.argv[: sys.argv.index("launch")] = ["server"]
    main()
