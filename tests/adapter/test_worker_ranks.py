"""Workers of several ranks: who joins when, and that each reads its own part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapter.copy import LoadError
from adapter.metadata import ConnectorMetadata, LoadOrder
from protocol.layout import SLOT_DTYPE
from server.asking import stats
from tests.adapter.enginerig import Stream, launched, write_model
from tests.adapter.hostlike import EPOCH, Output, Report, tokens
from tests.adapter.rankrig import Follower, RankRig
from tests.wire.process import ServerProcess, wait_until

PROMPT = tokens(22)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with launched() as process:
        yield process


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "1000")


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_each_rank_saves_and_loads_its_own_part(
    server: ServerProcess, tmp_path: Path, num_ranks: int
) -> None:
    rig = RankRig(server.url, write_model(tmp_path / "m"), num_ranks).register()
    try:
        assert rig.run_saved(PROMPT).offered == 0
        for _ in range(2):
            assert rig.run_saved(PROMPT).offered == 20
        assert all(w.counters()["pages_loaded"] == 10 for w in rig.workers)
        rig.check_nothing_leased()
    finally:
        rig.close()


def test_a_latent_is_saved_by_one_rank_and_loaded_by_all(
    server: ServerProcess, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "m", kv_lora_rank=12, qk_rope_head_dim=4)
    rig = RankRig(server.url, model, 2, is_latent=True).register()
    try:
        before = rig.stats()["slots_held"]
        rig.run_saved(PROMPT)
        assert rig.stats()["slots_held"] == before + 5
        assert rig.run_saved(PROMPT).offered == 20
        rig.check_nothing_leased()
    finally:
        rig.close()


def has_link(rank: Follower) -> bool:
    return rank.worker.link is not None


def test_the_other_ranks_join_when_the_card_comes(server: ServerProcess, tmp_path: Path) -> None:
    rig = RankRig(server.url, write_model(tmp_path / "m"), 2)
    other = rig.followers[0]
    other.worker.register_kv_caches(other.tensor)
    other.worker.bind_connector_meta(ConnectorMetadata(1))
    other.worker.start_load_kv(Stream())
    other.worker.wait_for_save(Stream())
    assert other.worker.get_finished([5], [6]) == ([5], [6])
    assert not has_link(other)
    rig.worker.register_kv_caches(rig.tensor)
    rig.scheduler.wait_for_initialization()
    assert rig.run(PROMPT).offered == 0  # it brings the card
    assert has_link(other)
    rig.join()
    rig.close()


def test_a_rank_that_never_joined_fails_a_load_aloud(server: ServerProcess, tmp_path: Path) -> None:
    rig = RankRig(server.url, write_model(tmp_path / "m"), 2)
    worker = rig.followers[0].worker
    worker.register_kv_caches(rig.followers[0].tensor)
    slots = np.zeros(2, dtype=SLOT_DTYPE).tobytes()
    order = LoadOrder(1, 1, b"l" * 16, EPOCH, slots, 2, np.zeros((1, 1, 1), dtype=np.int32))
    worker.bind_connector_meta(ConnectorMetadata(1, loads=(order,)))
    with pytest.raises(LoadError, match="without a pool"):
        worker.start_load_kv(Stream())
    # Should the host survive it, what it computes from here on must reach nobody.
    assert worker._engine.uncached_because.startswith("a load failed: ")
    rig.close()


def test_the_first_metadata_brings_the_card_whatever_was_called_before(
    server: ServerProcess, tmp_path: Path
) -> None:
    """The first epoch has no ``wait_for_initialization``, and an idle one asks for nothing."""
    rig = RankRig(server.url, write_model(tmp_path / "m"), 2)
    other = rig.followers[0]
    other.worker.register_kv_caches(other.tensor)
    rig.worker.register_kv_caches(rig.tensor)
    rig.iterate(Output())
    assert has_link(other)
    rig.close()


def test_only_the_leader_knows_at_once_that_nothing_is_promised(
    server: ServerProcess, tmp_path: Path
) -> None:
    rig = RankRig(server.url, write_model(tmp_path / "m"), 2).register()
    try:
        is_over = []
        for worker in rig.workers:
            assert worker.link is not None
            offers = worker.link.offers
            is_over.append(offers.is_over(offers.watch(EPOCH, 0), 0, 1 << 60))
        assert is_over == [True, False]
    finally:
        rig.close()


def test_what_ends_caching_withdraws_the_saves_under_way(
    server: ServerProcess, tmp_path: Path
) -> None:
    rig = RankRig(server.url, write_model(tmp_path / "m"), 2).register()
    try:
        rig.streams[0] = HeldStream()
        request, _, pages = rig.begin(PROMPT)
        rig.iterate(Output([Report(request.request_id, PROMPT, pages, 0, 22)]))
        rig.iterate(Output(cached_requests=[Report(request.request_id, [1], [], 22, 1)]))
        assert rig.worker.counters()["open_saves"] == 1
        sessions = stats(server.side_path, 5.0)["sessions"]
        rig.worker._engine.run_uncached("a test says so")
        assert rig.worker.counters()["open_saves"] == 0
        # Nothing of it is open, so the server has the pool no longer.
        assert wait_until(lambda: stats(server.side_path, 5.0)["sessions"] == sessions - 1, 10.0)
    finally:
        rig.close()


class BrokenStream(Stream):
    def query(self) -> bool:
        raise RuntimeError("this rank's device is lost")


def test_a_chunk_without_every_ranks_part_is_a_miss(server: ServerProcess, tmp_path: Path) -> None:
    rig = RankRig(server.url, write_model(tmp_path / "m"), 2).register()
    try:
        rig.streams[1] = BrokenStream()
        rig.run_saved(PROMPT)
        assert rig.worker.counters()["chunks_saved"] == 5
        del rig.streams[1]
        assert rig.run_saved(PROMPT).offered == 0
        assert rig.run_saved(PROMPT).offered == 20  # that rank's part was saved meanwhile
    finally:
        rig.close()


class HeldStream(Stream):
    is_done = False

    def query(self) -> bool:
        return self.is_done


def test_pages_are_kept_for_the_other_ranks_when_the_leader_is_done(
    server: ServerProcess, tmp_path: Path
) -> None:
    rig = RankRig(server.url, write_model(tmp_path / "m"), 2).register()
    try:
        held = rig.streams[1] = HeldStream()
        text = tokens(22, seed=50)
        request, _, pages = rig.begin(text)
        number = request.request_id
        report = Report(number, text, pages, 0, 22)
        rig.iterate(Output([report]), forward=lambda: rig.fill(text, pages, 0))

        def is_leader_done() -> bool:
            rig.iterate(Output(cached_requests=[Report(number, [], [], 22, 1)]))
            return rig.worker.counters().get("chunks_saved", 0) == 5

        assert wait_until(is_leader_done, 30.0), rig.worker.counters()
        request.tokens.append(1)
        assert rig.scheduler.request_finished(request, pages) is True
        rig.collect((number,))
        assert number not in rig.saved
        held.is_done = True
        rig.settle(number)
        assert rig.run_hit(text, 20).offered == 20
    finally:
        rig.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_pages_come_back_although_one_rank_never_confirms(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    monkeypatch.setattr("adapter.saveledger.HOLD_S", 0.3)
    rig = RankRig(server.url, write_model(tmp_path / "m"), 2).register()
    try:
        text = tokens(22, seed=60 + rank)
        rig.streams[rank] = HeldStream()
        assert rig.run_saved(text).kept  # the host has them back from both
        counts = [worker.counters() for worker in rig.workers]
        assert counts[rank]["saves_dropped_hold_expired"] == 1
        assert all((c["held_pages"], c["open_saves"]) == (0, 0) for c in counts)
        del rig.streams[rank]
        assert rig.run_saved(text).offered == 0, "half of it is no hit"
    finally:
        rig.close()


def test_when_the_leader_ends_caching_the_other_ranks_save_no_more(
    server: ServerProcess, tmp_path: Path
) -> None:
    # Reports that the leader did not understand may have handed out pages that the others save.
    rig = RankRig(server.url, write_model(tmp_path / "m"), 2).register()
    try:
        rig.streams[1] = HeldStream()
        request, _, pages = rig.begin(PROMPT)
        number, other = request.request_id, rig.followers[0].worker
        rig.iterate(Output([Report(number, PROMPT, pages, 0, 22)]))
        rig.iterate(Output(cached_requests=[Report(number, [1], [], 22, 1)]))
        assert other.counters()["open_saves"] == 1
        broken: Any = object()
        rig.iterate(broken)
        assert rig.scheduler._engine.running is None
        assert other.counters()["open_saves"] == 0
        rig.iterate(Output(cached_requests=[Report(number, [2, 3, 4], [], 23, 3)]))
        assert other.counters()["open_saves"] == 0
    finally:
        rig.close()


HELD_ON_THE_SERVER = ("leases", "pinned_slots", "stores", "slots_reserved", "copies_in_flight")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_ranks_leave_in_any_order_amid_loads_and_saves(
    server: ServerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    order: tuple[int, ...],
    mode: str,
) -> None:
    """One rank's stream stands still, so that its load and its save are under way to the end."""
    monkeypatch.setenv("TRTLLM_CONFORMANCE_EPOCH", "E4")
    monkeypatch.setenv("TRTLLM_KVKEEP_LOAD_MODE", mode)
    before = stats(server.side_path, 5.0)
    rig = RankRig(server.url, write_model(tmp_path / "m"), 2).register()
    workers = list(rig.workers)
    try:
        text = tokens(22, seed=90)
        rig.run_saved(text)
        saving, _, pages = rig.begin(tokens(22, seed=91))
        rig.iterate(Output([Report(saving.request_id, saving.tokens[:22], pages, 0, 22)]))
        rig.streams[1] = HeldStream()
        rig.iterate(Output(cached_requests=[Report(saving.request_id, [1], [], 22, 1)]))
        loading, offered, _ = rig.begin(text)
        assert offered == 20
        if mode == "async":
            rig.iterate(Output())  # it is begun on all ranks, and goes on on one
            assert [worker._loads.num_waiting for worker in workers if worker._loads][1] == 1
            assert loading.request_id in rig.loading
        assert workers[1].counters()["open_saves"] == 1
    finally:
        for rank in order:
            workers[rank].shutdown()

    def is_clean() -> bool:
        now = stats(server.side_path, 5.0)
        left = [now[name] for name in HELD_ON_THE_SERVER]
        return now["sessions"] == before["sessions"] and not any(left)

    assert wait_until(is_clean, 10.0), stats(server.side_path, 5.0)
