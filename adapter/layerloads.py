"""Loads by layer: a layer's attention may begin when that layer's bytes are there.

That is right only where the engine asks before each layer, and engines that replay captured graphs
do not (host contract §4, rule 14). So the hooks' own record decides: a batch is trusted with it
only after such batches were seen to ask for every layer, and none was ever seen not to. Should a
trusted batch be found not to have asked, the forward computed on pages not known to be filled, and
that is raised.

Must not know: the host's classes, sockets, the order of a page's bytes. The executor's thread asks;
the loader's thread copies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Final, Protocol

from adapter.copy import HeldLoad, LoadError
from adapter.layercopies import LayerCopies
from adapter.loader import STREAM_LIMIT_S, again, as_load_error, pass_gate
from adapter.pagememory import LayerSlice
from adapter.saveentry import Mark
from protocol.errors import ErrorCode

STEP_BYTES: Final = 4 << 20
"""Some 0.2 ms of copying. Each time the forward's thread is told it wakes up and takes the
interpreter's lock: in 64 MiB of 32 layers, told of each, that costs a tenth of all."""


class LayerBatch(Protocol):
    """The loads of one batch, on their way layer by layer."""

    def wait(self, layer: int, stream: object) -> None:
        """Has what comes next on the forward's stream come after one layer's bytes.

        Raises:
            Exception: they did not come, or there is no telling.
        """

    def wait_all(self) -> None:
        """The same for all bytes and whatever comes next.

        Raises:
            Exception: as for ``wait``.
        """


class HookRecord:
    """Which layers a forward asked for, and what that says of later forwards."""

    def __init__(self, layers: Sequence[int]) -> None:
        """Trusts nothing.

        Args:
            layers: those with KV in the pool.
        """
        self._layers = frozenset(layers)
        self._seen: set[int] = set()
        self._is_expected = False
        self._num_full = 0
        self._num_short = 0

    @property
    def is_trusted(self) -> bool:
        """Whether each forward of the kind that should ask, did, and there was one."""
        return self._num_full > 0 and self._num_short == 0

    @property
    def missing(self) -> int:
        """Layers that this forward has not asked for so far."""
        return len(self._layers - self._seen)

    def begin(self, is_expected: bool) -> None:
        """A forward is about to be launched, or not after all.

        Args:
            is_expected: whether it should ask.
        """
        self._seen.clear()
        self._is_expected = is_expected

    def saw(self, layer: int) -> None:
        """The forward asked for a layer."""
        self._seen.add(layer)

    def launched(self) -> bool:
        """The forward was launched.

        Returns:
            Whether it is the first one that should have asked for every layer and did not.
        """
        is_expected, self._is_expected = self._is_expected, False
        if not is_expected:
            return False
        if not self.missing:
            self._num_full += 1
            return False
        self._num_short += 1
        return self._num_short == 1


class LayerLoad:
    """All loads of one batch, filled layer by layer: the first layer of all of them first.

    A job of the loader.

    Attributes:
        holding: lets go of the loads' extents; entered here before the job is submitted.
    """

    def __init__(
        self,
        loads: Sequence[HeldLoad],
        layers: Mapping[int, Sequence[LayerSlice]],
        gate: Mark | None,
        done: Callable[[LoadError | None], None],
        step_bytes: int = STEP_BYTES,
    ) -> None:
        """Copies nothing yet.

        Args:
            loads: their extents held.
            layers: where each layer lies, every byte of a page in one of them.
            gate: a point behind all work that may still use the pages.
            done: told how it went, once nothing is held any more.
            step_bytes: least that is copied, but for the first layer, before the forward is told.
        """
        self._loads = loads
        self._step_bytes = step_bytes
        self._layers = dict(sorted(layers.items()))
        self._gate = gate
        self.holding = ExitStack()
        self._done = done
        self._changed = threading.Condition()
        self._filled: set[int] = set()
        self._is_over = False
        self._failure: LoadError | None = None

    def run(self, is_stopped: Callable[[], bool]) -> None:
        """Fills the pages, layer by layer, checked before they count as filled."""
        failure: LoadError | None = None
        try:
            with self.holding:
                copies = [LayerCopies(load) for load in self._loads]
                pass_gate(self._gate, is_stopped)
                for layers in self._steps():
                    for layer in layers:
                        for copy in copies:
                            copy.copy(self._layers[layer], is_stopped)
                    for copy in copies:
                        copy.check()
                    with self._changed:
                        self._filled.update(layers)
                        self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - told to the engine's thread, which raises it
            failure = as_load_error(error)
        with self._changed:
            self._failure, self._is_over = failure, True
            self._changed.notify_all()
        self._done(failure)

    def _steps(self) -> Iterator[list[int]]:
        """Which layers count as filled together: the first one by itself, so that work begins."""
        layers = list(self._layers)
        layer_bytes = sum(load.num_bytes for load in self._loads) // max(1, len(layers))
        size = max(1, -(-self._step_bytes // max(1, layer_bytes)))
        yield layers[:1]
        for first in range(1, len(layers), size):
            yield layers[first : first + size]

    def wait(self, layer: int, stream: object = None, limit_s: float = STREAM_LIMIT_S) -> None:
        """Waits for one layer's bytes.

        Args:
            layer: model layer; one that has nothing in the pool is not waited for.
            stream: nothing on it runs ahead of this thread.
            limit_s: longest wait, seconds.

        Raises:
            LoadError: they did not come.
        """
        if layer in self._layers:
            self._await(lambda: layer in self._filled, f"layer {layer}", limit_s)

    def wait_all(self, limit_s: float = STREAM_LIMIT_S) -> None:
        """Waits for everything.

        Args:
            limit_s: longest wait, seconds.

        Raises:
            LoadError: it did not come.
        """
        self._await(lambda: len(self._filled) == len(self._layers), "a load", limit_s)

    def _await(self, is_there: Callable[[], bool], what: str, limit_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: is_there() or self._is_over, limit_s)
            if is_there():
                return
            failure = self._failure
        if failure is not None:
            raise again(failure)
        raise LoadError(ErrorCode.DEADLINE_EXCEEDED, f"{what} was not there within {limit_s:g} s")
