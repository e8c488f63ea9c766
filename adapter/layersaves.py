"""Saves that begin while the forward runs: each layer goes into the ring as soon as it is computed.

One *wave* per forward: the chunks that it completes, ring slots for them, and a mark behind each
layer. A layer's bytes are copied once its mark is passed; a chunk is complete when all layers are.
Whether its tokens were computed at all is said later, as for every save; a wave that misses a
layer, or has one twice, is dropped, and its chunks are copied as whole pages when confirmed.

Must not know: sockets, the host's classes. ``begin_forward`` and ``layer_done`` run in the
executor's thread, the rest in the saver's; all but the copying under the saver's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from adapter.metadata import SaveNames
from adapter.saveentry import Mark
from adapter.saveflow import PROOF_S
from adapter.saveledger import SaveLedger
from adapter.stagedrun import StagedRun

MAX_WAVES: Final = 4
"""Forwards whose layers wait for their marks; the oldest is dropped for another."""

MAX_AGE_BINDS: Final = 256
"""Chunks staged this long ago without a word about their request give their slots back."""


@dataclass(eq=False)
class _Wave:
    """One forward.

    Attributes:
        runs: chunks that it completes.
        marks: layers that were launched and not copied yet, in order.
        called: layers that were launched.
        num_copied: layers that are in the ring.
        is_open: whether further layers may be launched.
    """

    runs: list[StagedRun]
    marks: deque[tuple[int, Mark]] = field(default_factory=deque)
    called: set[int] = field(default_factory=set)
    num_copied: int = 0
    is_open: bool = True


@dataclass(frozen=True)
class LayerCopy:
    """One layer of a wave, to be copied now.

    Attributes:
        layer: model layer.
        runs: into whose slots; marked as being written.
        wave: for ``copied``.
    """

    layer: int
    runs: tuple[StagedRun, ...]
    wave: _Wave


class LayerSaves:
    """All waves of one rank."""

    def __init__(self, ledger: SaveLedger, layers: Collection[int]) -> None:
        """Starts empty.

        Args:
            ledger: whose entries are staged; it has a ring.
            layers: all model layers.
        """
        self._ledger = ledger
        self._layers = frozenset(layers)
        self._waves: deque[_Wave] = deque()
        self._runs: deque[StagedRun] = deque()

    @property
    def has_work(self) -> bool:
        """Whether a layer waits for its mark."""
        return any(wave.marks for wave in self._waves)

    def begin_forward(self, names: Iterable[SaveNames]) -> None:
        """An iteration begins: the forward before it launches no further layer.

        Args:
            names: chunks that the coming forward completes; none if its layers are not expected.
        """
        self._close()
        self._expire()
        runs = [run for one in names for run in self._take(one)]
        if runs:
            if len(self._waves) >= MAX_WAVES:
                self._drop(self._waves[0])
            self._waves.append(_Wave(runs))
            self._runs += runs

    def layer_done(self, layer: int, mark: Mark) -> None:
        """A layer of the forward was launched.

        Args:
            layer: model layer.
            mark: the point in the stream behind it.
        """
        wave = self._waves[-1] if self._waves else None
        if wave is None or not wave.is_open:
            return
        if layer in wave.called or layer not in self._layers:
            self._drop(wave)
            return
        wave.called.add(layer)
        wave.marks.append((layer, mark))

    def next_copy(self) -> LayerCopy | None:
        """The next layer whose mark is passed; None when none is."""
        for wave in list(self._waves):
            while wave.marks:
                layer, mark = wave.marks[0]
                try:
                    if not mark.query():
                        break
                except Exception:  # noqa: BLE001 - what a failed stream left is not saved
                    self._ledger.count("layer_saves_stream_failed")
                    self._drop(wave)
                    break
                wave.marks.popleft()
                wave.runs = [run for run in wave.runs if not run.is_dropped]
                if not wave.runs:
                    self._drop(wave)
                    break
                for run in wave.runs:
                    run.is_copying = True
                return LayerCopy(layer, tuple(wave.runs), wave)
        return None

    def copied(self, copy: LayerCopy, is_good: bool) -> None:
        """A layer is in the ring.

        Args:
            copy: from ``next_copy``.
            is_good: whether it was copied.
        """
        for run in copy.runs:
            run.is_copying = False
            if run.is_dropped:
                self._ledger.drop_run(run)
        if copy.wave not in self._waves:
            return
        if not is_good:
            self._drop(copy.wave)
            return
        copy.wave.num_copied += 1
        self._end_if_complete(copy.wave)

    def expire(self, now_s: float) -> None:
        """Gives slots back whose chunks nobody has used in time: an idle engine has no more binds.

        Args:
            now_s: monotonic clock, seconds.
        """
        for run in reversed(self._runs):
            if run.seen_s >= 0:
                break
            run.seen_s = now_s
        while self._runs and now_s - self._runs[0].seen_s > PROOF_S:
            self._forget(self._runs.popleft())

    def abandon(self) -> None:
        """Drops everything that is not in the ring completely."""
        for wave in list(self._waves):
            self._drop(wave)

    def _close(self) -> None:
        wave = self._waves[-1] if self._waves else None
        if wave is None or not wave.is_open:
            return
        wave.is_open = False
        if wave.called != self._layers:
            self._ledger.count("layer_saves_incomplete")
            self._drop(wave)
        else:
            self._end_if_complete(wave)

    def _end_if_complete(self, wave: _Wave) -> None:
        if wave.is_open or wave.num_copied < len(self._layers):
            return
        self._waves.remove(wave)
        for run in wave.runs:
            run.is_complete = True
            self._ledger.count("chunks_staged_by_layer", run.num_chunks)

    def _drop(self, wave: _Wave) -> None:
        self._waves.remove(wave)
        for run in wave.runs:
            self._forget(run)

    def _forget(self, run: StagedRun) -> None:
        if run.is_dropped:
            return
        entry = self._ledger.find(run.key)
        lane = None if entry is None else entry.lane(run.lot.group)
        if lane is not None and run in lane.staged:
            lane.staged.remove(run)
            self._ledger.drop_run(run)

    def _expire(self) -> None:
        while self._runs and self._runs[0].bind < self._ledger.num_binds - MAX_AGE_BINDS:
            self._forget(self._runs.popleft())

    def _take(self, names: SaveNames) -> list[StagedRun]:
        """Slots for chunks that were just named; half of the ring stays for whole pages."""
        ledger, ring = self._ledger, self._ledger.ring
        entry = ledger.find(names.key)
        stop = names.first_chunk + names.pages.shape[1] // ledger.chunk_blocks
        if entry is None or ring is None or entry.named != stop:
            return []
        runs = []
        for lane in entry.lanes:
            spare = ring.num_free(lane.group) - ring.num_slots(lane.group) // 2
            count = min(stop - names.first_chunk, max(0, spare) // ledger.chunk_blocks)
            pages = names.pages[lane.group, : count * ledger.chunk_blocks]
            # A lane that was given up would hold slots for nothing.
            if not count or (pages < 0).any() or lane.retry_at > stop:
                continue
            lot = ring.take(lane.group, pages.size)
            if lot is not None:
                bind = ledger.num_binds
                runs.append(StagedRun(names.key, names.first_chunk, count, pages, lot, bind))
                lane.staged.append(runs[-1])
        return runs
