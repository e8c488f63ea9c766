"""An engine whose pages are in device memory: the real adapter, driven as in the adapter's tests.

Pages hold bytes that follow from their tokens. They are written and read by work on the engine's
stream alone, as kernels would; reads go to page-locked memory and are compared there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from adapter.config import ENV_BUDGET_MS, ENV_HELD_PERCENT, ENV_LOAD_MODE
from adapter.loadmode import AUTO
from protocol.device.interface import Batch, Direction, MemoryKind
from tests.adapter.enginerig import SIZE, EngineRig, page_content, write_model
from tests.adapter.hostlike import Output
from tests.gpu.ground import Ground, finish
from tests.gpu.layout import Group, Layout, Region

LAYERS, HEADS = 2, 2
READY_LIMIT_S = 20.0
"""Less than any step has, so that the step itself says what it waited for."""
POISON = 0xFF
HANDLE, RING = "handle", "ring"
_LOG_LINES = 12


@dataclass(frozen=True)
class DeviceTensor:
    """A contiguous tensor by duck typing, over an address."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    element_bytes: int
    device: str

    def stride(self) -> tuple[int, ...]:
        return tuple(int(np.prod(self.shape[at + 1 :])) for at in range(len(self.shape)))

    def element_size(self) -> int:
        return self.element_bytes

    def data_ptr(self) -> int:
        return self.address


@dataclass(frozen=True)
class PoolKind:
    """What a pool is made of.

    Attributes:
        dtype: name of the element type.
        element_bytes: bytes of one.
        memory: how it is made.
        page_bytes: of one page: two layers, K and V, two heads.
        block_tokens: tokens of one block.
    """

    dtype: str = "float16"
    element_bytes: int = 2
    memory: MemoryKind = MemoryKind.DEVICE
    page_bytes: int = 4096
    block_tokens: int = SIZE

    @property
    def elements(self) -> int:
        """Of one layer's K or V of one block."""
        return self.page_bytes // (2 * LAYERS * self.element_bytes)

    @property
    def head_elements(self) -> int:
        """Of one head of one token."""
        return self.elements // (self.block_tokens * HEADS)


