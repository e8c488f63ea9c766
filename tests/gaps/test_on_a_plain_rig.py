"""Rows 5, 6 and 12 where the rule itself is at work: named while it runs, waited for, forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapter.enginerig import SIZE, EngineRig, launched, write_model
from tests.adapter.hostlike import Output, Report, tokens
from tests.tiers.rig import counters, disk, num_up
from tests.wire.process import ServerProcess, wait_until

pytest.importorskip("lmdb")
pytest.importorskip("xxhash")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with launched() as process:
        yield process


def test_row_05_later_chunks_and_generated_blocks_are_stored_while_the_request_runs(
    server: ServerProcess, tmp_path: Path
) -> None:
    """All of it is in ``cached_requests``, and the request never ends."""
    rig = EngineRig(server.url, write_model(tmp_path / "m")).register()
    whole = tokens(6 * SIZE + 1, seed=5)
    prompt = whole[: 4 * SIZE]
    request, _, pages = rig.begin(prompt)
    number, size = request.request_id, len(prompt)
    first = Report(number, prompt, list(pages), 0, SIZE)
    pages += rig.hand_out(3)
    rig.iterate(Output([first]), forward=lambda: rig.fill(prompt[:SIZE], pages, 0))
    rest = Report(number, [], [], SIZE, size - SIZE)
    rig.iterate(Output([], [rest]), forward=lambda: rig.fill(prompt, pages, 1))
    for at in range(size, len(whole)):
        more = Report(number, [whole[at]], [pages[at // SIZE]] if at % SIZE == 0 else [], at, 1)
        known = whole[: at + 1]
        rig.iterate(Output([], [more]), forward=lambda known=known: rig.fill(known, pages, 4))

    def is_stored() -> bool:
        rig.iterate(Output([], [Report(number, [], [], len(whole) - 1, 1)]))
        return rig.worker.counters().get("chunks_saved", 0) == 6

    assert wait_until(is_stored), rig.worker.counters()
    rig.close()
    second = EngineRig(server.url, write_model(tmp_path / "m")).register()
    assert second.run_hit(whole, 6 * SIZE).offered == 6 * SIZE
    second.close()


def test_row_06_what_a_lower_tier_brings_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first query finds it on its way; an engine that did not wait would compute it again."""
    monkeypatch.setenv("TRTLLM_KVKEEP_QUERY_BUDGET_MS", "2000")
    model, prompt = write_model(tmp_path / "m"), tokens(5 * SIZE + 1, seed=6)
    tier = ("--l2", disk(tmp_path / "l2"), "--promote-deadline", "30s")
    with launched(*tier) as server:
        assert wait_until(lambda: num_up(server) == 1)
        rig = EngineRig(server.url, model).register()
        rig.run_saved(prompt)
        wanted = 5 * rig.page_bytes
        assert wait_until(lambda: counters(server).get("tier_disk_put_bytes", 0) >= wanted)
        rig.close()
    with launched(*tier) as server:  # what it held in memory is gone
        assert wait_until(lambda: num_up(server) == 1)
        rig = EngineRig(server.url, model).register()
        assert rig.run(prompt).offered == 5 * SIZE
        assert rig.worker.counters()["tier_waits"] == 1
        rig.close()


def test_row_12_a_request_that_is_never_heard_of_again_is_forgotten(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled without a callback, in the batch or before it: no state stays, and no lease."""
    monkeypatch.setattr("adapter.requests.EXPIRE_S", 0.0)
    monkeypatch.setattr("adapter.requests.EXPIRE_ITERATIONS", 4)
    rig = EngineRig(server.url, write_model(tmp_path / "m")).register()
    prompt = tokens(5 * SIZE + 1, seed=12)
    rig.run_hit(prompt, 5 * SIZE)
    table = rig.scheduler._table
    assert table is not None
    request, _, pages = rig.begin(prompt)
    rig.iterate(Output([Report(request.request_id, prompt, pages, 0, 1)]))
    rig.begin(prompt)  # has pages, and is never reported
    rig.iterate(Output())
    assert len(table.live_keys()) == 2
    for _ in range(40):
        rig.iterate(Output())
    assert table.live_keys() == []
    rig.check_nothing_leased()
    rig.close()
