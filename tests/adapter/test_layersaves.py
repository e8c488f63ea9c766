"""Layers are staged as their marks pass; a wave that misses one is dropped, trimmed chunks too."""

from __future__ import annotations

import numpy as np
import pytest

from adapter.layersaves import MAX_AGE_BINDS, MAX_WAVES, LayerSaves
from adapter.metadata import ConnectorMetadata, SaveNames
from adapter.ring import StagingRing
from adapter.savebook import SaveBook
from adapter.saveflow import PROOF_S, SaveFlow
from adapter.saveledger import SaveLedger
from protocol.messages import StopReason
from tests.adapter.hostlike import FakeMark, geometry
from tests.adapter.savehost import small_ring

LAYERS = (3, 4)


class Rig:
    """One rank with two model layers and a ring of eight chunks."""

    def __init__(self, chunks: int = 8) -> None:
        geo = geometry(num_pages=64)
        self.ring: StagingRing = small_ring(geo, chunks)
        self.ledger = SaveLedger(geo, 50, self.ring)
        self.layers = LayerSaves(self.ledger, LAYERS)
        self.book = SaveBook(self.ledger, self.layers)
        self.flow = SaveFlow(self.ledger)

    def bind(
        self,
        key: int = 7,
        first: int = 0,
        pages: tuple[int, ...] = (),
        alive: dict[int, int] | None = None,
        may_fire: bool = True,
    ) -> None:
        alive = alive or {}
        keys = b"".join(bytes([key, first + at]) * 8 for at in range(len(pages)))
        rows = np.array([pages], dtype=np.int32)
        names = (SaveNames(100 + key, key, first, b"", keys, rows),) if pages else ()
        metadata = ConnectorMetadata(
            1,
            alive=np.array(list(alive), dtype=np.int64),
            valid_chunks=np.array(list(alive.values()), dtype=np.int32),
            names=names,
            may_fire=may_fire,
        )
        self.book.bound(metadata, None)

    def fire(self, *layers: int, mark: FakeMark | None = None) -> None:
        for layer in layers or LAYERS:
            self.layers.layer_done(layer, mark or FakeMark())

    def copy(self, is_good: bool = True) -> list[int]:
        """Copies what may be copied; the layers in order."""
        done = []
        while (copy := self.layers.next_copy()) is not None:
            done.append(copy.layer)
            self.layers.copied(copy, is_good)
        return done


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_staged_chunk_is_sent_without_being_copied_again(rig: Rig) -> None:
    rig.bind(pages=(11, 12), alive={7: 0})
    rig.fire()
    assert rig.copy() == [3, 4]
    assert rig.flow.next_stores(9) == []  # nothing is confirmed yet
    rig.bind(alive={7: 2})
    (order,) = rig.flow.next_stores(9)
    assert (order.sources, order.num_chunks) == (None, 2)
    assert order.lot is not None
    assert order.pages == order.lot.slots.tobytes()
    assert rig.ledger.counts["chunks_staged_by_layer"] == 2


def test_an_idle_engine_gets_the_slots_back_of_what_nobody_used_in_time(rig: Rig) -> None:
    rig.bind(pages=(11, 12), alive={7: 0})
    rig.fire()
    rig.copy()
    rig.layers.expire(100.0)
    rig.bind(8, pages=(21,), alive={8: 0})  # the forward of it never comes: nobody closes its wave
    rig.layers.expire(100.0 + PROOF_S)
    assert rig.ring.num_lent == 2
    rig.layers.expire(100.1 + PROOF_S)
    assert rig.ring.num_lent == 1
    rig.layers.expire(100.1 + 2 * PROOF_S)
    assert rig.ring.num_lent == 0
    rig.bind(alive={7: 2})
    (order,) = rig.flow.next_stores(9)
    assert order.sources is not None  # copied whole, though late


def test_what_was_used_in_time_does_not_expire(rig: Rig) -> None:
    rig.bind(pages=(11,), alive={7: 0})
    rig.fire()
    rig.copy()
    rig.layers.expire(100.0)
    rig.bind(alive={7: 1})
    (order,) = rig.flow.next_stores(9)
    rig.layers.expire(101.0 + PROOF_S)
    assert order.sources is None
    assert rig.ring.num_lent == 1


