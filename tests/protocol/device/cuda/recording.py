"""A driver that writes down what it is asked, for logic that needs no bindings."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from protocol.device.cuda.driver import Driver
from protocol.device.interface import DeviceError


class Recorder:
    """Answers as ``Driver`` does; events are done unless named as pending."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.pending: set[int] = set()
        self.failures: dict[str, DeviceError] = {}
        self.hooks: dict[str, Callable[[], object]] = {}
        self._lock = threading.Lock()
        self._made = 100

    def as_driver(self) -> Driver:
        return cast(Driver, self)

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]

    def note(self, name: str, *arguments: Any) -> None:
        with self._lock:
            self.calls.append((name, *arguments))
        if name in self.hooks:
            self.hooks[name]()
        if name in self.failures:
            raise self.failures[name]

    def _make(self) -> int:
        with self._lock:
            self._made += 1
            return self._made

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        self.note("enter")
        try:
            yield
        finally:
            self.note("leave")

    def create_stream(self) -> int:
        self.note("create_stream")
        return self._make()

    def create_event(self) -> int:
        self.note("create_event")
        return self._make()

    def stream(self, handle: int) -> int:
        return handle

    def record(self, event: int, stream: int) -> None:
        self.note("record", event, stream)

    def wait(self, stream: int, event: int) -> None:
        self.note("wait", stream, event)

    def is_done(self, event: int) -> bool:
        self.note("is_done", event)
        return event not in self.pending

    def copy(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        self.note("copy", target, source, num_bytes, stream)

    def copy_all(
        self, targets: Sequence[int], sources: Sequence[int], sizes: Sequence[int], stream: int
    ) -> None:
        self.note("copy_all", len(targets), stream)

    def load(self, image: bytes, kernel: bytes) -> str:
        self.note("load", image, kernel)
        return "function"

    def launch(
        self, kernel: str, num_blocks: int, num_threads: int, parameters: int, stream: int
    ) -> None:
        self.note("launch", kernel, num_blocks, num_threads, stream)

    def open(self, handle: bytes) -> int:
        self.note("open", handle)
        return 1 << 40

    def close(self, address: int) -> None:
        self.note("close", address)

    def range_of(self, address: int) -> tuple[int, int]:
        self.note("range_of", address)
        return address - 4096, 1 << 20

    def lock(self, address: int, num_bytes: int, is_read_only: bool) -> None:
        self.note("lock", is_read_only)
        if is_read_only and "lock read-only" in self.failures:
            raise self.failures["lock read-only"]

    def unlock(self, address: int) -> None:
        self.note("unlock", address)
