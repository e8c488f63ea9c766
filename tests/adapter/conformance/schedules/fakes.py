"""An engine of a few lines whose answers follow from the prompt, and that can be made to err."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from adapter.conformance.host.errors import RequestCancelledError
from adapter.conformance.schedules.draw import Ask
from adapter.conformance.schedules.subject import Look


@dataclass
class FakeAnswer:
    tokens: list[int]
    logits: list[Any]
    num_loaded_tokens: int = 0


def answer(ask: Ask) -> FakeAnswer:
    total = float(sum(ask.prompt))
    return FakeAnswer([len(ask.prompt) % 7], [torch.tensor([total, 1.0])])


class FakeHandle:
    def __init__(self, ask: Ask, spoil: bool, loaded: int = 0) -> None:
        self._ask, self._spoil, self._loaded = ask, spoil, loaded
        self.is_cancelled = False

    def result(self, timeout_s: float) -> FakeAnswer:
        if self.is_cancelled:
            raise RequestCancelledError("cancelled")
        found = answer(self._ask)
        found.num_loaded_tokens = self._loaded
        if self._spoil:
            found.logits[0][1] = 1.0000001
        return found


@dataclass
class FakeSubject:
    spoil_at: int = -1
    values: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("leases", "pinned_slots", "slots_reserved", "stores", "copies_in_flight"), 0
        )
    )
    counters: list[dict[str, int]] = field(default_factory=lambda: [{"held_pages": 0}])
    pages: tuple[int, int] = (8, 8)
    num_asked: int = 0
    died_of: str = ""
    loads_from: int = 1 << 30

    def submit(self, ask: Ask) -> FakeHandle:
        self.num_asked += 1
        loaded = 4 * (self.num_asked >= self.loads_from)
        return FakeHandle(ask, self.num_asked == self.spoil_at, loaded)

    def cancel(self, handle: Any) -> None:
        handle.is_cancelled = True

    def forget_reuse(self, timeout_s: float) -> None: ...

    def look(self) -> Sequence[Look]:
        free, total = self.pages
        return [Look(free, total, one, self.values, self.died_of) for one in self.counters]
