"""The device: the pool, its streams, and all work that touches pages.

Order as on the real host (host contract §5): X waits for M before a forward and
M for X after it; partial-reuse copies run on a stream of their own, ordered
against X and not M; samples follow ``wait_for_save`` on M.

Pages are poisoned (all bytes 0xFF, NaN for any float type) when they are handed
out, after the metadata is bound and before loads start. A page that was freed
and not handed out keeps its bytes, as on the real host, where nothing is written
before that point but a partial copy's destination.

Must not know: requests, the connector's rules. Called by the executor's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.forward import ForwardEntry, ForwardModel, TokenCell
from adapter.conformance.host.hardware import Hardware, HostHardware, WorkEvent
from adapter.conformance.host.memory import KvMemory, v1_memory

_POISON_BYTE: Final = 0xFF
_CLOSE_TIMEOUT_S: Final = 10.0


class Device:
    """One rank's pool and streams.

    Args:
        model: Runs on the pool.
        memory: All pages, or the number of pages of a shared V1 pool to make.
        hardware: Has the streams, and the memory if it is to be made; None is the host's.

    Attributes:
        hardware: What it works on.
        memory: All pages.
        pool: What a connector is given: the pool tensor, or the layout of a V2 cache.
        main: Stream M.
        execution: Stream X.
    """

    def __init__(
        self, model: ForwardModel, memory: KvMemory | int, hardware: Hardware | None = None
    ) -> None:
        hardware = hardware or HostHardware()
        if isinstance(memory, int):
            memory = v1_memory(model, memory, private=False, hardware=hardware)
        self.memory = memory
        self.pool = memory.registered
        for group in memory.groups:
            for region in group.regions:
                region.fill_(_POISON_BYTE)
        self._model = model
        model.bind_layers(memory.layers)
        self.hardware = hardware
        self.main = hardware.stream("M")
        self.execution = hardware.stream("X")
        self._copies = hardware.stream("C")

    def poison(self, pages: Sequence[Sequence[int]]) -> None:
        """Spoil pages in X's order, before anything later on M (loads) or X.

        Args:
            pages: Page ids just handed out, per layer group.
        """
        if not any(pages):
            return
        ids = [list(group) for group in pages]
        # As the next forward would: reads already on M come first (§5, "Freed pages").
        self.execution.wait_stream(self.main)
        self.execution.enqueue(lambda: self._fill(ids))
        # Nothing on a real host writes here, so a load ordered on M must not race with it.
        self.main.wait_stream(self.execution)

    def copy_page(self, source: int, target: int) -> None:
        """V1's partial-reuse copy, in the first group: ordered against X, not against M.

        Args:
            source: Page whose beginning matches.
            target: Page just handed out.
        """
        self._copies.wait_stream(self.execution)
        self._copies.enqueue(lambda: self.memory.groups[0].copy(source, target))
        self.execution.wait_stream(self._copies)

    def launch(
        self,
        entries: Sequence[ForwardEntry],
        port: ConnectorPort,
        *,
        layer_hooks: bool,
        has_load: bool = False,
    ) -> None:
        """Queue a forward on X, with the connector's hooks around each layer.

        Args:
            entries: What is computed.
            port: Takes layer hooks and the forward callable.
            layer_hooks: False for replayed graphs and warm-up.
            has_load: Whether this iteration loads; for the hooks' durations.
        """
        model, stream = self._model, self.execution
        stream.wait_stream(self.main)
        stream.enqueue(lambda: _begin(model, entries))
        for layer in range(model.num_layers):
            if layer_hooks:
                port.before_layer(layer, stream, has_load=has_load)
            stream.enqueue(_layer_work(model, layer, entries))
            if layer_hooks:
                port.after_layer(layer, stream)
        stream.enqueue(lambda: model.end(entries))
        port.after_forward()
        self.main.wait_stream(stream)

    def sample(
        self,
        entries: Sequence[ForwardEntry],
        cells: Sequence[TokenCell],
        behind: Callable[[], object] | None = None,
    ) -> WorkEvent:
        """Queue sampling on M.

        Args:
            entries: Entries of the last forward that want a sample.
            cells: One per entry, filled when the work runs.
            behind: Work on the samples, or None.

        Returns:
            An event behind the samples and the work on them.
        """
        pairs = list(zip(entries, cells, strict=True))
        self.main.enqueue(lambda: _sample(self._model, pairs))
        if behind is not None:
            self.main.enqueue(behind)
        sampled: WorkEvent = self.main.record_event()
        return sampled

    def dummy(self, tables: Sequence[Sequence[int]]) -> ForwardEntry:
        """A request of one token that nobody asked for.

        Args:
            tables: One page per layer group.
        """
        pages = tuple(tuple(table) for table in tables)
        memo = self._model.new_memo([0])
        return ForwardEntry(0, 1, [0], pages, wants_sample=False, first=True, memo=memo)

    def warm_up(self, port: ConnectorPort, timeout_s: float) -> None:
        """Run one dummy forward without hooks (host contract §4, step 5).

        Args:
            port: Its forward callable is called.
            timeout_s: Longest wait in seconds.
        """
        tables = tuple((0,) for _ in self.memory.groups)
        self.launch([self.dummy(tables)], port, layer_hooks=False)
        self.poison(tables)
        self.main.synchronize(timeout_s)

    def close(self) -> None:
        """Stop the streams; the pool lives on as long as someone holds it."""
        for stream in (self.main, self.execution, self._copies):
            stream.close(_CLOSE_TIMEOUT_S)

    def _fill(self, ids: list[list[int]]) -> None:
        for group, pages in zip(self.memory.groups, ids, strict=True):
            group.fill(pages, _POISON_BYTE)


def _begin(model: ForwardModel, entries: Sequence[ForwardEntry]) -> None:
    for entry in entries:
        entry.settle()
    model.begin(entries)


def _layer_work(model: ForwardModel, layer: int, entries: Sequence[ForwardEntry]) -> Any:
    return lambda: model.layer(layer, entries)


def _sample(model: ForwardModel, pairs: list[tuple[ForwardEntry, TokenCell]]) -> None:
    for entry, cell in pairs:
        cell.token, cell.logits = model.sample(entry)