class Scratch:
    """Page-locked rows; whoever gets one may use it until all were given out once more."""

    def __init__(self, device: Any, num_rows: int, row_bytes: int) -> None:
        self._buffer = device.pinned_buffer(num_rows * row_bytes)
        self._rows = self._buffer.view.reshape(num_rows, row_bytes)
        self._address, self._row_bytes = self._buffer.address, row_bytes
        self._next = 0

    def take(self, count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Row numbers and their addresses, int64[count] each."""
        assert count <= len(self._rows), "a row would be used twice at once"
        rows = (self._next + np.arange(count, dtype=np.int64)) % len(self._rows)
        self._next += count
        return rows, self._address + rows * self._row_bytes

    def __getitem__(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.asarray(self._rows[rows])

    def __setitem__(self, row: int, content: Any) -> None:
        self._rows[row] = content

    def close(self) -> None:
        self._buffer.close()


class DeviceRig(EngineRig):
    """One engine on a ground.

    Args:
        url: of the server.
        folder: for the model; engines with one folder share.
        ground: where its pages are.
        kind: of its pool.
        num_pages: of its pool.
        num_rows: of page-locked memory for what is written and read; 0 for four times the pages.
        load_mode: setting of the adapter.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        ground: Ground,
        kind: PoolKind,
        num_pages: int = 64,
        num_rows: int = 0,
        load_mode: str = AUTO,
    ) -> None:
        model = write_model(folder, num_key_value_heads=HEADS, head_dim=kind.head_elements)
        # Pools are small, and a machine that is busy with others is no reason for a miss.
        settings = {ENV_HELD_PERCENT: "100", ENV_BUDGET_MS: "1000", ENV_LOAD_MODE: load_mode}
        with patch.dict(os.environ, settings):
            super().__init__(url, model, num_pages)
        self.ground, self.kind, self.page_bytes = ground, kind, kind.page_bytes
        self.pages = range(num_pages)  # type: ignore[assignment]
        self.device = ground.device
        self.main = ground.main_stream()
        self.stream = self.main  # what hooks are given; a test may give them another one
        self.own = self.device.borrow_stream(self.main)
        self.memory = ground.allocate(kind.memory, num_pages * kind.page_bytes)
        self.scratch = Scratch(self.device, num_rows or 4 * num_pages, kind.page_bytes)
        self.tensor = DeviceTensor(  # type: ignore[assignment]
            self.memory.address,
            (num_pages, LAYERS, 2, kind.elements),
            f"torch.{kind.dtype}",
            kind.element_bytes,
            ground.tensor_device,
        )
        self.server_log = Path(url.removeprefix("ipc://")).parent / "server.log"
        self.num_wrong = 0

    @property
    def way(self) -> str:
        """How the server gets at the pages that are saved now: ``HANDLE`` or ``RING``.

        As the engine has it: a handle that the server cannot open is replaced by a ring.
        """
        return RING if "ring_lots_lent" in self.worker.counters() else HANDLE

    def check_way(self) -> str:
        """Refuses the other way: all would be right with it, and nothing shown of this one.

        Returns:
            The way.

        Raises:
            AssertionError: pages go another way than memory of this kind must; why is in the text.
        """
        wanted = HANDLE if self.kind.memory is MemoryKind.DEVICE else RING
        assert self.way == wanted, (
            f"the pool is shared by {self.way} and not by {wanted}; `python -m server doctor` says "
            f"more; {self.told()}"
        )
        return wanted

    def told(self) -> str:
        """The end of what the server said, and the engine's counters."""
        try:
            lines = self.server_log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            lines = [str(error)]
        said = "\n".join(lines[-_LOG_LINES:])
        return f"engine: {self.worker.counters()}; the end of the server's log:\n{said}"

    def register(self) -> DeviceRig:
        """Registers as its kind of memory is: V1's tensor, or V2's layout for virtual memory."""
        if self.kind.memory is MemoryKind.VIRTUAL:
            self.worker.register_kv_cache_layout(self.layout())
            self.scheduler.wait_for_initialization()
        else:
            super().register()
        self.await_server()
        return self

    def await_server(self) -> float:
        """Waits until the server reads the pool, and all it holds for this engine can be loaded.

        A copier that begins CUDA takes seconds, and so do extents that are page-locked; an engine
        runs uncached meanwhile, which here would only be a test that shows nothing.

        Returns:
            Seconds.

        Raises:
            AssertionError: that takes too long, or the server reads another way than it must.
        """
        begun_s = time.perf_counter()
        while (
            (link := self.worker.link) is None
            or link.joined is None
            or self.stats()["extents_unmapped"]
        ):
            assert time.perf_counter() - begun_s < READY_LIMIT_S, (
                f"not registered, or extents not page-locked, in {READY_LIMIT_S:.0f} s; "
                f"{self.told()}"
            )
            time.sleep(0.005)  # a pace, not a wait: the loop ends by its condition
            self.iterate(Output())
        self.check_way()
        return time.perf_counter() - begun_s

    def layout(self) -> Layout:
        """V2's description: keys and values apart."""
        half, count = self.page_bytes // 2, len(self.pages)
        regions = [
            Region(
                self.memory.address + at * half * count,
                half,
                half,
                count,
                [(layer, role, 1) for layer in range(LAYERS)],
            )
            for at, role in enumerate(("key", "value"))
        ]
        return Layout(SIZE, [Group(0, list(range(LAYERS)), None, regions)], self.tensor.dtype)

    # --- pages, through the engine's stream ---

    def places(self, pages: Any) -> np.ndarray[Any, Any]:
        """Addresses of pages' parts, int64[num_pages, num_parts]; all parts of one length."""
        numbers = np.asarray(pages, dtype=np.int64)[:, None]
        if self.kind.memory is not MemoryKind.VIRTUAL:
            return self.memory.address + numbers * self.page_bytes
        half = self.page_bytes // 2
        begins = self.memory.address + np.array([0, half * len(self.pages)], dtype=np.int64)
        return np.asarray(begins + numbers * half)

    def move(self, pages: list[int], direction: Direction) -> tuple[Any, Callable[[], Any]]:
        """Queues a copy of pages from or to page-locked rows.

        Returns:
            Row numbers, and what queues the copy.
        """
        places = self.places(pages)
        part_bytes = self.page_bytes // places.shape[1]
        rows, addresses = self.scratch.take(len(pages))
        there = (addresses[:, None] + np.arange(places.shape[1]) * part_bytes).ravel()
        here, sizes = places.ravel(), np.full(places.size, part_bytes, dtype=np.int64)
        if direction is Direction.TO_DEVICE:
            batch = Batch(here, there, sizes)
        else:
            batch = Batch(there, here, sizes)
        return rows, lambda: self.device.copy(self.own, batch, direction)

    def write(self, pages: list[int], contents: list[Any]) -> None:
        """Queues that pages get their contents."""
        if pages:
            rows, queue = self.move(pages, Direction.TO_DEVICE)
            for row, content in zip(rows.tolist(), contents, strict=True):
                self.scratch[row] = content
            queue()

    def read(self, pages: list[int]) -> np.ndarray[Any, Any]:
        """Queues that rows get what is in pages.

        Returns:
            Their numbers; the rows have it when the stream is that far.
        """
        rows, queue = self.move(pages, Direction.TO_HOST)
        queue()
        return np.asarray(rows)

    def finish(self) -> None:
        """Waits until the engine's stream has done everything."""
        finish(self.device, self.own)

    def expected(self, tokens: list[int], stop: int) -> list[Any]:
        """What the first ``stop`` pages of a prompt hold."""
        blocks = range(1, stop + 1)
        return [page_content(tokens[: block * SIZE], self.page_bytes) for block in blocks]

    def wipe(self, pages: list[int]) -> None:
        """What the pages held is gone once the stream gets there; the host hands them out anew."""
        self.write(pages, [POISON] * len(pages))

    def fill(self, tokens: list[int], pages: list[int], first: int) -> None:
        stop = len(tokens) // SIZE
        self.write(pages[first:stop], self.expected(tokens, stop)[first:])

    def check(self, tokens: list[int], pages: list[int], stop: int) -> None:
        found = self.read(pages)
        self.finish()
        wanted = self.expected(tokens, stop) + [POISON] * (len(pages) - stop)
        for at, (row, content) in enumerate(zip(self.scratch[found], wanted, strict=True)):
            assert np.array_equal(row, np.broadcast_to(content, row.shape)), f"page {at} is wrong"

    def close(self) -> None:
        super().close()
        self.finish()
        self.scratch.close()
        self.memory.close()