def test_layers_wait_for_their_marks_in_order(rig: Rig) -> None:
    first, second = FakeMark(is_done=False), FakeMark()
    rig.bind(pages=(11,), alive={7: 0})
    rig.fire(3, mark=first)
    rig.fire(4, mark=second)
    assert rig.copy() == []
    assert rig.layers.has_work
    first.is_done = True
    assert rig.copy() == [3, 4]
    assert not rig.layers.has_work


@pytest.mark.parametrize("layers", [(3,), (3, 3), (3, 4, 4), (9,)])
def test_a_wave_that_misses_or_repeats_a_layer_is_dropped(
    rig: Rig, layers: tuple[int, ...]
) -> None:
    rig.bind(pages=(11,), alive={7: 0})
    rig.fire(*layers)
    rig.copy()
    rig.bind(alive={7: 1})
    (order,) = rig.flow.next_stores(9)
    assert order.sources is not None  # copied whole, now that it is confirmed
    assert order.sources.tolist() == [11]
    assert rig.ring.num_lent == 1


def test_what_the_forward_did_not_compute_after_all_is_not_sent(rig: Rig) -> None:
    rig.bind(pages=(11, 12), alive={7: 0})
    rig.fire()
    rig.copy()
    rig.bind(alive={7: 1})  # trimmed: the second chunk was not completed
    (order,) = rig.flow.next_stores(9)
    assert (order.sources, order.num_chunks) == (None, 1)
    rig.bind(alive={7: 2})
    rig.ring.give_back_all([order.lot])
    rig.flow.copied(7, 0, 1, 0, StopReason.NONE, 0.0)
    (order,) = rig.flow.next_stores(9)
    assert order.sources is not None
    assert order.sources.tolist() == [12]


def test_a_forward_whose_hooks_are_not_expected_takes_no_slots(rig: Rig) -> None:
    rig.bind(pages=(11,), alive={7: 0}, may_fire=False)
    assert rig.ring.num_lent == 0
    rig.fire()
    assert rig.copy() == []


def test_a_failed_mark_or_copy_drops_the_wave(rig: Rig) -> None:
    rig.bind(pages=(11,), alive={7: 0})
    rig.fire(mark=FakeMark(error=RuntimeError("illegal access")))
    assert rig.copy() == []
    assert rig.ledger.counts["layer_saves_stream_failed"] == 1
    rig.bind(first=1, pages=(12,), alive={7: 0})
    rig.fire()
    assert rig.copy(is_good=False) == [3]
    assert rig.ring.num_lent == 0


def test_slots_that_are_written_go_back_when_the_writer_is_done(rig: Rig) -> None:
    rig.bind(pages=(11,), alive={7: 0})
    rig.fire()
    copy = rig.layers.next_copy()
    assert copy is not None
    rig.book.abandon()
    rig.layers.abandon()
    assert rig.ring.num_lent == 1
    rig.layers.copied(copy, is_good=True)
    assert rig.ring.num_lent == 0


def test_half_of_the_ring_stays_for_whole_pages(rig: Rig) -> None:
    rig.bind(pages=tuple(range(20)), alive={7: 0})
    assert rig.ring.num_free(0) == rig.ring.num_slots(0) // 2
    rig.bind(8, pages=(30,), alive={8: 0})
    assert rig.ring.num_lent == 1  # the first wave never fired, and gave its slots back


def test_waves_and_the_age_of_staged_chunks_are_bounded(rig: Rig) -> None:
    never = FakeMark(is_done=False)
    for key in range(1, MAX_WAVES + 3):
        rig.bind(key, pages=(key,), alive={})
        rig.fire(mark=never)
    assert rig.ring.num_lent <= MAX_WAVES
    rig = Rig()
    rig.bind(pages=(11,), alive={7: 0})
    rig.fire()
    rig.copy()
    for _ in range(MAX_AGE_BINDS + 2):
        rig.bind()
    assert rig.ring.num_lent == 0  # nothing was heard of its request
