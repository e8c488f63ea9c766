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

from collections.abc import Sequence
from typing import Any, Final

import torch

from adapter.conformance.host.connector import ConnectorPort
from adapter.conformance.host.forward import ForwardEntry, ForwardModel, TokenCell
from adapter.conformance.host.streams import HostEvent, HostStream
from adapter.pages import shared_pool

_POISON_BYTE: Final = 0xFF
_CLOSE_TIMEOUT_S: Final = 10.0


class Device:
    """One rank's pool and streams.

    Args:
        model: Runs on the pool.
        num_blocks: Pages of the pool.

    Attributes:
        pool: The KV pool tensor, shareable with a server.
        main: Stream M.
        execution: Stream X.
    """

    def __init__(self, model: ForwardModel, num_blocks: int) -> None:
        shape = model.pool_shape(num_blocks)
        self.pool = shared_pool(shape.shape, getattr(torch, shape.dtype_name))
        self._bytes = self.pool.view(torch.uint8).view(num_blocks, -1)
        self._bytes.fill_(_POISON_BYTE)
        self._model = model
        model.bind_pool(self.pool)
        self.main = HostStream("M")
        self.execution = HostStream("X")
        self._copies = HostStream("C")

    def poison(self, blocks: Sequence[int]) -> None:
        """Spoil pages in X's order, before anything later on M (loads) or X.

        Args:
            blocks: Page ids just handed out.
        """
        if not blocks:
            return
        ids = list(blocks)
        self.execution.enqueue(lambda: self._fill(ids))
        # Nothing on a real host writes here, so a load ordered on M must not race with it.
        self.main.wait_stream(self.execution)

    def copy_page(self, source: int, target: int) -> None:
        """V1's partial-reuse copy: ordered against X, not against M.

        Args:
            source: Page whose beginning matches.
            target: Page just handed out.
        """
        self._copies.wait_stream(self.execution)
        self._copies.enqueue(lambda: self._copy(source, target))
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
        stream.enqueue(lambda: model.begin(entries))
        for layer in range(model.num_layers):
            if layer_hooks:
                port.before_layer(layer, stream, has_load=has_load)
            stream.enqueue(_layer_work(model, layer, entries))
            if layer_hooks:
                port.after_layer(layer, stream)
        stream.enqueue(lambda: model.end(entries))
        port.after_forward()
        self.main.wait_stream(stream)

    def sample(self, entries: Sequence[ForwardEntry], cells: Sequence[TokenCell]) -> HostEvent:
        """Queue sampling on M.

        Args:
            entries: Entries of the last forward that want a sample.
            cells: One per entry, filled when the work runs.

        Returns:
            An event behind the samples.
        """
        pairs = list(zip(entries, cells, strict=True))
        self.main.enqueue(lambda: _sample(self._model, pairs))
        return self.main.record_event()

    def warm_up(self, port: ConnectorPort, timeout_s: float) -> None:
        """Run one dummy forward without hooks (host contract §4, step 5).

        Args:
            port: Its forward callable is called.
            timeout_s: Longest wait in seconds.
        """
        memo = self._model.new_memo([0])
        dummy = ForwardEntry(0, 1, [0], (0,), wants_sample=True, first=True, memo=memo)
        self.launch([dummy], port, layer_hooks=False)
        self.poison([0])
        self.main.synchronize(timeout_s)

    def close(self) -> None:
        """Stop the streams; the pool lives on as long as someone holds it."""
        for stream in (self.main, self.execution, self._copies):
            stream.close(_CLOSE_TIMEOUT_S)

    def _fill(self, ids: list[int]) -> None:
        for block in ids:
            self._bytes[block].fill_(_POISON_BYTE)

    def _copy(self, source: int, target: int) -> None:
        self._bytes[target].copy_(self._bytes[source])


def _layer_work(model: ForwardModel, layer: int, entries: Sequence[ForwardEntry]) -> Any:
    return lambda: model.layer(layer, entries)


def _sample(model: ForwardModel, pairs: list[tuple[ForwardEntry, TokenCell]]) -> None:
    for entry, cell in pairs:
        cell.token, cell.logits = model.sample(entry)
