"""The other side of saves in miniature: the saver's thread, its ring, and a server that copies.

Reads pages one by one, in any order, at any time between a STORE and its answer; what a COMMIT
publishes must be what the key says in every layer, and no ring slot may be lost or used twice.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adapter.layersaves import LayerSaves
from adapter.saveflow import SaveFlow, StoreOrder
from adapter.saveledger import SaveLedger
from protocol.ids import ID_BYTES
from protocol.messages import StopReason

LAYERS = 2

Contents = list[list[list[Any]]]
"""For each layer group and page, one value for each layer."""


@dataclass
class Copy:
    """A STORE that is staged or that the server works on."""

    order: StoreOrder
    unstaged: list[tuple[int, int]]
    store: int = 0
    held: int = 0
    unread: list[int] = field(default_factory=list)
    read: dict[int, Any] = field(default_factory=dict)


class SaveServer:
    """Saver and server; ``serve`` and ``settle`` do a little each."""

    def __init__(
        self,
        rng: random.Random,
        ledger: SaveLedger,
        layers: LayerSaves | None,
        contents: Contents,
        chunk: int,
    ) -> None:
        self.rng = rng
        self.ledger = ledger
        self.layers = layers
        self.flow = SaveFlow(ledger)
        self.pool = contents
        self.chunk = chunk
        self.ring: Contents = []
        if ledger.ring is not None:
            slots = [ledger.ring.num_slots(group) for group in range(len(contents))]
            self.ring = [[["empty"] * LAYERS for _ in range(count)] for count in slots]
        self.now_s = 0.0
        self.next_store = 1
        self.staging: list[Copy] = []
        self.copies: list[Copy] = []
        self.copied: dict[int, Copy] = {}
        self.published: set[tuple[int, bytes]] = set()
        self.num_published = 0

    # --- the saver's thread ---

    def serve(self) -> None:
        self._copy_layers()
        for order in self.flow.next_stores(6):
            pairs: list[tuple[int, int]] = []
            if order.lot is not None and order.sources is not None:
                pairs = list(zip(order.sources.tolist(), order.lot.slots.tolist(), strict=True))
            self.staging.append(Copy(order, pairs))
        for copy in list(self.staging):
            for _ in range(self.rng.randrange(0, 4)):
                if copy.unstaged:
                    page, slot = copy.unstaged.pop()
                    self.ring[copy.order.group][slot] = self.pool[copy.order.group][page]
            if not copy.unstaged:
                self.staging.remove(copy)
                self._send(copy)
        for copy in list(self.copies):
            self._work(copy)

    def _copy_layers(self) -> None:
        if self.layers is not None:
            self.layers.expire(self.now_s)
        while self.layers is not None:
            copy = self.layers.next_copy()
            if copy is None:
                return
            for run in copy.runs:
                group = run.lot.group
                for page, slot in zip(run.pages.tolist(), run.lot.slots.tolist(), strict=True):
                    old, new = self.ring[group][slot], self.pool[group][page]
                    self.ring[group][slot] = [
                        new[at] if at == copy.layer else old[at] for at in range(LAYERS)
                    ]
            self.layers.copied(copy, self.rng.random() < 0.97)

    def _send(self, copy: Copy) -> None:
        copy.store, self.next_store = self.next_store, self.next_store + 1
        self.flow.sent(copy.order.key, copy.order.group, copy.store)
        self.copies.append(copy)
        self._begin(copy)

    def settle(self) -> None:
        for it in self.flow.next_settlements(self.now_s):
            copy = self.copied.pop(it.store)
            if it.count:
                self._publish(copy, it.count)
            self.flow.settled(it.key, it.group, it.count, StopReason.NONE, self.now_s)

    def check_ring(self) -> None:
        """Every lent slot is in the hands of exactly one STORE, or of one staged run."""
        ring = self.ledger.ring
        if ring is None:
            return
        lots = [copy.order.lot for copy in (*self.staging, *self.copies)]
        for entry in self.ledger.entries():
            lots += [run.lot for lane in entry.lanes for run in lane.staged]
        assert len(lots) == len(set(lots)) == ring.num_lent
        for group in range(len(self.ring)):
            slots = [slot for lot in lots if lot and lot.group == group for slot in lot.slots]
            assert len(slots) == len(set(slots)) == ring.num_slots(group) - ring.num_free(group)

    # --- the server ---

    def _begin(self, copy: Copy) -> None:
        order = copy.order
        keys = keys_of(order)
        if order.first_chunk and not self._has_parent(order):
            self._answer(copy, 0, StopReason.MISSING_PARENT)
            return
        while copy.held < len(keys) and (order.group, keys[copy.held]) in self.published:
            copy.held += 1
        copy.unread = np.frombuffer(order.pages, dtype="<i4")[copy.held * self.chunk :].tolist()

    def _has_parent(self, order: StoreOrder) -> bool:
        entry = self.ledger.find(order.key)
        lane = None if entry is None else entry.lane(order.group)
        if lane is not None and lane.is_window:  # any group's chunk makes the parent known
            begun = [keys_of(copy.order) for copy in (*self.copies, *self.copied.values())]
            known = {key for keys in begun for key in keys} | {key for _, key in self.published}
            return order.parent in known
        return (order.group, order.parent) in self.published

    def _work(self, copy: Copy) -> None:
        memory = self.pool if copy.order.lot is None else self.ring
        self.rng.shuffle(copy.unread)
        for _ in range(self.rng.randrange(0, 3)):
            if copy.unread:
                page = copy.unread.pop()
                copy.read[page] = memory[copy.order.group][page]
        if not copy.unread:
            self._answer(copy, copy.order.num_chunks - copy.held, StopReason.NONE)

    def _answer(self, copy: Copy, count: int, stop: StopReason) -> None:
        self.copies.remove(copy)
        if count:
            self.copied[copy.store] = copy
        if self.ledger.ring is not None and copy.order.lot is not None:
            self.ledger.ring.give_back(copy.order.lot)
        order = copy.order
        self.flow.copied(order.key, order.group, copy.held, count, stop, self.now_s)

    def _publish(self, copy: Copy, count: int) -> None:
        order = copy.order
        pages = np.frombuffer(order.pages, dtype="<i4").tolist()
        for at, key in enumerate(keys_of(order)[copy.held : copy.held + count], start=copy.held):
            mine = pages[at * self.chunk : (at + 1) * self.chunk]
            assert copy.read[mine[-1]] == [key] * LAYERS, (order, at, copy.read[mine[-1]])
            for page in mine:
                assert all(isinstance(value, bytes) for value in copy.read[page]), copy.read[page]
            self.published.add((order.group, key))
            self.num_published += 1


def keys_of(order: StoreOrder) -> list[bytes]:
    return [order.keys[at : at + ID_BYTES] for at in range(0, len(order.keys), ID_BYTES)]
